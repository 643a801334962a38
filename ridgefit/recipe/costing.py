"""Settings of what an arm costs: counted from a config, or timed."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator

from ridgefit.recipe.base import ArmKind, Device, DType, PathOrName, Settings
from ridgefit.recipe.idle import Idle
from ridgefit.recipe.rows import RowsField
from ridgefit.recipe.solving import LAYERS_PATTERN, CandidateSettings, each_once


class MapReadsSettings(Settings):
    """What the maps of a ridge arm read of a row."""

    features: tuple[str, ...] = Field(
        ("state",), min_length=1, description="what a map reads: state, previous-1, mlp, …"
    )
    rank: int | None = Field(
        None, ge=1, description="width of one bottleneck for all features but the state; default: none"
    )
    layers: str = Field(
        "all",
        pattern=LAYERS_PATTERN,
        examples=["all", "first:5", "16-20"],
        description="late layers that read more than the state: all, first:5 above the split, or 16-20",
    )

    @field_validator("features")
    @classmethod
    def _each_once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return each_once(names)

    @property
    def plain(self) -> bool:
        """Whether nothing but the state is named."""
        return (self.features, self.rank, self.layers) == (("state",), None, "all")

    @property
    def reads(self) -> CandidateSettings:
        """The same as one candidate of `solve`."""
        return CandidateSettings(features=self.features, rank=self.rank, layers=self.layers)


class PlanSettings(MapReadsSettings):
    """`ridgefit plan`: what an arm costs, from a config alone."""

    model: str = Field(
        description="local folder, config.json, preset such as qwen3-8b, or Hub name 'org/name[@revision]'"
    )
    split: int | None = Field(None, description="first late layer; default: suggested from QK-norm")
    tail: int | None = Field(None, description="last prompt rows that run every layer; default: suggested")
    tokens: int = Field(16384, description="prompt tokens")
    arm: ArmKind = Field("ridge", description="what the late layers of a prefix row compute")
    sink_rows: int = Field(0, ge=0, description="first prompt rows that run every layer")
    map_width: int | None = Field(
        None, ge=1, description="what a map reads per row, if not what its features have"
    )
    calibration_tokens: int = Field(400_000, ge=1, description="tokens of text that a capture reads")
    rate: float | None = Field(
        None, gt=0, description="the machine's 10^12 multiply-accumulates per second; gives seconds"
    )
    memory: float | None = Field(None, gt=0, description="GiB of the device; refuse what does not fit")

    idle: ClassVar[tuple[Idle, ...]] = (
        Idle(
            ("split", "tail", "sink_rows"),
            lambda s: s.arm == "exact",
            "for the exact arm, which fills nothing",
        ),
        Idle(("sink_rows",), lambda s: s.arm == "pop", "for the pop arm, which has none"),
    )


class BenchPrefillSettings(MapReadsSettings):
    """`ridgefit bench prefill`: exact and its arms side by side in one process."""

    preset: str = Field("cpu", description="dimensions of the random-weight model")
    model: str | None = Field(
        None,
        description="a model with its own weights instead: folder, bundled:llama or Hub name",
    )
    maps: PathOrName | None = Field(
        None, description="the model's maps instead of random ones, as for generate"
    )
    split: tuple[int, ...] = Field((), description="split layers; default: the maps' or from QK-norm")
    tail: tuple[int, ...] = Field(
        (), description="tail lengths; default: the maps' or suggested from the prompt length"
    )
    tokens: tuple[int, ...] = Field((), description="prompt lengths; default: what suits preset or device")
    arms: tuple[Literal["identity", "ridge", "pop"], ...] = Field(
        ("identity", "ridge", "pop"), min_length=1, description="arms timed beside exact"
    )
    sink_rows: int | None = Field(
        None, ge=0, description="first prompt rows that run every layer; default: the maps' or 0"
    )
    rows: RowsField = Field(
        (),
        description="selectors of exact prefix rows, timed beside each plain fill; tokens are random",
    )
    repeats: int = Field(5, ge=1, description="timed rounds, each of which runs every arm once")
    warmup: int = Field(1, ge=0, description="rounds before the timed ones")
    vocab: int | None = Field(None, ge=2, description="a smaller vocabulary, to save memory")
    dtype: DType | Literal["auto"] = Field("auto", description="compute dtype; auto is the preset's")
    device: Device = Field("auto", description="auto takes CUDA when there is one")
    attention: Literal["sdpa", "eager", "flash_attention_2"] = Field(
        "sdpa", description="transformers' attention implementation"
    )
    seed: int = Field(0, ge=0, description="seed of weights, maps and tokens")

    idle: ClassVar[tuple[Idle, ...]] = (
        Idle(("preset",), lambda s: s.model is not None, "beside a model with its own weights"),
        Idle(
            ("split", "tail", "sink_rows", "maps", "rows"),
            lambda s: set(s.arms) == {"pop"},
            "for the pop arm, which has its own split and tail, no maps and no further rows",
            "time identity or ridge",
        ),
        Idle(
            ("features", "rank", "layers"),
            lambda s: "ridge" not in s.arms,
            "without the ridge arm, whose maps they describe",
            "time ridge",
        ),
    )
