"""Which candidates a solve compares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ridgefit.errors import BadInput
from ridgefit.features import FeatureList, SplitShape
from ridgefit.models import Port
from ridgefit.recipe import CandidateSettings, SolveSettings

PLAIN_MAPS = CandidateSettings(features=("state",))
_RANKS = (18, 9)
_FIRST = 3


def candidates_of(
    settings: SolveSettings, captured: Sequence[str], hidden: int, late: int
) -> list[CandidateSettings]:
    """The plain maps, then every other candidate, those of the same features together.

    Args:
        settings: of the solve.
        captured: names of captured features.
        hidden: width of the state.
        late: late layers of the split with the fewest.

    Raises:
        BadInput: `--features auto` with nothing to choose among.
    """
    named = list(settings.candidates)
    if settings.auto and not named:
        named = list(default_candidates(captured, hidden, late))
    if not settings.auto:
        named.append(settings.wanted(tuple(captured)))
    others: dict[str, CandidateSettings] = {}
    for candidate in named:
        if not candidate.plain:
            others.setdefault(candidate.label, candidate)
    if settings.auto and not others:
        raise BadInput(
            f"there is nothing to choose among: the capture holds {', '.join(captured)}",
            "capture again with --features state,previous-1",
        )
    order = {names: place for place, names in enumerate(dict.fromkeys(c.features for c in others.values()))}
    return [PLAIN_MAPS, *sorted(others.values(), key=lambda candidate: order[candidate.features])]


def default_candidates(captured: Sequence[str], hidden: int, late: int) -> Iterator[CandidateSettings]:
    """What `--features auto` tries: the captured features, one more at a time.

    Each list of features at full width, which bounds what a bottleneck can do; through ranks of an 18th and a
    9th of the hidden width (32 and 64 of 576), in all late layers; and through the former in the first third
    of them only. Controls are never candidates.
    """
    controls = FeatureList(captured).controls
    names = [name for name in captured if name not in controls]
    ranks = sorted({max(1, hidden // share) for share in _RANKS})
    for stop in range(2, len(names) + 1):
        features = tuple(names[:stop])
        yield CandidateSettings(features=features)
        for rank in ranks:
            yield CandidateSettings(features=features, rank=rank)
        yield CandidateSettings(features=features, rank=ranks[0], layers=f"first:{max(1, late // _FIRST)}")


def require_solvable(
    candidates: Sequence[CandidateSettings], captured: Sequence[str], port: Port, splits: Sequence[int]
) -> None:
    """Refuse candidates that no capture of these features can give, before anything is read.

    Raises:
        BadInput: one reads what was not captured, or has a rank or layers that do not exist at some split.
    """
    for candidate in candidates:
        require_late(candidate, min(splits))
        missing = [name for name in candidate.features if name not in captured]
        if missing:
            raise BadInput(
                f"the capture holds no feature {missing[0]!r}, only {', '.join(captured)}",
                f"capture again with --features {','.join([*captured, *missing])}",
            )
        for split in splits:
            wide_layers(candidate, split, port.n_layers - split)
            rest = FeatureList(candidate.features).width(SplitShape.of(port, split)) - port.hidden
            if candidate.rank is not None and candidate.rank > rest:
                raise BadInput(
                    f"a bottleneck of rank {candidate.rank} is wider than the {rest} inputs that "
                    f"{', '.join(candidate.features[1:])} have",
                    f"use a rank of at most {rest}, or none",
                )


def require_late(candidate: CandidateSettings, split: int) -> None:
    """Refuse layers that are late at no split.

    Args:
        candidate: what is read, and where.
        split: the lowest.

    Raises:
        BadInput: its layers begin below that split.
    """
    first, _, last = candidate.layers.partition("-")
    if last and int(first) < split <= int(last):
        raise BadInput(
            f"layers {candidate.layers} of candidate {candidate.label!r} begin below split {split}, where no "
            "layer is filled",
            f"use {split}-{last}",
        )


def wide_layers(candidate: CandidateSettings, split: int, late: int) -> list[int]:
    """Late layers, as indices from the split, that read more than the state; all where nothing is more.

    Args:
        candidate: what is read, and where.
        split: first late layer.
        late: how many late layers there are.

    Raises:
        BadInput: none of those it names are late layers, or there are fewer than it names.
    """
    if candidate.plain and (candidate.rank is not None or candidate.layers != "all"):
        raise BadInput(
            "maps of the state alone have no bottleneck and read the same in every layer",
            "name further features, or leave --rank and --layers out",
        )
    kind, _, number = candidate.layers.partition(":")
    if kind == "all":
        return list(range(late))
    if kind == "first":
        # The split layer's own input is the state, so its map has nothing to gain.
        if int(number) > late - 1:
            raise BadInput(
                f"layers {candidate.layers} of candidate {candidate.label!r} are more than the {late - 1} "
                f"layers above split {split}",
                f"use first:{late - 1}, or all" if late > 1 else "use all",
            )
        return list(range(1, 1 + int(number)))
    first, last = (int(part) - split for part in candidate.layers.split("-"))
    found = [at for at in range(late) if first <= at <= last]
    if not found:
        raise BadInput(
            f"layers {candidate.layers} of candidate {candidate.label!r} are none of the late layers "
            f"{split} to {split + late - 1}",
            "name late layers, or first:N",
        )
    if last >= late:
        raise BadInput(
            f"layers {candidate.layers} of candidate {candidate.label!r} reach past the last layer, which is "
            f"{split + late - 1}",
            f"use {found[0] + split}-{split + late - 1}",
        )
    return found
