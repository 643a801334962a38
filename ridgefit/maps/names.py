"""Names of what a map reads: `state`, `previous-1`, `mlp`, …; what files may hold, with its version.

How a feature is computed is the business of `ridgefit.features`, which this room does not know; that both
agree is tested.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ridgefit.errors import BadInput

_NUMBERED = re.compile(r"(?P<base>[a-z][a-z-]*[a-z])-(?P<number>[1-9][0-9]{0,4})")
_LIST = re.compile(r"[a-z0-9-]{1,40}:[0-9]{1,4}(,[a-z0-9-]{1,40}:[0-9]{1,4})*")


class Known(NamedTuple):
    """A feature that this version can compute.

    Attributes:
        version: of its definition; raised when its values change.
        example: a name of it; ends in a number where the name takes one.
    """

    version: int
    example: str


# base name -> version, and how a whole name looks
READABLE_FEATURES: Mapping[str, Known] = {
    "state": Known(1, "state"),
    "previous": Known(1, "previous-1"),
    "mlp": Known(1, "mlp"),
    "lower": Known(1, "lower-3"),
    "average": Known(1, "average-8"),
    "control-next": Known(1, "control-next-1"),
    "control-random": Known(1, "control-random"),
}


class FeatureName(NamedTuple):
    """`previous-2` in parts: base name, and the number, 0 where the name takes none."""

    base: str
    number: int


def parse_feature(name: str) -> FeatureName:
    """Take a feature's name apart.

    Raises:
        BadInput: there is no such feature, or its number is missing or too much.
    """
    match = _NUMBERED.fullmatch(name)
    base, number = (match["base"], int(match["number"])) if match else (name, 0)
    known = READABLE_FEATURES.get(base)
    if known is None or (number > 0) != known.example[-1].isdigit():
        examples = [item.example for item in READABLE_FEATURES.values()]
        near = [known.example] if known else difflib.get_close_matches(name, examples, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise BadInput(f"there is no feature {name[:60]!r}", f"{hint}known: {', '.join(examples)}")
    return FeatureName(base, number)


def feature_versions(names: Iterable[str]) -> dict[str, int]:
    """Version of each feature's definition, by whole name, in order.

    Raises:
        BadInput: see `parse_feature`.
    """
    return {name: READABLE_FEATURES[parse_feature(name).base].version for name in names}


def require_features(names: Mapping[str, int], where: str) -> tuple[str, ...]:
    """Feature names in order, of a file that keeps the order.

    Args:
        names: whole name -> version, as a file states them.
        where: the file, for the sentence.

    Raises:
        BadInput: see `require_known`; or `state` is not the first.
    """
    require_known(names, where)
    return require_state_first(tuple(names), where)


def require_known(names: Mapping[str, int], where: str) -> None:
    """Refuse features that this version cannot compute.

    Raises:
        BadInput: a name, or the version of its definition, is not known.
    """
    for name, version in names.items():
        try:
            found = feature_versions([name])[name]
        except BadInput as error:
            raise BadInput(
                f"maps in {where} read the feature {name[:60]!r} version {version}, which this ridgefit "
                "does not know",
                "upgrade ridgefit",
            ) from error
        if found != version:
            raise BadInput(
                f"maps in {where} read the feature {name!r} version {version}, this ridgefit knows "
                f"version {found}",
                "upgrade ridgefit",
            )


def require_state_first(names: Sequence[str], where: str) -> tuple[str, ...]:
    """Columns of the state come first, because a layer's map may read them alone.

    Raises:
        BadInput: another feature is first, or one is named twice.
    """
    if not names or names[0] != "state":
        raise BadInput(
            f"the features {', '.join(names) or '(none)'} of {where} do not begin with state",
            "name state first",
        )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadInput(
            f"the features {', '.join(names)} of {where} name {twice!r} twice", "name each feature once"
        )
    return tuple(names)


def reads_text(names: Sequence[str], rank: int | None = None, narrow: int = 0) -> str:
    """What maps read, for people: `state + previous-1 through rank 32, 4 layers the state alone`.

    Args:
        names: features in order.
        rank: of the bottleneck, None without one.
        narrow: layers that read the state alone, where others read more.
    """
    through = "" if rank is None else f" through rank {rank}"
    alone = f", {narrow} layer{'s' if narrow > 1 else ''} the state alone" if narrow else ""
    return " + ".join(names) + through + alone


def features_text(names: Iterable[str]) -> str:
    """`state:1,previous-1:1`, as the header of a source file states them."""
    return ",".join(f"{name}:{version}" for name, version in feature_versions(names).items())


def parse_features_text(text: str, where: str) -> tuple[str, ...]:
    """Names from `features_text`.

    Raises:
        BadInput: malformed, twice the same name, or see `require_features`.
    """
    if not _LIST.fullmatch(text):
        raise BadInput(f"{where} does not list its features as name:version", "fetch or write it again")
    pairs = [item.rpartition(":") for item in text.split(",")]
    names = {name: int(version) for name, _, version in pairs}
    if len(names) != len(pairs):
        raise BadInput(f"{where} names a feature twice", "fetch or write it again")
    return require_features(names, where)
