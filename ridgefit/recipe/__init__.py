"""The settings behind every command and every YAML recipe: frozen, checked, unknown keys refused.

One model per concern. The command line is generated from these classes (field name -> `--field-name`,
`description` -> help), so a recipe key and an option cannot drift apart.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from ridgefit.recipe.arms import ArmSettings as ArmSettings
from ridgefit.recipe.base import ArmKind as ArmKind
from ridgefit.recipe.base import Device as Device
from ridgefit.recipe.base import DType as DType
from ridgefit.recipe.base import PathOrName as PathOrName
from ridgefit.recipe.base import Settings as Settings
from ridgefit.recipe.costing import BenchPrefillSettings as BenchPrefillSettings
from ridgefit.recipe.costing import MapReadsSettings as MapReadsSettings
from ridgefit.recipe.costing import PlanSettings as PlanSettings
from ridgefit.recipe.drafting import AcceptanceSettings as AcceptanceSettings
from ridgefit.recipe.drafting import CalibrateRefreshSettings as CalibrateRefreshSettings
from ridgefit.recipe.drafting import DraftGenerateSettings as DraftGenerateSettings
from ridgefit.recipe.drafting import TrainDraftSettings as TrainDraftSettings
from ridgefit.recipe.idle import Idle as Idle
from ridgefit.recipe.idle import refuse_idle as refuse_idle
from ridgefit.recipe.idle import require_used as require_used
from ridgefit.recipe.recall import CalibrateRecallSettings as CalibrateRecallSettings
from ridgefit.recipe.recall import RecallEvalSettings as RecallEvalSettings
from ridgefit.recipe.rows import RowsField
from ridgefit.recipe.solving import CandidateSettings as CandidateSettings
from ridgefit.recipe.solving import SolveSettings as SolveSettings

NEEDLE_PROMPT = 64
"""Tokens that a prompt must have at least for numbers to be hidden in it."""


class ModelSettings(Settings):
    """Which model, and how it is loaded."""

    model: str = Field(description="local folder, 'bundled:llama', or a Hub name 'org/name[@revision]'")
    dtype: DType | Literal["auto"] = Field("auto", description="compute dtype; auto is the checkpoint's own")
    device: Device = Field("auto", description="auto takes CUDA when there is one")
    attention: Literal["sdpa", "eager", "flash_attention_2"] = Field(
        "sdpa", description="transformers' attention implementation"
    )
    trust_remote_code: bool = Field(False, description="run Python code that the model repository ships")

    def load_options(self) -> dict[str, Any]:
        """Keyword arguments of `ridgefit.models.load_model`."""
        return {"ref": self.model, **self.model_dump(exclude={"model"})}


class DataSettings(Settings):
    """Calibration text, and how it becomes a frozen token manifest."""

    data: tuple[str, ...] = Field(
        min_length=1,
        description="JSONL, text or parquet files, folders of them, 'hub:org/name', or 'bundled:calibration'",
    )
    text_field: str = Field("text", description="column that holds a document's text")
    messages_field: str = Field("messages", description="column that holds chat turns, if present")
    window: int = Field(2048, ge=2, description="longest window in tokens; longer documents give several")
    min_tokens: int = Field(16, ge=2, description="documents shorter than this are dropped and counted")
    max_windows: int | None = Field(None, ge=1, description="keep this many windows, chosen by hash")
    held_out: float = Field(
        0.1, gt=0, lt=1, description="share of documents kept back for choosing the penalty"
    )
    max_document_tokens: int = Field(262_144, ge=2, description="longer documents are cut here, and counted")


class CaptureSettings(Settings):
    """Streaming moments of the split states and the late layers' inputs."""

    split: tuple[int, ...] = Field(min_length=1, description="split layers; several cost one pass")
    features: tuple[str, ...] = Field(("state",), min_length=1, description="what a map reads, in order")
    precision: Literal["auto", "fp64", "fast"] = Field(
        "auto", description="product precision: fp64, or fp32 products with fp64 sums (fast)"
    )
    lead: int = Field(4, ge=0, description="first positions of each window whose sums are kept apart")
    batch: int = Field(1, ge=1, description="windows per forward pass; part of the result's identity")
    checkpoint_every: int | None = Field(
        None, ge=1, description="windows between checkpoints; default: 16, or more where saving takes long"
    )
    workers: int = Field(1, ge=1, le=8, description="processes on this machine; does not change a byte")
    shard: str | None = Field(
        None, pattern=r"^\d+/\d+$", examples=["2/4"], description="i/n: this machine's part of the work"
    )
    resume: bool = Field(False, description="go on from the last checkpoint in --out")


