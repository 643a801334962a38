"""Which candidates a solve compares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ridgefit.errors import BadInput
from ridgefit.features import FeatureList
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
