"""A port's queries and score scale against the attention weights that transformers itself returns."""

from __future__ import annotations

import pytest
import torch
from tiny_models import LAYERS, TINY, build_tiny, tokens

from ridgefit.models import port_of
from ridgefit.runtime.received import received_in


@pytest.mark.parametrize("name", sorted(TINY))
@pytest.mark.parametrize("asking", [range(21), range(15, 21), range(9, 12)])
@torch.no_grad()
def test_received_attention_is_what_transformers_attends(name: str, asking: range) -> None:
    """Summed over heads and rows of its own softmax: norms, biases, rotary, scale, windows and groups."""
    model, ids = build_tiny(name, attention="eager"), tokens(21, batch=2)
    stock = model(ids, output_attentions=True, output_hidden_states=True)
    port = port_of(model)
    for layer in range(LAYERS):
        found = received_in(port, layer, stock.hidden_states[layer], asking)
        wanted = stock.attentions[layer][:, :, asking.start : asking.stop].double().sum(dim=(1, 2))
        torch.testing.assert_close(found, wanted, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3"])
@torch.no_grad()
def test_padding_neither_asks_nor_is_asked(name: str) -> None:
    model, ids = build_tiny(name, attention="eager"), tokens(21, batch=2)
    port = port_of(model)
    mask = torch.ones(2, 21, dtype=torch.long)
    mask[1, :6] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    states = model(ids, attention_mask=mask, position_ids=positions, output_hidden_states=True).hidden_states
    alone = model(ids[1:, 6:], output_attentions=True)
    for layer in range(LAYERS):
        found = received_in(
            port, layer, states[layer], range(4, 21), position_ids=positions, valid=mask.bool()
        )
        torch.testing.assert_close(
            found[1, 6:], alone.attentions[layer][0].double().sum(dim=(0, 1)), rtol=0, atol=2e-5
        )
        assert bool(found[1, :6].eq(0).all())
