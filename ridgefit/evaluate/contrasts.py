"""Which arms are set against which: what a fill, its rows, its corrections and its splices are worth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ridgefit.evaluate.refinements import CONTROLS
from ridgefit.recipe.rows import selector_settings

if TYPE_CHECKING:
    from ridgefit.evaluate.arms import Arm

FILLS = ("identity", "none", "pop")
"""What a ridge arm is set against, besides exact."""


def contrasted(arms: Sequence[Arm]) -> Iterator[tuple[Arm, Arm]]:
    """Pairs of arms whose difference says what one thing is worth.

    A ridge arm against other fills with the same rows exact (POP whatever its rows), and against the
    evaluation's maps where it has its own. Any fill with chosen rows, corrections, a splice or sink rows
    against itself without them, and with chosen rows against controls of the same count: random rows, a
    longer tail, and the question hidden.
    """
    for arm in arms:
        if arm.kind == "ridge":
            yield from ((arm, other) for other in arms if _other_maps(arm, other))
            for kind in FILLS:
                for other in arms:
                    if other.kind == kind and (_rows(other) == _rows(arm) or (kind == "pop" and _plain(arm))):
                        yield arm, other
        base = base_of(arm, arms)
        if base is not None:
            yield arm, base
        if arm.rows and arm.rows[-1].select not in CONTROLS:
            yield from ((arm, other) for other in arms if _controls(other, arm) and _alike(arm, other))


def base_of(arm: Arm, arms: Sequence[Arm]) -> Arm | None:
    """The same arm without its last refinement: splice, corrections, chosen rows, or sink rows."""
    if arm.fill is None:
        return None
    names = ("splice", "corrections", "rows", "sink_rows")
    own = {name: getattr(arm, name) for name in names}
    last = next((name for name in names if own[name]), None)
    if last is None:
        return None
    wanted = {**own, last: {"rows": (), "sink_rows": 0}.get(last)}
    for other in arms:
        if _fill(other) == _fill(arm) and all(getattr(other, name) == wanted[name] for name in names):
            return other
    return None


def _fill(arm: Arm) -> tuple[Any, ...]:
    return arm.kind, arm.split, arm.tail, arm.maps


def _rows(arm: Arm) -> tuple[Any, ...]:
    """What decides which rows of which layers an arm fills, and what is done to them."""
    return arm.split, arm.tail, arm.sink_rows, arm.rows, arm.corrections, arm.splice


def _plain(arm: Arm) -> bool:
    return not (arm.rows or arm.corrections or arm.splice)


def _other_maps(arm: Arm, other: Arm) -> bool:
    return (
        arm.maps is not None and other.kind == "ridge" and other.maps is None and _rows(other) == _rows(arm)
    )


def _controls(other: Arm, arm: Arm) -> bool:
    """Whether `other` spends on a control what the last selector of `arm` spends on its own rows."""
    if not other.rows or other.rows[-1].select not in CONTROLS or other.rows[:-1] != arm.rows[:-1]:
        return False
    control, own = (one.rows[-1].model_dump() for one in (other, arm))
    if control.get("like") is not None:
        return selector_settings(control["like"]) == arm.rows[-1]
    counted = "share" in own and "count" in own and not own.get("base_rules")
    return counted and all(control[name] == own[name] for name in ("share", "count"))


def _alike(arm: Arm, other: Arm) -> bool:
    """The same fill, refined alike but for the rows."""
    same = (arm.sink_rows, arm.corrections, arm.splice) == (other.sink_rows, other.corrections, other.splice)
    return same and _fill(arm) == _fill(other)
