"""Arms x tasks, and a whole run from text to report."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field, model_validator

from ridgefit.recipe.arms import ArmSettings
from ridgefit.recipe.base import Settings
from ridgefit.recipe.capturing import CaptureSettings, DataSettings, ModelSettings
from ridgefit.recipe.drafting import AcceptanceSettings
from ridgefit.recipe.idle import Idle
from ridgefit.recipe.solving import SolveSettings
from ridgefit.recipe.tasks import FillTask, Task


class EvalSettings(Settings):
    """Arms x tasks, every arm paired with exact in the same process."""

    arms: tuple[ArmSettings, ...] = Field((), description="arms, each paired with exact; not for acceptance")
    sink_effect: bool = Field(
        True, description="beside each plain ridge arm, the same with 4 exact first rows: what they are worth"
    )
    auto_rows: bool = Field(
        False,
        description="beside each plain ridge arm, every selector of rows with random rows of the same count, "
        "and which of them pays",
    )
    auto_share: float = Field(0.1, gt=0, le=1, description="auto-rows: rows, as a share of the prompt")
    tasks: tuple[Task, ...] = Field(
        min_length=1,
        description="nll, needle, needle-two-turn, agreement, copying, acceptance, with their settings",
    )
    batch: int = Field(1, ge=1, description="samples scored at once; more suit a GPU")
    fraction: float = Field(1.0, gt=0, le=1, description="share of each task's samples, for small machines")
    resamples: int = Field(5000, ge=100, description="bootstrap resamples behind each interval")
    seed: int = Field(0, ge=0, description="seed of prompts and resamples")

    idle: ClassVar[tuple[Idle, ...]] = (
        Idle(("auto_share",), lambda s: not s.auto_rows, "without auto_rows", "set it"),
        Idle(
            ("sink_effect", "auto_rows", "batch"),
            lambda s: not s.fill_tasks,
            "with acceptance, which judges drafts one prompt at a time",
        ),
    )

    @property
    def fill_tasks(self) -> tuple[FillTask, ...]:
        """Tasks that judge arms."""
        return tuple(task for task in self.tasks if not isinstance(task, AcceptanceSettings))


class RunRecipe(Settings):
    """`ridgefit run`: capture, solve, quantize, verify, eval and report in one work folder."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        examples=["qwen3-8b"],
        description="name of the run, in its report",
    )
    work: Path = Field(description="folder that holds every stage's result")
    model: ModelSettings
    data: DataSettings
    capture: CaptureSettings
    solve: SolveSettings = SolveSettings()
    quantize: bool = Field(True, description="also write int8 maps")
    evaluate: EvalSettings

    @model_validator(mode="after")
    def _features_are_captured(self) -> RunRecipe:
        if any(isinstance(task, AcceptanceSettings) for task in self.evaluate.tasks):
            raise ValueError("a run judges arms; measure acceptance by `ridgefit eval`")
        named = () if self.solve.auto else self.solve.features or ()
        for name in (*named, *(name for c in self.solve.candidates for name in c.features)):
            if name not in self.capture.features:
                raise ValueError(f"solve reads the feature {name!r}, which capture.features leaves out")
        if self.solve.auto and self.capture.features == ("state",):
            raise ValueError("solve.features is auto, and capture.features holds the state alone")
        if self.capture.shard is not None:
            raise ValueError("a run reads all of the text: leave capture.shard out, or capture by itself")
        if self.solve.drop_lead and not self.capture.lead:
            raise ValueError(
                "solve.drop_lead leaves out the first positions, of which capture.lead keeps none"
            )
        kept = self.solve.compares and self.solve.keep_candidates
        for arm in self.evaluate.arms:
            if arm.maps is not None and "/" not in arm.maps and not kept:
                raise ValueError(f"arm '{arm.label}' needs solve.candidates and solve.keep_candidates")
        return self

    @model_validator(mode="after")
    def _arms_have_maps(self) -> RunRecipe:
        for arm in self.evaluate.arms:
            several = arm.split is None and len(self.capture.split) > 1
            if arm.kind == "ridge" and (several or arm.split not in (None, *self.capture.split)):
                captured = ", ".join(map(str, self.capture.split))
                raise ValueError(f"ridge arm '{arm.label}' needs one of the captured splits, {captured}")
        return self
