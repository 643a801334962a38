"""Settings of speculative decoding with a compressed draft cache: run, judge, calibrate and train it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from ridgefit.recipe.base import PathOrName, Settings
from ridgefit.recipe.idle import Idle, Written, as_option, refuse_idle

CACHE_KEYS = ("budget", "keep_ratio", "recent_share", "window", "observe", "kernel", "every")


class DraftCacheSettings(Settings):
    """How much of the draft's cache attention sees."""

    budget: int | None = Field(None, ge=2, description="cache columns that draft attention sees at most")
    keep_ratio: float | None = Field(None, gt=0, le=1, description="the budget as a share of the prompt")
    recent_share: float = Field(0.5, gt=0, le=1, description="share of the budget for the newest columns")
    window: int | None = Field(None, ge=1, description="newest columns in tokens instead of a share")
    observe: int = Field(64, ge=1, description="newest queries whose attention scores the rest")
    kernel: int = Field(5, ge=1, description="width of the average over neighbouring scores")
    every: int = Field(128, ge=1, description="committed tokens between periodic refreshes")
    select_from: Literal["full", "since"] = Field(
        "full", description="re-select from all that is stored, or from what is in sight and newer"
    )

    idle: ClassVar[tuple[Idle, ...]] = (
        Idle(("recent_share",), lambda s: s.window is not None, "beside a window, which takes its place"),
    )

    def require_read(
        self, unread: Iterable[str], policies: Sequence[str], written: Written = as_option
    ) -> None:
        """Refuse sizes that no policy reads.

        Args:
            unread: names of what none reads, as `runtime.draft.CacheSettings` has them.
            policies: their names.
            written: how a field is named.

        Raises:
            BadInput: naming those that are set.
        """
        names = ["select_from" if name == "candidates" else name for name in unread]
        which = "policy" if len(policies) == 1 else "policies"
        refuse_idle(self, names, f"with the {which} {', '.join(policies)}", written=written)

    def cache(self) -> dict[str, Any]:
        """Keyword arguments of `runtime.draft.CacheSettings`; an eighth of the prompt if nothing is said."""
        found: dict[str, Any] = {name: getattr(self, name) for name in CACHE_KEYS}
        found["candidates"] = self.select_from
        if self.budget is None and self.keep_ratio is None:
            found["keep_ratio"] = 0.125
        return found


class DraftGenerateSettings(DraftCacheSettings):
    """`ridgefit generate --draft`: what drafts, and how its cache is kept small."""

    draft: str = Field(
        description="draft model, 'self' for the target itself; 'none': the target alone, with the cache of "
        "--draft-policy and no verification"
    )
    draft_policy: str = Field("rift-stat", description="cache policy of the draft")
    controller: PathOrName | None = Field(
        None, description="frozen controller of `calibrate refresh`, or Hub name"
    )
    drafted: int = Field(5, ge=1, le=16, description="tokens drafted per round")

    idle: ClassVar[tuple[Idle, ...]] = (
        Idle(
            ("controller",), lambda s: s.draft_policy != "rift-ada", "without the policy rift-ada", "name it"
        ),
        Idle(("drafted",), lambda s: s.draft == "none", "without a draft", "name one"),
    )


class PromptSettings(DraftCacheSettings):
    """Prompts from text, and a draft."""

    draft: str = Field("self", description="draft model, 'self' for the target itself")
    data: tuple[str, ...] = Field(min_length=1, description="text files, as for calibration")
    prompt: tuple[int, ...] = Field(
        (1024,), min_length=1, description="prompt tokens; several are taken in turn"
    )
    per_document: int = Field(1, ge=1, description="prompts from each document at most")
    instruction: str | None = Field(None, description="ask for this after the text, in the chat template")
    text_field: str = Field("text", description="column that holds a document's text")
    new_tokens: int = Field(256, ge=2, description="output tokens at most")
    forced: bool = Field(
        False, description="go on after an end token (a stress run: the text gets repetitive)"
    )
    drafted: int = Field(5, ge=1, le=16, description="tokens drafted per round")
    temperature: float = Field(0.0, ge=0, description="of the output; 0 is greedy")
    workers: int = Field(1, ge=1, le=32, description="processes that share the prompts")


class _AcceptanceTask(Settings):
    """The word that begins the task on a command line stands before everything else."""

    task: Literal["acceptance"] = Field("acceptance", description="acceptance length of a draft")


