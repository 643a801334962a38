"""Settings of recall policies: what one does, how it is calibrated, how it is judged."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from ridgefit.recipe.base import PathOrName, Settings
from ridgefit.recipe.idle import Idle


class CalibrateRecallSettings(Settings):
    """`ridgefit calibrate recall`: thresholds from text, frozen into a policy that has met its target."""

    data: tuple[str, ...] = Field(
        min_length=1,
        description="JSONL, text or parquet files, folders of them, 'hub:org/name', or 'bundled:calibration'",
    )
    text_field: str = Field("text", description="column that holds a document's text")
    tokens: int = Field(4096, ge=64, description="tokens of a document that are read before rows close")
    queries: int = Field(64, ge=1, description="tokens after them whose queries calibrate")
    contexts: int = Field(32, ge=2, description="documents used, the first that are long enough")
    held_out: float = Field(0.4, gt=0, lt=1, description="share of the documents that only judge")
    selector: str = Field("branch", description="what ranks rows; branch is VestigeKV's")
    ratio: float = Field(32.0, gt=0, description="closed rows per kept row, at least 1")
    rows: int | None = Field(None, ge=1, description="a fixed number of kept rows instead")
    kappa: int = Field(16, ge=1, description="rFFT bins that count as low-pass, the mean included")
    window: Literal["block", "prefix"] = Field(
        "block", description="close rows in blocks, or a prompt at once"
    )
    block: int = Field(4096, ge=2, description="rows of a block")
    sinks: int = Field(4, ge=0, description="first rows, always kept")
    recent: int = Field(0, ge=0, description="newest rows that never close")
    rank: int = Field(64, ge=1, description="width of the sketch of a row's latent")
    top_rows: int | None = Field(None, ge=1, description="rows one head may ask for in a step; default: any")
    cap: int = Field(4096, ge=0, description="rows fetched in a step above which it attends to everything")
    placement: Literal["device", "host"] = Field("device", description="where archived rows lie")
    thresholds: Literal["policy", "prompt"] = Field(
        "policy", description="freeze thresholds, or let each request find its own from its prompt"
    )
    target: float = Field(0.90, gt=0, lt=1, description="share of hard queries whose best row is fetched")
    conformal: Literal["max1", "true"] = Field(
        "max1", description="calibrate against the best kept row, or against the row's own score"
    )
    z_max: float = Field(8.0, gt=0, description="largest certificate factor")
    gate: bool = Field(True, description="spare heads whose attention is concentrated the scan")
    gate_off: float = Field(0.60, ge=0, le=1, description="share of scanning queries that opens the gate")
    control: bool = Field(False, description="a control arm: accept a rotated branch")
    seed: int = Field(0, ge=0, description="seed of the random selector")

    idle: ClassVar[tuple[Idle, ...]] = (
        Idle(("gate_off",), lambda s: not s.gate, "without the gate"),
        Idle(
            ("held_out",),
            lambda s: s.thresholds == "prompt",
            "where each prompt finds its own thresholds and every document judges",
        ),
    )


class RecallEvalSettings(Settings):
    """`ridgefit eval --policy`: recall policies and their baselines against the dense model."""

    policy: tuple[PathOrName, ...] = Field(
        min_length=1, description="folders of `ridgefit calibrate recall`, one per ratio"
    )
    selectors: tuple[str, ...] = Field((), description="judged with recall off; default: all there are")
    recall_selectors: tuple[str, ...] = Field(
        ("branch", "streaming", "random"), description="judged with recall on, thresholds from each prompt"
    )
    trials: int = Field(24, ge=0, description="needle prompts")
    needle_tokens: int = Field(1024, ge=64, description="tokens of a needle prompt before its question")
    needles: int = Field(1, ge=1, le=8, description="numbers hidden in a needle prompt; one is asked for")
    haystack: str = Field("noise", description="'noise', or a text or JSONL file")
    data: tuple[str, ...] = Field((), description="text files for continuation loss and attention mass")
    text_field: str = Field("text", description="column that holds a document's text")
    document_tokens: int = Field(1024, ge=64, description="tokens of a document before its continuation")
    continuation: int = Field(128, ge=1, description="tokens scored after them")
    documents: int = Field(12, ge=1, description="documents scored at most")
    intact: float = Field(1.0, gt=0, description="nats by which an intact answer's loss may rise, below")
    seed: int = Field(0, ge=0, description="seed of prompts and of the bootstrap")

    idle: ClassVar[tuple[Idle, ...]] = (
        Idle(
            ("needle_tokens", "needles", "haystack", "intact"),
            lambda s: not s.trials,
            "without needle prompts",
            "set trials",
        ),
        Idle(
            ("text_field", "document_tokens", "continuation", "documents"),
            lambda s: not s.data,
            "without documents",
            "name data",
        ),
    )

    @model_validator(mode="after")
    def _something_to_judge(self) -> RecallEvalSettings:
        if not self.trials and not self.data:
            raise ValueError("nothing to judge: give --trials, or documents with --data")
        return self
