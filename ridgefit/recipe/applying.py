"""Maps on a model: tried, and at work."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field, model_validator

from ridgefit.recipe.base import ArmKind, PathOrName, Settings
from ridgefit.recipe.idle import Idle
from ridgefit.recipe.rows import RowsField


class VerifySettings(Settings):
    """`ridgefit verify`: files alone, or with a model the promises a fill makes."""

    maps: PathOrName = Field(
        description="maps folder, source file, format-1 folder, recall policy, refresh controller or Hub name"
    )
    split: int | None = Field(None, ge=1, description="which split to try on the model; default: all")
    prompt: int = Field(96, ge=2, description="random prompt tokens of the model checks")
    tail: int = Field(24, ge=1, description="exact rows of the model checks")
    seed: int = Field(0, ge=0, description="seed of the random prompt")


class DoctorSettings(Settings):
    """`ridgefit doctor`: can this model be fitted here."""

    needle_prompt: int = Field(1024, ge=64, description="tokens of the needle prompts the exact model reads")
    needle_samples: int = Field(4, ge=0, description="needle prompts; 0 skips them")
    seed: int = Field(0, ge=0, description="seed of the needle prompts")

    idle: ClassVar[tuple[Idle, ...]] = (
        Idle(("needle_prompt",), lambda s: not s.needle_samples, "without needle prompts"),
    )


class GenerateSettings(Settings):
    """`ridgefit generate`: text with an arm applied, and the time to the first token."""

    prompt: str | None = Field(None, description="prompt text")
    prompt_file: Path | None = Field(None, description="UTF-8 file that holds the prompt")
    chat: bool = Field(False, description="put the prompt into the chat template as a user's turn")
    maps: PathOrName | None = Field(None, description="maps folder, source file, format-1 folder or Hub name")
    policy: PathOrName | None = Field(None, description="recall policy folder, in place of maps")
    arm: ArmKind = Field("ridge", description="what the late layers of a prefix row compute")
    split: int | None = Field(None, ge=1, description="split layer; default: the maps' only one")
    tail: int | None = Field(None, ge=1, description="last prompt rows that run every layer")
    sink_rows: int | None = Field(None, ge=0, description="first prompt rows that run every layer")
    rows: RowsField = Field((), description="selectors of further prefix rows that run every layer")
    new_tokens: int = Field(64, ge=1, description="tokens to generate at most")
    prefill_chunk: int | None = Field(
        None, ge=1, description="read the prompt in parts of so many tokens, to save memory"
    )
    temperature: float = Field(0.0, ge=0, description="0 is greedy")
    seed: int = Field(0, ge=0, description="seed of sampling")

    idle: ClassVar[tuple[Idle, ...]] = (
        Idle(
            ("split", "tail", "sink_rows"),
            lambda s: s.arm == "exact",
            "with the exact arm, which fills nothing",
        ),
        Idle(("maps",), lambda s: s.arm in ("exact", "pop"), "with an arm that reads none", "use arm ridge"),
        Idle(
            ("maps",),
            lambda s: s.arm in ("none", "identity") and s.split is not None,
            "with an arm that reads none and has a split",
            "use arm ridge",
        ),
    )

    @model_validator(mode="after")
    def _one_prompt(self) -> GenerateSettings:
        if (self.prompt is None) == (self.prompt_file is None):
            raise ValueError("give either --prompt or --prompt-file")
        return self