class AcceptanceSettings(PromptSettings, _AcceptanceTask):
    """Acceptance length of a draft under cache policies."""

    policies: tuple[str, ...] = Field(
        ("full", "rift-stat", "rift-dyn", "snapkv", "swa", "streaming", "h2o", "random", "oracle"),
        min_length=1,
        description="cache policies, or all; full is always among them",
    )
    controller: PathOrName | None = Field(
        None, description="frozen controller of rift-ada, which it adds to the policies"
    )
    reference: str = Field("rift-dyn", description="policy that the others are also set against")
    loop: Literal["replay", "real"] = Field(
        "replay", description="replay the target's own text (the real loop's rounds), or decode for real"
    )
    standalone: bool = Field(
        False, description="also what the target itself says of its text under each policy, unverified"
    )
    needles: int = Field(
        0, ge=0, description="numbers hidden in so many prompts, that the target looks for under each policy"
    )
    bin: int = Field(64, ge=1, description="output tokens per step of the staleness curve")
    measure_every: int = Field(32, ge=1, description="output tokens between measurements of attention mass")


class CalibrateRefreshSettings(PromptSettings):
    """`ridgefit calibrate refresh`: a controller from traces, frozen, and tested once."""

    fit_share: float = Field(0.4, gt=0, lt=1, description="share of the documents for fitting")
    select_share: float = Field(
        0.2, gt=0, lt=1, description="share for selecting; what is left is for the one test"
    )
    interval: int = Field(32, ge=4, description="committed tokens between checks")
    horizon: int = Field(128, ge=8, description="tokens by which a refresh is judged in the fit")
    tolerance: float = Field(0.005, ge=0, description="share of the periodic policy's AL that may be lost")
    candidates_kept: int = Field(12, ge=1, description="controllers of each kind tried in closed loop")
    resamples: int = Field(2000, ge=100, description="bootstrap resamples behind each bound")
    fraction: float = Field(1.0, gt=0, le=1, description="share of the prompts, for small machines")
    seed: int = Field(0, ge=0, description="seed of gaps, folds and resamples")

    @model_validator(mode="after")
    def _three_parts(self) -> CalibrateRefreshSettings:
        if self.fit_share + self.select_share >= 1:
            raise ValueError("fit_share and select_share leave no document for the test")
        return self


class TrainDraftSettings(Settings):
    """`ridgefit train draft`: make a draft keep its aim under a compressed cache (RIFT section 5)."""

    target: str = Field(description="model to draft for; its rollouts and logits teach")
    data: tuple[str, ...] = Field(min_length=1, description="text files whose beginnings are prompts")
    text_field: str = Field("text", description="column that holds a document's text")
    prompt: int = Field(1024, ge=8, description="prompt tokens")
    rollout: int = Field(256, ge=2, description="tokens of the target's continuation that are trained on")
    prompts: int | None = Field(None, ge=1, description="first so many prompts; default: all")
    per_document: int = Field(4, ge=1, description="prompts from each document at most")
    masks: bool = Field(True, description="train under compressed attention; off is the control")
    least: float = Field(0.05, gt=0, le=1, description="smallest budget drawn, as a share of the prompt")
    most: float = Field(0.5, gt=0, le=1, description="largest budget drawn")
    skew: float = Field(2.0, gt=0, description="above 1 the draw is biased to high compression")
    recent_share: float = Field(0.5, gt=0, le=1, description="share of the budget for the newest columns")
    observe: int = Field(64, ge=1, description="last prompt queries that score the prompt")
    kernel: int = Field(5, ge=1, description="width of the average over neighbouring scores")
    method: Literal["full", "lora"] = Field("full", description="train every weight, or LoRA through peft")
    rank: int = Field(16, ge=1, description="rank of LoRA")
    steps: int = Field(200, ge=1, description="updates")
    batch: int = Field(4, ge=1, description="prompts per update")
    rate: float = Field(1e-4, gt=0, description="peak learning rate")
    distil: float = Field(0.9, ge=0, le=1, description="share of the loss that follows the target's logits")
    temperature: float = Field(0.0, ge=0, description="of the target's rollouts; 0 is greedy")
    seconds: float | None = Field(None, gt=0, description="end the schedule after so long")
    seed: int = Field(0, ge=0, description="seed of draws and order")

    idle: ClassVar[tuple[Idle, ...]] = (
        Idle(("rank",), lambda s: s.method == "full", "where every weight is trained", "use method lora"),
    )

    @model_validator(mode="after")
    def _least_is_least(self) -> TrainDraftSettings:
        if self.least > self.most:
            raise ValueError(f"the smallest budget {self.least:g} is above the largest, {self.most:g}")
        return self
