"""Ports against what transformers itself computes: hidden states, caches, layer kinds, text paths."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from tiny_models import LAYERS, TINY, WINDOW, build_tiny, tokens
from transformers import DynamicCache, GPTNeoXConfig, GPTNeoXForCausalLM

from ridgefit.errors import BadInput
from ridgefit.models import FAMILIES, Port, port_of
from ridgefit.models.norms import fused_rms_norm

NAMES = sorted(TINY)
ROWS = 24


def stock(model: Any, ids: torch.Tensor, **inputs: Any) -> tuple[Any, Any]:
    """Hidden states entering each layer, and a cache that keeps every column."""
    cache = DynamicCache()
    with torch.no_grad():
        out = model(ids, cache=cache, output_hidden_states=True, **inputs)
    return out.hidden_states, cache


@pytest.mark.parametrize("name", NAMES)
def test_layers_run_as_in_the_model(name: str) -> None:
    model = build_tiny(name)
    port, (states, _) = port_of(model), stock(model, tokens(ROWS, batch=2))
    with torch.no_grad():
        assert torch.equal(port.run_layers(0, LAYERS - 1, states[0]), states[LAYERS - 1])
        assert torch.equal(port.run_layers(2, 4, states[2]), states[4])


@pytest.mark.parametrize("name", ["llama", "gemma3", "phi3-partial"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_layers_fill_a_cache_and_keep_padding_out(name: str, attention: str) -> None:
    model = build_tiny(name, attention=attention)
    port, ids = port_of(model), tokens(ROWS, batch=2)
    valid = torch.arange(ROWS)[None] >= torch.tensor([[0], [5]])
    positions = (valid.long().cumsum(1) - 1).clamp(min=0)
    states, wanted = stock(model, ids, attention_mask=valid.long(), position_ids=positions)
    cache = DynamicCache()
    with torch.no_grad():
        found = port.run_layers(0, 4, states[0], position_ids=positions, valid=valid, cache=cache)
    torch.testing.assert_close(found[valid], states[4][valid], rtol=0, atol=1e-4)
    for layer in range(4):
        rows = valid[:, None].expand(2, port.kv_heads, ROWS)
        for part in ("keys", "values"):
            held, kept = getattr(cache.layers[layer], part), getattr(wanted.layers[layer], part)
            torch.testing.assert_close(held[rows], kept[rows], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_written_and_rotated_rows_are_the_cache(name: str) -> None:
    model = build_tiny(name)
    port = port_of(model)
    positions = torch.arange(ROWS)[None] + torch.tensor([[3], [70]])
    ids = tokens(ROWS, batch=2)
    states, cache = stock(model, ids, position_ids=positions, attention_mask=torch.ones_like(ids))
    with torch.no_grad():
        for layer in range(LAYERS):
            rotary = port.position_embeddings(layer, states[layer], positions)
            keys, values = port.written(layer, states[layer])
            assert keys.shape == values.shape == (2, port.kv_heads, ROWS, port.head_dim)
            rotated = port.rotate(layer, keys, rotary)
            torch.testing.assert_close(rotated, cache.layers[layer].keys, rtol=0, atol=1e-6)
            torch.testing.assert_close(values, cache.layers[layer].values, rtol=0, atol=1e-6)
            assert torch.equal(port.write(layer, states[layer], rotary).keys, rotated)
            flat = port.written(layer, states[layer][0])  # no batch dimension
            torch.testing.assert_close(flat.keys, keys[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_rotation_is_there_where_the_model_has_it(name: str) -> None:
    model = build_tiny(name)
    port = port_of(model)
    keys = torch.randn(1, port.kv_heads, 4, port.head_dim, generator=torch.Generator().manual_seed(0))
    for layer in range(LAYERS):
        rotary = port.position_embeddings(layer, torch.zeros(1, 4, port.hidden), torch.arange(5, 9)[None])
        turned = port.rotate(layer, keys, rotary)
        rotates = name != "smollm3" or (layer + 1) % 3 != 0
        assert torch.equal(turned, keys) != rotates
        same = (turned == keys).all(dim=2).all(dim=1).all(dim=0)
        assert int(same.sum()) == {True: 4 if name == "phi3-partial" else 0, False: port.head_dim}[rotates]
        torch.testing.assert_close(turned.norm(dim=-1), keys.norm(dim=-1))


@pytest.mark.parametrize("name", NAMES)
def test_kinds_are_those_of_the_stock_cache(name: str) -> None:
    model = build_tiny(name)
    port = port_of(model)
    slides = DynamicCache(config=model.config).is_sliding
    assert [port.kind(layer) == "sliding_attention" for layer in range(LAYERS)] == slides
    assert [port.window(layer) for layer in range(LAYERS)] == [WINDOW if s else None for s in slides]
    assert any(slides) == (
        name in {"mistral-sliding", "qwen2-sliding", "gemma3", "gemma3-multimodal", "phi3-partial"}
    )
    assert port.qk_norm == (name.split("-")[0] in {"qwen3", "gemma3", "olmo2", "qwen3_moe"})


def test_every_family_has_a_tiny_model() -> None:
    """A new port without a row in conftest.py would be untested."""
    covered = {port_of(build_tiny(name)).decoder.config.model_type for name in NAMES}
    assert covered == set(FAMILIES)


def test_text_path_is_found_in_any_wrapping() -> None:
    whole = build_tiny("gemma3-multimodal")
    decoder = whole.model.language_model
    wrapped = torch.nn.ModuleDict({"policy": torch.nn.ModuleDict({"base": whole})})
    for model in (whole, decoder, wrapped):
        port = port_of(model)
        assert port.decoder is decoder
        assert list(port.layers) == list(decoder.layers)


def test_identity_is_json_and_ignores_what_does_not_compute() -> None:
    port = port_of(build_tiny("gemma3"))
    found = port.identity()
    assert json.loads(json.dumps(found)) == found
    assert found["family"] == "gemma3"
    assert found["layer_kinds"][2] == "full_attention"
    assert (found["n_layers"], found["hidden"], found["kv_heads"], found["head_dim"]) == (LAYERS, 32, 2, 8)
    same = port_of(build_tiny("gemma3", attention="eager", seed=1).bfloat16()).identity()
    assert same["config_sha256"] == found["config_sha256"]
    assert same["dtype"] == "bfloat16"
    other = port_of(build_tiny("gemma3", sliding_window=9)).identity()
    assert other["config_sha256"] != found["config_sha256"]
    assert (other["window"], found["window"]) == (9, WINDOW)


def test_unknown_family_says_how_to_add_it() -> None:
    config = GPTNeoXConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16
    )
    with pytest.raises(BadInput, match=r"'gpt_neox'.*known: .*llama.*models/gpt_neox\.py.*registry\.py"):
        port_of(GPTNeoXForCausalLM(config))
    with pytest.raises(BadInput, match="no port"):
        port_of(torch.nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("name", "path"), [("llama", "k_proj"), ("qwen3", "k_norm"), ("olmo2", "k_norm"), ("phi3", "qkv_proj")]
)
def test_missing_module_is_named(name: str, path: str) -> None:
    model = build_tiny(name)
    delattr(port_of(model).layers[3].self_attn, path)
    with pytest.raises(BadInput, match=rf"layer 3 .*{path}"):
        port_of(model)


def test_unknown_layer_kind_is_named() -> None:
    model = build_tiny("qwen2")
    model.config.layer_types = ["full_attention", "linear_attention", *["full_attention"] * 4]
    with pytest.raises(BadInput, match=r"layer 1 .*linear_attention"):
        port_of(model)


def test_bidirectional_gemma_is_refused() -> None:
    model = build_tiny("gemma3")
    model.config.use_bidirectional_attention = True
    with pytest.raises(BadInput, match="both directions"):
        port_of(model)


def test_unknown_attention_is_refused() -> None:
    model = build_tiny("llama")
    port = port_of(model)
    port.check_attention()
    model.config._attn_implementation = "flex_attention"
    with pytest.raises(BadInput, match=r"flex_attention.*sdpa"):
        port.check_attention()


@pytest.mark.parametrize("name", NAMES)
def test_fused_norms_are_the_modules_own(name: str) -> None:
    """What CUDA runs instead, on the CPU; Gemma's norm is another formula and is left alone."""
    port = port_of(build_tiny(name))
    inputs = 5 * torch.randn(2, 3, 32, generator=torch.Generator().manual_seed(0))
    norms = [(module, path) for path, module in port.layers[1].named_modules() if "norm" in path]
    assert norms
    for norm, path in norms:
        width = norm.weight.shape[0]
        assert hasattr(norm, "variance_epsilon") == (not name.startswith("gemma3")), path
        if hasattr(norm, "variance_epsilon"):
            found = fused_rms_norm(norm, inputs[..., :width])
            torch.testing.assert_close(found, norm(inputs[..., :width]), rtol=1e-6, atol=1e-6)


def test_port_adds_nothing_to_the_model() -> None:
    model = build_tiny("phi3")
    before = {key: set(vars(module)) for key, module in model.named_modules()}
    port: Port = port_of(model)
    with torch.no_grad():
        port.run_layers(0, 2, torch.randn(1, 5, port.hidden))
    assert {key: set(vars(module)) for key, module in model.named_modules()} == before
