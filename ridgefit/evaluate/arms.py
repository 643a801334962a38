"""From an arm's settings to the context manager that applies it (paper section 2.1, tables 3 and 6)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgefit.errors import BadInput
from ridgefit.evaluate.refinements import corrections_of, selectors_of, sinks_in
from ridgefit.evaluate.samples import Reach
from ridgefit.recipe import ArmKind, ArmSettings
from ridgefit.recipe.rows import RowsField, Splice
from ridgefit.runtime import Corrections, FillReport, RidgeFill, Selector

EXACT = ArmSettings(kind="exact")
CANDIDATES = "candidates"
"""Folder beside solved maps in which `solve` keeps those that it only scored."""


@dataclass(frozen=True)
class Arm:
    """One arm, ready to be applied.

    Attributes:
        label: name in tables and results, unique within an evaluation.
        kind: what fills the prefix.
        split: first filled layer; None for exact.
        tail: exact rows at the end of the prompt; None takes the task's.
        sink_rows: exact rows at the beginning.
        fill: what the runtime applies; None for exact.
        maps: the maps it names for itself; None where it reads the evaluation's.
        rows: selectors of further exact rows, as in the recipe.
        selectors: the same as the runtime takes them.
        corrections: of filled keys and values.
        splice: what is exact in place of what is filled.
    """

    label: str
    kind: ArmKind
    split: int | None = None
    tail: int | None = None
    sink_rows: int = 0
    fill: RidgeFill | None = None
    maps: str | None = None
    rows: RowsField = ()
    selectors: tuple[Selector, ...] = ()
    corrections: Corrections | None = None
    splice: Splice | None = None

    def tail_of(self, task_tail: int) -> int:
        """Tail in a task whose own tail is `task_tail`."""
        return self.tail if self.tail is not None else task_tail

    @property
    def reaches(self) -> int:
        """First rows that are exact whatever the prompt."""
        return max(self.sink_rows, sinks_in(self.rows))

    def applied(
        self, model: Any, task_tail: int, tokenizer: Any = None, *, prompt_tokens: int | None = None
    ) -> AbstractContextManager[FillReport | None]:
        """Apply the arm to a model; the exact arm is the model untouched.

        Args:
            model: the model.
            task_tail: exact rows where the arm names none.
            tokenizer: the model's, for selectors of rows.
            prompt_tokens: length of prompts that arrive in parts, see `RidgeFill.applied`.
        """
        if self.fill is None:
            return nullcontext()
        return self.fill.applied(
            model,
            tail=self.tail_of(task_tail),
            sink_rows=self.sink_rows,
            prompt_tokens=prompt_tokens,
            rows=self.selectors or None,
            tokenizer=tokenizer,
            corrections=self.corrections,
            splice=self.splice,
        )


def arm_context(
    model: Any, arm: ArmSettings, maps: Path | None, *, n_layers: int, tail: int
) -> AbstractContextManager[FillReport | None]:
    """Apply one arm to a model; `tail` counts where the arm names none of its own.

    Raises:
        BadInput: see `resolve_arms`.
    """
    return resolve_arm(arm, maps, n_layers).applied(model, tail)


def resolve_arms(settings: Sequence[ArmSettings], maps: Path | None, n_layers: int) -> tuple[Arm, ...]:
    """Every arm ready to be applied, the exact one first whether it was named or not.

    Raises:
        BadInput: a ridge arm without maps, a split that is unknown or outside the model, two arms with one
            label.
    """
    exact = next((arm for arm in settings if arm.kind == "exact"), EXACT)
    arms = tuple(
        resolve_arm(arm, maps, n_layers) for arm in (exact, *(a for a in settings if a is not exact))
    )
    for position, arm in enumerate(arms):
        if any(arm.label == other.label for other in arms[:position]):
            raise BadInput(f"two arms are called '{arm.label}'", "give one of them a `name`")
    return arms


def resolve_arm(arm: ArmSettings, maps: Path | None, n_layers: int) -> Arm:
    """One arm ready to be applied.

    A missing split is the maps' only one, and two thirds of the depth for `pop`, whose tail is 1 (POP as
    published; paper table 6).

    Raises:
        BadInput: see `resolve_arms`.
    """
    if arm.maps is not None and arm.kind != "ridge":
        raise BadInput(f"arm '{arm.label}' of kind {arm.kind} reads no maps", "leave its `maps` out")
    if arm.kind in ("exact", "none") and (arm.rows or arm.corrections or arm.splice):
        raise BadInput(
            f"arm '{arm.label}' has rows, corrections or a splice, which go with a fill; {arm.kind} is none",
            "use ridge or identity",
        )
    if arm.kind == "exact":
        return Arm(arm.label, "exact")
    if arm.kind == "ridge":
        fill = RidgeFill.load(maps_of(arm, maps), split=arm.split)
        split, tail = fill.split, arm.tail
    elif arm.kind == "pop":
        fill = RidgeFill.pop(n_layers) if arm.split is None else RidgeFill.identity(arm.split)
        split, tail = fill.split, arm.tail if arm.tail is not None else 1
    else:
        split = arm.split if arm.split is not None else _only_split(arm, maps)
        fill = RidgeFill.identity(split) if arm.kind == "identity" else RidgeFill.no_fill(split)
        tail = arm.tail
    if not 1 <= split < n_layers:
        raise BadInput(
            f"arm '{arm.label}' splits at layer {split}, and the model has layers 0 to {n_layers - 1}",
            f"choose a split from 1 to {n_layers - 1}",
        )
    return Arm(
        arm.label,
        arm.kind,
        split,
        tail,
        arm.sink_rows,
        fill,
        arm.maps,
        arm.rows,
        selectors_of(arm.rows),
        corrections_of(arm.corrections, arm.correction_rows),
        arm.splice,
    )


def maps_of(arm: ArmSettings, maps: Path | None) -> Path:
    """Where the maps of a ridge arm lie: the evaluation's, a candidate kept beside them, or its own.

    Raises:
        BadInput: there are none, or no candidate of that name.
    """
    if arm.maps is not None and "/" in arm.maps:
        return Path(arm.maps)
    if maps is None:
        raise BadInput(f"arm '{arm.label}' needs ridge maps", "name them with --maps")
    if arm.maps is None:
        return maps
    folder = maps / CANDIDATES
    if not (folder / arm.maps).exists():
        kept = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        raise BadInput(
            f"arm '{arm.label}' wants the maps of candidate {arm.maps!r}, which {folder} does not hold",
            f"kept there: {', '.join(kept)}"
            if kept
            else "solve with --keep-candidates, or give a path with a /",
        )
    return folder / arm.maps


def reach_of(arms: Sequence[Arm], task_tail: int) -> Reach:
    """Rows that some arm keeps exact in a task."""
    return Reach(
        tail=max([task_tail, *(arm.tail_of(task_tail) for arm in arms if arm.fill is not None)]),
        sink_rows=max(arm.reaches for arm in arms),
    )


def _only_split(arm: ArmSettings, maps: Path | None) -> int:
    if maps is None:
        raise BadInput(f"arm '{arm.label}' has no split", "give it one, or name maps with --maps")
    return RidgeFill.load(maps).split