class NllSettings(Settings):
    """Loss after the prompt on novel and key tokens (paper section 3.1)."""

    task: Literal["nll"] = Field("nll", description="loss after the prompt")
    data: tuple[str, ...] = Field(min_length=1, description="text files, as for calibration")
    prompt: int = Field(3584, ge=2, description="prompt tokens")
    tail: int = Field(1024, ge=1, description="last prompt rows that run every layer")
    scored: int = Field(256, ge=1, description="tokens scored after the prompt")
    stretches: int = Field(
        1, ge=1, description="consecutive stretches of prompt + scored tokens taken from each document"
    )
    documents: int | None = Field(None, ge=1, description="first N documents")
    text_field: str = Field("text", description="column that holds a document's text")

    @model_serializer(mode="wrap")
    def _one_stretch_goes_unsaid(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Results from before there were stretches keep their hash, so that they can be gone on with."""
        saved: dict[str, Any] = plain(self)
        return {name: value for name, value in saved.items() if name != "stretches" or self.stretches > 1}


class NeedleSettings(Settings):
    """Retrieval of numbers hidden in the filled region."""

    task: Literal["needle"] = Field("needle", description="retrieval from the filled region")
    prompt: int = Field(2048, ge=NEEDLE_PROMPT, description="prompt tokens")
    tail: int = Field(512, ge=1, description="last prompt rows that run every layer")
    samples: int = Field(12, ge=1, description="prompts")
    needles: int = Field(1, ge=1, le=16, description="numbers hidden; one is asked for")
    haystack: str = Field("noise", description="'noise', or a text or JSONL file")
    new_tokens: int = Field(
        128, ge=1, description="answer budget (RULER's is 128); an answer also ends once it is right"
    )
    chat: bool | None = Field(None, description="use the chat template; default: if the tokenizer has one")


class NeedleTwoTurnSettings(Settings):
    """A second question to a cache that was filled once, for the first (paper appendix D)."""

    task: Literal["needle-two-turn"] = Field("needle-two-turn", description="a second question of one cache")
    prompt: int = Field(2048, ge=NEEDLE_PROMPT, description="prompt tokens, the first question among them")
    tail: int = Field(512, ge=1, description="last prompt rows that run every layer")
    samples: int = Field(12, ge=1, description="prompts")
    needles: int = Field(2, ge=2, le=16, description="numbers hidden; two are asked for, one after the other")
    haystack: str = Field("noise", description="'noise', or a text or JSONL file")
    new_tokens: int = Field(128, ge=1, description="answer budget")
    chat: bool | None = Field(None, description="use the chat template; default: if the tokenizer has one")

    @property
    def scored(self) -> int:
        """Room to leave behind the prompt: the first answer, the second question and its answer."""
        return 128 + self.new_tokens


class AgreementSettings(Settings):
    """Greedy agreement and KL along the exact arm's continuation."""

    task: Literal["agreement"] = Field("agreement", description="agreement with the exact arm")
    data: tuple[str, ...] = Field(min_length=1, description="text files, as for calibration")
    prompt: int = Field(3584, ge=2, description="prompt tokens")
    tail: int = Field(1024, ge=1, description="last prompt rows that run every layer")
    new_tokens: int = Field(64, ge=1, description="length of the exact arm's continuation")
    documents: int | None = Field(None, ge=1, description="first N documents")
    text_field: str = Field("text", description="column that holds a document's text")


class CopyingSettings(Settings):
    """Copying of random strings that lie in the filled region, token by token."""

    task: Literal["copying"] = Field("copying", description="copying of random strings")
    prompt: int = Field(1024, ge=64, description="prompt tokens")
    tail: int = Field(256, ge=1, description="last prompt rows that run every layer")
    samples: int = Field(16, ge=1, description="prompts")
    strings: Literal["mixed", "words", "numbers", "tokens"] = Field(
        "mixed",
        description="random letters and digits, numbers in sentences, tokens of the vocabulary; mixed takes "
        "words and numbers in turn",
    )
    length: int = Field(32, ge=4, description="tokens of a string of words or tokens")
    asked: int = Field(4, ge=1, le=16, description="strings that come again after the prompt")
    cue: int = Field(8, ge=1, description="first tokens of a repeated string, which are not scored")

    idle: ClassVar[tuple[Idle, ...]] = (
        Idle(("length", "cue"), lambda s: s.strings == "numbers", "for numbers, which have their own"),
    )

    @model_validator(mode="after")
    def _something_is_scored(self) -> CopyingSettings:
        if self.cue >= self.length:
            raise ValueError("a string must be longer than its cue")
        return self

    @property
    def scored(self) -> int:
        """Room to leave behind the prompt; a number with its question takes less than 64 tokens."""
        return self.asked * max(self.length, 64)


FillTask = NllSettings | NeedleSettings | NeedleTwoTurnSettings | AgreementSettings | CopyingSettings
Task = Annotated[FillTask | AcceptanceSettings, Field(discriminator="task")]


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


class PushSettings(Settings):
    """`ridgefit push`: maps made into a repository, judged, and published in one commit."""

    maps: Path = Field(
        description="maps folder, source file, format-1 folder, recall policy, refresh controller, or a "
        "repository made before"
    )
    repo: str = Field(description="Hub name 'org/name'")
    revision: str = Field("main", description="branch that moves; made from main if it is new")
    tag: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        examples=["v1"],
        description="tag to set on the commit",
    )
    private: bool = Field(False, description="make a new repository private")
    pr: bool = Field(False, description="open a pull request instead of moving the branch")
    dry_run: bool = Field(False, description="judge everything and list files and sizes; send nothing")
    evaluation: Path | None = Field(None, description="folder of `ridgefit eval` on these maps, for the card")
    bench: Path | None = Field(
        None, description="JSON of `ridgefit bench prefill` with these maps, for the card"
    )
    base_model: str | None = Field(
        None, description="org/name@<40 hex digits>, where the fit did not record them"
    )
    license: str | None = Field(None, description="licence; default: the base model's")
    datasets: tuple[str, ...] = Field((), description="Hub data sets of the card; default: from provenance")
    keep_card: bool = Field(False, description="leave a README.md that is on the Hub as it is")
    out: Path | None = Field(None, description="also keep the repository that is built, in this folder")


class PullSettings(Settings):
    """`ridgefit pull`: a repository, or some of its splits, with every hash compared."""

    repo: str = Field(description="Hub name 'org/name[@revision]'")
    split: tuple[int, ...] = Field((), description="only these splits; default: all")
    out: Path | None = Field(None, description="copy the files there; default: the Hub's cache")
