"""What `evaluation.json` holds: frozen models, so that a result can be read back and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from ridgefit.errors import BadInput
from ridgefit.files import read_json

EVALUATION = "evaluation.json"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Difference(_Part):
    """A mean of `n` units' paired differences with its two-sided 95 % interval; no ends with a single one."""

    mean: float
    low: float | None
    high: float | None
    n: int


class ArmScore(_Part):
    """One measure of one arm.

    Attributes:
        arm: label.
        n: units that score this measure; a sample is a unit of its own unless it is part of a larger one.
        mean: over units, each weighted alike, of the mean over the unit's samples that score it.
        wilson: two-sided 95 % interval of the mean, where samples score 0 or 1.
        difference: arm minus exact, paired; None for the exact arm.
        floor: share of failures that n flawless samples cannot rule out, where samples score 0 or 1 or
            all shares differ alike.
        bound: one-sided 95 % bound of the difference on the harmful side: lower for measures where more
            is better (the more conservative of the bootstrap's and -floor), upper for losses; None where
            equal differences give a loss no width.
    """

    arm: str
    n: int
    mean: float
    wilson: tuple[float, float] | None = None
    difference: Difference | None = None
    floor: float | None = None
    bound: float | None = None


class Contrast(_Part):
    """One arm minus another, paired."""

    arm: str
    against: str
    difference: Difference


class Removed(_Part):
    """How much of what `against` loses to exact an arm gives back: 1 is all of it, below 0 is more loss.

    The ratio of two means over the same `n` units, with its two-sided 95 % interval; no share at all where
    `against` loses nothing that can be told from zero.
    """

    arm: str
    against: str
    share: float | None
    low: float | None
    high: float | None
    n: int


class MeasureResult(_Part):
    """One measure over all arms."""

    name: str
    title: str
    unit: Literal["nats", "share"]
    better: Literal["lower", "higher"]
    arms: tuple[ArmScore, ...]
    contrasts: tuple[Contrast, ...]
    removed: tuple[Removed, ...] = ()

    def arm(self, label: str) -> ArmScore | None:
        """Score of one arm, None where no sample scored it."""
        return next((score for score in self.arms if score.arm == label), None)


class Skipped(_Part):
    """A document that gave no sample."""

    sample: str
    reason: str


class TaskResult(_Part):
    """One task over all arms.

    Attributes:
        name: label, unique within the evaluation.
        task_sha256: hash of the settings.
        prompts_sha256: hash over every sample's id, prompt and target, in order.
        settings: as in the recipe.
        samples: number scored.
        groups: units per domain.
        counts: totals over samples (novel and key tokens).
        skipped: what gave no sample, and why.
        rows_chosen: by arm, prefix rows that its selectors chose, mean over prompts.
        measures: in the task's order; a measure that no sample scores is absent.
        macs: multiply-accumulates of prefilling a prompt, by arm, the exact prefill being 1; of the arms
            whose cost a prompt's length tells.
    """

    name: str
    task_sha256: str
    prompts_sha256: str
    settings: dict[str, Any]
    samples: int
    groups: dict[str, int]
    counts: dict[str, int]
    skipped: tuple[Skipped, ...]
    rows_chosen: dict[str, float] = {}
    measures: tuple[MeasureResult, ...]
    macs: dict[str, float] = {}

    @property
    def units(self) -> int:
        """Number of units; that of samples unless several samples are parts of one unit."""
        return sum(self.groups.values())

    @property
    def counted(self) -> str:
        """What `n` counts, as a word: sample or unit."""
        return "sample" if self.units == self.samples else "unit"

    def measure(self, name: str) -> MeasureResult | None:
        """One measure by name."""
        return next((measure for measure in self.measures if measure.name == name), None)


class RowsTrial(_Part):
    """One selector against as many random rows, on the first measure of every task.

    Attributes:
        arm: label.
        control: label of the arm with random rows.
        selector: as a person would write it.
        rows: rows chosen, mean over prompts and tasks.
        pays: whether it beats random rows somewhere and harms nowhere, intervals excluding zero.
        gives_back: share of the fill's loss that it removes, mean over tasks; 0 where there is no loss.
        tasks: names of the tasks.
        against_random: arm minus control, by task.
        against_base: arm minus the fill without rows, by task.
    """

    arm: str
    control: str
    selector: str
    rows: float
    pays: bool
    gives_back: float
    tasks: tuple[str, ...]
    against_random: tuple[Difference, ...]
    against_base: tuple[Difference, ...]


class RowsChoice(_Part):
    """The selector that pays for one arm; `chosen` is None and `rows` empty where none does.

    `rows` are settings that a recipe's arm takes as they are.
    """

    base: str
    chosen: str | None
    rows: tuple[dict[str, Any], ...]
    trials: tuple[RowsTrial, ...]

    @property
    def sentence(self) -> str:
        """What was found, in one sentence."""
        if self.chosen is None:
            return f"rows for '{self.base}': none of {len(self.trials)} selectors beats as many random rows."
        best = next(trial for trial in self.trials if trial.arm == self.chosen)
        return (
            f"rows for '{self.base}': {best.selector} pays ({best.rows:.0f} rows a prompt, "
            f"{100 * best.gives_back:.0f} % of the loss given back)."
        )


class ArmDescription(_Part):
    """An arm as it was run; `tail` is None where each task's own applies, `maps` where the evaluation's."""

    label: str
    kind: str
    split: int | None
    tail: int | None
    sink_rows: int
    maps: str | None = None
    rows: str = ""
    corrections: str = ""
    splice: Literal["keys", "values", "both"] | None = None


class EvalResult(_Part):
    """A whole evaluation.

    Attributes:
        format: version of this file.
        identity: model, maps, dtype, device, attention backend, versions and settings behind it.
        arms: in order, exact first.
        tasks: in the recipe's order.
        warnings: sentences a reader must see.
        rows_choices: which rows pay, for each plain ridge arm, where it was asked.
    """

    format: Literal["ridgefit-evaluation-1"] = "ridgefit-evaluation-1"
    identity: dict[str, Any]
    arms: tuple[ArmDescription, ...]
    tasks: tuple[TaskResult, ...]
    warnings: tuple[str, ...]
    rows_choices: tuple[RowsChoice, ...] = ()


def load_result(folder: Path) -> EvalResult:
    """The result of a finished evaluation, from its folder or its `evaluation.json`.

    Raises:
        BadInput: the file is missing, damaged or of another format.
    """
    path = folder / EVALUATION if folder.is_dir() else folder
    if not path.is_file():
        raise BadInput(
            f"{folder} holds no finished evaluation", "run `ridgefit eval` with this --out to its end"
        )
    try:
        return EvalResult.model_validate(read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"{path} is not an evaluation of this version ({where}: {first['msg']})") from error
