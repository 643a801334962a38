"""What a family's config leaves unsaid: default dimensions, QK-norm, and which layers slide."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Values = Mapping[str, Any]


def _never(values: Values, layer: int) -> bool:
    """Every layer sees the whole prefix."""
    del values, layer
    return False


def _windowed(values: Values, layer: int) -> bool:
    """Mistral, Phi-3: a window in the config holds for every layer."""
    del layer
    return values.get("sliding_window") is not None


def _moe_window(values: Values, layer: int) -> bool:
    """Qwen3-MoE: as Mistral, but only where the config switches the window on."""
    return bool(values.get("use_sliding_window")) and _windowed(values, layer)


def _upper_layers(values: Values, layer: int) -> bool:
    """Qwen2, Qwen3: layers from `max_window_layers` up slide, where the config switches it on."""
    return _moe_window(values, layer) and layer >= int(values.get("max_window_layers", 0))


def _nope_layers(values: Values, layer: int) -> bool:
    """SmolLM3: the layers without rotary positions slide, where the config switches it on."""
    interval = int(values.get("no_rope_layer_interval", 4))
    listed = values.get("no_rope_layers")
    rotary = listed[layer] if listed is not None else (layer + 1) % interval
    return _moe_window(values, layer) and not rotary


def _five_of_six(values: Values, layer: int) -> bool:
    """Gemma 3: every sixth layer sees everything."""
    pattern = int(values.get("sliding_window_pattern") or values.get("_sliding_window_pattern") or 6)
    return (layer + 1) % pattern != 0


@dataclass(frozen=True)
class Family:
    """One row of `FAMILIES`.

    Args:
        qk_norm: keys are normalised before they are cached.
        defaults: config keys that published checkpoints leave out.
        slides: whether a layer's attention has a window, from the config's values.
    """

    qk_norm: bool = False
    defaults: Values = field(default_factory=dict)
    slides: Callable[[Values, int], bool] = _never


_GEMMA3 = Family(
    qk_norm=True,
    defaults={
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262208,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
    },
    slides=_five_of_six,
)

FAMILIES: Mapping[str, Family] = {
    "llama": Family(),
    "mistral": Family(defaults={"num_key_value_heads": 8, "sliding_window": 4096}, slides=_windowed),
    "qwen2": Family(defaults={"sliding_window": 4096, "max_window_layers": 28}, slides=_upper_layers),
    "qwen3": Family(
        qk_norm=True,
        defaults={"head_dim": 128, "sliding_window": 4096, "max_window_layers": 28},
        slides=_upper_layers,
    ),
    "smollm3": Family(defaults={"num_key_value_heads": 4, "tie_word_embeddings": True}, slides=_nope_layers),
    "gemma3_text": _GEMMA3,
    "gemma3": _GEMMA3,
    "olmo2": Family(qk_norm=True),
    "phi3": Family(slides=_windowed),
    "granite": Family(),
    "qwen3_moe": Family(
        qk_norm=True,
        defaults={"num_key_value_heads": 4, "decoder_sparse_step": 1, "sliding_window": 4096},
        slides=_moe_window,
    ),
}
