"""MLP activations of a port against what transformers' own MLP hands to its down projection."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import TINY, build_tiny, tokens

from ridgefit.models import port_of

LAYER, ROWS = 3, 12
DENSE = sorted(set(TINY) - {"qwen3_moe"})


@pytest.mark.parametrize("name", DENSE)
def test_activations_are_those_of_the_stock_layer_without_attention(name: str) -> None:
    """The whole stock layer runs, its attention's output replaced by zeros."""
    model = build_tiny(name)
    port = port_of(model)
    layer: Any = port.layers[LAYER]
    state, seen = torch.randn(2, ROWS, port.hidden), []
    attention: Any = layer.self_attn
    hooks = [
        attention.register_forward_hook(lambda m, a, out: (torch.zeros_like(out[0]), *out[1:])),
        layer.mlp.down_proj.register_forward_pre_hook(lambda m, args: seen.append(args[0])),
    ]
    with torch.no_grad():
        port.run_layers(LAYER, LAYER + 1, state)
        found = port.mlp_activations(LAYER, state)
    for hook in hooks:
        hook.remove()
    assert port.mlp_width(LAYER) == found.shape[-1] == model.config.get_text_config().intermediate_size
    assert torch.equal(found, seen[0])


def test_experts_have_no_single_mlp() -> None:
    assert port_of(build_tiny("qwen3_moe")).mlp_width(LAYER) is None
    dense = build_tiny("qwen3_moe", mlp_only_layers=[LAYER])
    assert port_of(dense).mlp_width(LAYER) == dense.config.intermediate_size
    assert dense(tokens(4)).logits.isfinite().all()
