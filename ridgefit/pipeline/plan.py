"""What an arm costs and saves, before anything is loaded: from a model's config alone."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from ridgefit import cost
from ridgefit.errors import BadInput
from ridgefit.files import names_a_path, read_json
from ridgefit.recipe import PlanSettings, require_used

if TYPE_CHECKING:
    from ridgefit.pipeline.map_reads import MapReads

_BUNDLED = Path(__file__).parents[1] / "bundled"
_WINDOW = 2048
_GIB = 2**30


class Plan(BaseModel):
    """Costs of one arm. Bytes are bytes, `macs` are multiply-accumulates, `seconds` follow a given rate."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    arm: str
    split: int | None
    tail: int | None
    sink_rows: int
    tokens: int
    reads: str | None
    macs: dict[str, int]
    speedup_limit: float
    cheaper_than_pop_above: int | None
    map_bytes: int
    map_bytes_int8: int
    model_bytes: int
    cache_bytes: int
    cache_bytes_per_token: int
    capture: dict[str, int]
    seconds: dict[str, float] | None
    suggestion: cost.Suggestion
    shape: dict[str, Any]


def plan(settings: PlanSettings) -> Plan:
    """Multiply-accumulates, speedup limit and bytes of an arm on a model.

    Args:
        settings: the model by folder, config file, preset or Hub name, and the arm.

    Raises:
        BadInput: settings that would do nothing, there is no such config, its family is unknown, the split or
            the tail cannot be, or the model does not fit the memory given.
    """
    require_used(settings)
    shape = cost.shape_from_config(find_config(settings.model))
    suggestion = cost.suggest(shape, settings.tokens)
    arm, reads = _arm(shape, settings, suggestion)
    counted = cost.prefill_macs(shape, arm, settings.tokens)
    exact, filled = arm.fill == "exact", arm.fill == "ridge"
    native = cost.pop(shape.layers)
    split = suggestion.split if exact else arm.split
    result = Plan(
        model=settings.model,
        arm=settings.arm,
        split=None if exact else arm.split,
        tail=None if exact else arm.tail,
        sink_rows=arm.sink_rows,
        tokens=settings.tokens,
        reads=_reads(reads) if filled else None,
        macs={
            "exact": counted.exact,
            "arm": counted.arm,
            "pop": cost.arm_macs(shape, native, settings.tokens),
        },
        speedup_limit=counted.speedup_limit,
        cheaper_than_pop_above=None if exact or arm == native else cost.crossover(shape, arm, native),
        map_bytes=_map_bytes(shape, arm, reads, int8=False) if filled else 0,
        map_bytes_int8=_map_bytes(shape, arm, reads, int8=True) if filled else 0,
        model_bytes=cost.model_bytes(shape),
        cache_bytes=cost.kv_bytes(shape, settings.tokens),
        cache_bytes_per_token=cost.kv_bytes_per_token(shape),
        capture=_capture(shape, split, settings, reads.captured if reads else settings.map_width),
        seconds=None,
        suggestion=suggestion,
        shape=_described(shape),
    )
    _require_memory(result, settings.memory)
    return (
        result
        if settings.rate is None
        else result.model_copy(update={"seconds": _seconds(result, settings.rate)})
    )


def find_config(ref: str, *, weights: bool = False) -> dict[str, Any]:
    """Parsed `config.json` of a local folder, a file, a bundled model, a preset or a Hub name.

    Only a Hub name touches the network, and only for this one file.

    Args:
        ref: the model.
        weights: it will be loaded, so that a config file or a preset alone will not do.

    Raises:
        BadInput: nothing of that name is here, or it is not a model config.
    """
    path = Path(ref).expanduser()
    if weights and (path.is_file() or ref in cost.preset_names()) and not path.is_dir():
        raise BadInput(f"{ref} has a config and no weights", "give the folder of a saved model")
    if ref.startswith("bundled:"):
        config = read_json(_bundled_config(ref.removeprefix("bundled:")))
    elif path.is_dir():
        config = read_json(path / "config.json")
    elif path.is_file():
        config = read_json(path)
    elif ref in cost.preset_names():
        return cost.preset_config(ref)
    elif not names_a_path(ref):
        config = read_json(_download_config(ref))
    else:
        others = "" if weights else f", a config.json or one of {', '.join(cost.preset_names())}"
        raise BadInput(
            f"the model {ref} does not exist", f"give a folder, bundled:llama, org/name[@revision]{others}"
        )
    if not isinstance(config, dict):
        raise BadInput(f"the config of {ref} is not a JSON object", "give a model's config.json")
    return config


