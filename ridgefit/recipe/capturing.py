"""Which model, which text, and what is summed over it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from ridgefit.recipe.base import Device, DType, Settings


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
