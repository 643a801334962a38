"""Shapes read from configs agree with transformers' own models, family by family."""

from __future__ import annotations

from typing import Any

import pytest

from ridgefit.cost import model_bytes, preset_config, preset_names, shape_from_config
from ridgefit.cost.families import FAMILIES
from ridgefit.errors import BadInput

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "float32",
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 16},
    "qwen2": {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 5},
    "qwen3": {"head_dim": 32},
    "smollm3": {"use_sliding_window": True, "sliding_window": 16, "no_rope_layer_interval": 3},
    "gemma3_text": {"head_dim": 32, "sliding_window": 16},
    "olmo2": {},
    "phi3": {"sliding_window": 16},
    "granite": {},
    "qwen3_moe": {
        "moe_intermediate_size": 24,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 2,
        "head_dim": 16,
    },
}


def config_of(family: str) -> dict[str, Any]:
    return {"model_type": family, **SMALL, **CONFIGS[family]}


def built(config: dict[str, Any]) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    given = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **given))


def test_every_family_is_tested() -> None:
    assert set(CONFIGS) | {"gemma3"} == set(FAMILIES)


@pytest.mark.parametrize("family", CONFIGS)
def test_shape_agrees_with_the_model(family: str) -> None:
    model, shape = built(config_of(family)), shape_from_config(config_of(family))
    layers = model.get_decoder().layers
    assert shape.layers == len(layers)
    for index, layer in enumerate(layers):
        attention = layer.self_attn
        if hasattr(attention, "qkv_proj"):
            width = shape.heads * shape.head_dim + 2 * shape.kv_width
            assert attention.qkv_proj.weight.shape == (width, shape.hidden)
        else:
            assert attention.q_proj.weight.shape == (shape.heads * shape.head_dim, shape.hidden)
            assert attention.k_proj.weight.shape == (shape.kv_width, shape.hidden)
        assert shape.qk_norm == hasattr(attention, "k_norm")
        weights = sum(weight.numel() for weight in layer.mlp.parameters())
        assert weights == shape.mlp[index].weights(shape.hidden)
        types = getattr(model.config, "layer_types", None)
        window = getattr(model.config, "sliding_window", None)
        slides = types[index] == "sliding_attention" if types else window is not None
        assert shape.window_of(index) == (window if slides else None)


@pytest.mark.parametrize("family", CONFIGS)
def test_model_bytes_agree_with_the_model(family: str) -> None:
    model = built(config_of(family))
    stored = {id(weight): weight.numel() * 4 for weight in model.parameters()}
    assert model_bytes(shape_from_config(config_of(family))) == pytest.approx(sum(stored.values()), rel=0.01)


@pytest.mark.parametrize("family", CONFIGS)
def test_defaults_are_the_familys_own(family: str) -> None:
    """A config that leaves out what checkpoints leave out gets what transformers would fill in."""
    from transformers import AutoConfig

    full = AutoConfig.for_model(family)
    for key, value in FAMILIES[family].defaults.items():
        assert getattr(type(full)(), key, value) in (value, None), key
    required = {
        "hidden_size": full.hidden_size,
        "intermediate_size": full.intermediate_size,
        "num_hidden_layers": full.num_hidden_layers,
        "num_attention_heads": full.num_attention_heads,
        "vocab_size": full.vocab_size,
        "moe_intermediate_size": getattr(full, "moe_intermediate_size", None),
        "num_experts": getattr(full, "num_local_experts", None),
        "num_experts_per_tok": getattr(full, "num_experts_per_tok", None),
    }
    bare = shape_from_config(
        {"model_type": family, **required, "num_key_value_heads": full.num_key_value_heads}
    )
    spelled = shape_from_config({**full.to_dict(), "model_type": family})
    assert bare == spelled


def test_the_text_path_of_a_multimodal_config() -> None:
    gemma = {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 34,
            "sliding_window": 1024,
        },
        "torch_dtype": "bfloat16",
        "vision_config": {"hidden_size": 1152},
    }
    shape = shape_from_config(gemma)
    assert (shape.hidden, shape.heads, shape.kv_heads, shape.head_dim) == (2560, 8, 4, 256)
    assert shape.kinds.count("full_attention") == 5
    assert shape.window == 1024
    assert shape.tied


def test_null_in_a_config_is_not_absence() -> None:
    assert shape_from_config({**config_of("mistral"), "sliding_window": None}).window is None
    without = {key: value for key, value in config_of("mistral").items() if key != "sliding_window"}
    assert shape_from_config(without).window == 4096
    assert shape_from_config({**config_of("llama"), "num_key_value_heads": None}).kv_heads == 4


def test_bytes_per_weight_follow_the_checkpoints_dtype() -> None:
    for name, size in {"float32": 4, "bfloat16": 2, "torch.float16": 2}.items():
        config = {**config_of("llama"), "dtype": None, "torch_dtype": name}
        assert shape_from_config(config).bytes_per_weight == size


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "mamba"}, "'mamba' is not among"),
        ({"hidden_size": None}, "no 'hidden_size'"),
        ({"num_attention_heads": 3, "num_key_value_heads": 2}, "evenly"),
        ({"num_hidden_layers": 0}, "layers"),
        ({"layer_types": ["full_attention"] * 3}, "3 layer kinds"),
        ({"layer_types": ["linear_attention"] * 8}, "kinds"),
        ({"layer_types": ["sliding_attention"] * 8}, "without a window"),
        ({"hidden_size": "wide"}, "inconsistent"),
    ],
)
def test_bad_configs_are_one_sentence(change: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words) as caught:
        shape_from_config({**config_of("llama"), **change})
    assert "\n" not in str(caught.value)


def test_presets_are_models_that_transformers_can_build() -> None:
    assert set(preset_names()) >= {"qwen3-8b", "llama-3.1-8b", "cpu"}
    for name in preset_names():
        config = preset_config(name)
        model, shape = built(config), shape_from_config(config)
        stored = sum({id(w): w.numel() for w in model.parameters()}.values()) * shape.bytes_per_weight
        assert model_bytes(shape) == pytest.approx(stored, rel=0.001)
    with pytest.raises(BadInput, match="no preset"):
        preset_config("gpt-5")
