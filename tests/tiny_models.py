"""Tiny random models of every family, for the tests of all rooms.

Weights are drawn wide enough that attention is far from uniform, and norms and biases are not at their
starting values, so that a forgotten norm, bias, rotary or mask shows. A module of its own, because which
`conftest` a test would import depends on which rooms are collected before it.
"""

from __future__ import annotations

from typing import Any

import torch

VOCAB = 320
LAYERS = 6
WINDOW = 8

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_SLIDING = ["sliding_attention", "sliding_attention", "full_attention"] * (LAYERS // 3)

# name of a tiny model -> (config class in transformers, settings besides the common ones)
TINY: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "mistral": ("MistralConfig", {"sliding_window": None}),
    "mistral-sliding": ("MistralConfig", {"sliding_window": WINDOW}),
    "qwen2": ("Qwen2Config", {"head_dim": None}),
    "qwen2-sliding": (
        "Qwen2Config",
        {"head_dim": None, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 3},
    ),
    "qwen3": ("Qwen3Config", {}),
    "smollm3": ("SmolLM3Config", {"no_rope_layer_interval": 3, "head_dim": None}),
    "gemma3": (
        "Gemma3TextConfig",
        {"sliding_window": WINDOW, "layer_types": _SLIDING, "query_pre_attn_scalar": 8},
    ),
    "gemma3-multimodal": ("Gemma3Config", {}),
    "olmo2": ("Olmo2Config", {"head_dim": None}),
    "phi3": (
        "Phi3Config",
        {"head_dim": None, "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}},
    ),
    "phi3-partial": (
        "Phi3Config",
        {
            "head_dim": None,
            "sliding_window": WINDOW,
            "rope_parameters": {"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": 0.5},
        },
    ),
    "granite": (
        "GraniteConfig",
        {
            "head_dim": None,
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.3,
            "residual_multiplier": 0.4,
            "logits_scaling": 2.0,
        },
    ),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        {"moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    ),
}
_VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}


def tiny_config(name: str, **overrides: Any) -> Any:
    """Config of a tiny model; overrides win, a setting of None is left out unless overridden."""
    import transformers

    cls, own = TINY[name]
    if name == "gemma3-multimodal":
        text = tiny_config("gemma3", **overrides).to_dict()
        return transformers.Gemma3Config(text_config=text, vision_config=_VISION, image_token_id=VOCAB - 1)
    settings = {**_COMMON, **own, **overrides}
    if settings.get("head_dim") is None:
        del settings["head_dim"]
    return getattr(transformers, cls)(**settings)


def build_tiny(name: str, *, seed: int = 0, attention: str = "sdpa", **overrides: Any) -> Any:
    """A new tiny model in fp32 and eval mode, always with the same weights for the same arguments."""
    from transformers import AutoModelForCausalLM

    config = tiny_config(name, **overrides)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention)
    generator = torch.Generator().manual_seed(seed)
    centre = 0.0 if name.startswith("gemma3") else 1.0  # Gemma multiplies by 1 + weight
    with torch.no_grad():
        for key, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter.copy_(0.2 * noise + (centre if "norm" in key else 0.0))
            else:
                fan_in = parameter.shape[-1] if "embed" not in key else 1
                parameter.copy_(1.3 * noise / fan_in**0.5)
    return model.eval()


def tokens(rows: int, *, batch: int = 1, seed: int = 0) -> torch.Tensor:
    """Random ids `[batch, rows]`, special ids left out."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB - 2, (batch, rows), generator=generator)


def build_hybrid(*, seed: int = 0, layers: int = 4, attention: str = "sdpa") -> Any:
    """A tiny Qwen3.5 (recurrent and full-attention layers in turn), like `build_tiny` but without a port."""
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    config = Qwen3_5TextConfig(
        **{**_COMMON, "num_hidden_layers": layers, "head_dim": 16},
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.5,
            "mrope_section": [2, 1, 1],
        },
        layer_types=(["linear_attention", "full_attention"] * layers)[:layers],
        tie_word_embeddings=False,
    )
    config._attn_implementation = attention
    model = Qwen3_5ForCausalLM(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            fan_in = parameter.shape[-1] if "embed" not in key else 1
            parameter.copy_(0.2 * noise if parameter.ndim == 1 else noise / fan_in**0.5)
    return model.eval()
