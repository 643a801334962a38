"""The paper's memory shares, and caches of transformers' own layers, from a config alone."""

from __future__ import annotations

import pytest
import torch
from tiny_models import build_hybrid, build_tiny

from ridgefit.cost.drafts import (
    draft_memory,
    draft_shape_from_config,
    rescoring_overhead,
    score_macs,
    score_seconds,
)
from ridgefit.errors import BadInput
from ridgefit.models.rollback import new_cache

QWEN35_4B = {
    "num_hidden_layers": 32, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256,
    "hidden_size": 2560, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
}  # fmt: skip
NEMOTRON3_NANO = {
    "layers_block_type": ["mamba"] * 23 + ["attention"] * 6 + ["moe"] * 23, "num_attention_heads": 32,
    "num_key_value_heads": 2, "head_dim": 128, "hidden_size": 2688, "mamba_num_heads": 64,
    "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "parameters", "requests", "tokens", "share"),
    [(QWEN35_4B, 4e9, 4, 64 << 10, 0.511), (NEMOTRON3_NANO, 30e9, 64, 256 << 10, 0.620)],
)
def test_shares_of_appendix_a(
    config: dict[str, object], parameters: float, requests: int, tokens: int, share: float
) -> None:
    shape = draft_shape_from_config({"text_config": config}, parameters)
    assert draft_memory(shape, requests, tokens).kv_share == pytest.approx(share, abs=5e-4)


@pytest.mark.parametrize("name", ["llama", "hybrid"])
def test_bytes_are_those_of_a_real_cache(name: str) -> None:
    model = build_tiny("llama") if name == "llama" else build_hybrid()
    cache = new_cache(model)
    with torch.no_grad():
        model(input_ids=torch.arange(3, 40)[None], cache=cache, use_cache=True)
    kv = recurrent = conv = 0
    for layer in cache.layers:
        if hasattr(layer, "recurrent_states"):
            recurrent += sum(state.numel() for state in layer.recurrent_states.values())
            conv += sum(state.numel() for state in layer.conv_states.values())
        else:
            kv += layer.keys.numel() + layer.values.numel()
    shape = draft_shape_from_config(model.config.to_dict(), 1e6)
    found = draft_memory(shape, 1, 37)
    assert (found.kv, found.recurrent, found.conv) == (2 * kv, 4 * recurrent, 2 * conv)


def test_a_budget_moves_columns_out_of_sight_and_leaves_states() -> None:
    shape = draft_shape_from_config(QWEN35_4B, 4e9)
    whole, small = draft_memory(shape, 4, 65536), draft_memory(shape, 4, 65536, budget=8192)
    assert small.kv == whole.kv / 8
    assert small.kv + small.stored == whole.kv
    assert (small.recurrent, small.weights) == (whole.recurrent, whole.weights)
    assert draft_memory(shape, 4, 100, budget=8192).stored == 0


def test_rescoring_is_products_or_reading_whichever_is_longer() -> None:
    shape = draft_shape_from_config(QWEN35_4B, 4e9)
    assert score_macs(shape, 1000, 64) == 8 * 16 * 64 * 1000 * 256
    slow = score_seconds(shape, 1000, macs_per_second=1e9, bytes_per_second=1e15)
    assert slow == pytest.approx(score_macs(shape, 1000) / 1e9)
    read = score_seconds(shape, 1000, macs_per_second=1e18, bytes_per_second=1e9)
    assert read == pytest.approx(8 * 1000 * 4 * 256 * 2 / 1e9)


def test_overhead_is_added_time_over_decode_time() -> None:
    """128 tokens at 5 tokens and 40 ms a round take 1.024 s; a refresh of 20 ms adds 1.95 %."""
    found = rescoring_overhead(0.02, every=128, round_seconds=0.04, acceptance_length=5)
    assert found == pytest.approx(0.02 / (128 / 5 * 0.04))
    with pytest.raises(ValueError, match="positive"):
        rescoring_overhead(0.02, every=0, round_seconds=0.04, acceptance_length=5)


def test_a_config_without_dimensions_is_refused() -> None:
    with pytest.raises(BadInput, match="num_attention_heads"):
        draft_shape_from_config({"num_hidden_layers": 2}, 1e9)