def _bundled_config(name: str) -> Path:
    known = {path.parent.name: path for path in sorted(_BUNDLED.glob("*/config.json"))}
    if name not in known:
        raise BadInput(f"there is no bundled model {name!r}", f"bundled are: {', '.join(known) or 'none'}")
    return known[name]


def _download_config(ref: str) -> Path:
    from huggingface_hub import hf_hub_download

    from ridgefit.models.hub import fetched

    name, _, revision = ref.partition("@")
    return fetched(name, revision or None, partial(hf_hub_download, filename="config.json"))


def _arm(
    shape: cost.ModelShape, settings: PlanSettings, suggestion: cost.Suggestion
) -> tuple[cost.Arm, MapReads | None]:
    """The arm, and what its maps read where that is more than the state."""
    if settings.map_width is not None and not settings.plain:
        raise BadInput("the width of a map follows from its features", "leave --map-width out")
    if settings.arm != "ridge" and not settings.plain:
        raise BadInput(
            f"the {settings.arm} arm has no maps that could read {', '.join(settings.features)}",
            "use --arm ridge, or leave --features, --rank and --layers out",
        )
    if settings.arm == "exact":
        return cost.Arm(fill="exact"), None
    if settings.arm == "pop":
        if settings.split is not None or settings.tail is not None:
            raise BadInput(
                "the pop arm has its own split and tail (paper section 2.5)",
                "leave out --split and --tail, or use --arm identity",
            )
        return cost.pop(shape.layers), None
    split = _at_least_zero("split", suggestion.split if settings.split is None else settings.split)
    tail = _at_least_zero("tail", suggestion.tail if settings.tail is None else settings.tail)
    plain = cost.Arm(
        fill=settings.arm,
        split=split,
        tail=tail,
        sink_rows=settings.sink_rows,
        map_width=settings.map_width,
    )
    cost.check_arm(shape, plain, settings.tokens)
    if settings.plain:
        return plain, None
    # Both load torch, which a plain plan does without.
    from ridgefit.pipeline.candidate_list import require_late
    from ridgefit.pipeline.map_reads import MapReads

    require_late(settings.reads, split)
    reads = MapReads.of(shape, split, settings.reads)
    return reads.arm(split, tail, settings.sink_rows), reads


def _reads(reads: MapReads | None) -> str:
    return "state" if reads is None else reads.text


def _map_bytes(shape: cost.ModelShape, arm: cost.Arm, reads: MapReads | None, *, int8: bool) -> int:
    return cost.map_bytes(
        shape,
        arm.split,
        width=arm.map_width,
        int8=int8,
        state_only=arm.state_only,
        bottleneck=reads.bottleneck if reads else None,
    )


def _at_least_zero(name: str, value: int) -> int:
    if value < 0:
        raise BadInput(f"{name} {value} is negative", f"choose --{name} of at least 1")
    return value


def _capture(shape: cost.ModelShape, split: int, settings: PlanSettings, width: int | None) -> dict[str, int]:
    tokens = settings.calibration_tokens
    window = cost.prefill_macs(shape, cost.Arm(fill="exact"), min(_WINDOW, tokens)).exact
    return {
        "tokens": tokens,
        "memory_bytes": cost.capture_bytes(shape, (split,), width=width),
        "disk_bytes": cost.capture_disk_bytes(shape, (split,), tokens, width=width),
        "macs": -(-tokens // _WINDOW) * window + cost.capture_macs(shape, (split,), tokens, width=width),
    }


def _seconds(result: Plan, rate: float) -> dict[str, float]:
    per_second = rate * 1e12
    return {
        "exact": result.macs["exact"] / per_second,
        "arm": result.macs["arm"] / per_second,
        "capture": result.capture["macs"] / per_second,
    }


def _require_memory(result: Plan, memory: float | None) -> None:
    if memory is None:
        return
    needs = {
        "prefill with the maps resident": result.model_bytes + result.cache_bytes + result.map_bytes,
        "capture": result.model_bytes + result.capture["memory_bytes"],
    }
    for what, needed in needs.items():
        if needed > memory * _GIB:
            raise BadInput(
                f"{what} of {result.model} needs {needed / _GIB:.1f} GiB, {memory:g} GiB are given",
                "use a deeper split, a shorter prompt, a smaller model or a larger device",
            )


def _described(shape: cost.ModelShape) -> dict[str, Any]:
    return {
        **shape.model_dump(include={"family", "layers", "hidden", "heads", "kv_heads", "head_dim", "vocab"}),
        "qk_norm": shape.qk_norm,
        "sliding_layers": shape.kinds.count("sliding_attention"),
        "window": shape.window,
    }
