"""No fill: late layers of the tail, and of everything after it, see the tail alone (paper table 3)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_models import LAYERS, TINY, tokens
from transformers import DynamicCache, StaticCache

from ridgefit.models import port_of
from ridgefit.models.port import Port
from ridgefit.runtime import RidgeFill

SPLIT, PROMPT, TAIL, MORE = 2, 30, 11, 5
FILL = RidgeFill.no_fill(SPLIT)
close = {"rtol": 1e-5, "atol": 1e-4}


@torch.no_grad()
def by_hand(model: Any, ids: torch.Tensor, kept: list[int], pad: int = 0) -> torch.Tensor:
    """Late layers run on the kept rows and nothing else, at their true positions; logits of those rows."""
    port: Port = port_of(model)
    ids = ids[:, pad:]
    rows = torch.tensor([column - pad for column in kept])
    state = model(ids, output_hidden_states=True, cache=DynamicCache()).hidden_states[SPLIT][:, rows]
    for layer in range(SPLIT, LAYERS):
        gap = rows[:, None] - rows[None]
        window = port.window(layer)
        mask = ((gap >= 0) & (gap < (window or 10**6)))[None, None]
        if port.attention == "eager":
            mask = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
        rotary = port.position_embeddings(layer, state, rows[None])
        block: Any = port.layers[layer]
        state = block(state, attention_mask=mask, position_embeddings=rotary, position_ids=rows[None])
    decoder: Any = port.decoder
    logits: torch.Tensor = model.lm_head(decoder.norm(state))
    return logits / getattr(model.config, "logits_scaling", 1.0)


@pytest.mark.parametrize("name", sorted(TINY))
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("sinks", [0, 3])
@torch.no_grad()
def test_prefix_is_hidden_in_prefill_and_decode(
    name: str, attention: str, sinks: int, tiny_model: Callable[..., Any]
) -> None:
    model, ids = tiny_model(name, attention=attention), tokens(PROMPT + MORE)
    kept = [*range(sinks), *range(PROMPT - TAIL, PROMPT + MORE)]
    wanted = by_hand(model, ids, kept)
    with FILL.applied(model, tail=TAIL, sink_rows=sinks) as report:
        out = model(ids[:, :PROMPT])
        forked = copy.deepcopy(out.cache)
        stepwise = [model(ids[:, i : i + 1], cache=out.cache).logits for i in range(PROMPT, PROMPT + MORE)]
        at_once = model(ids[:, PROMPT:], cache=forked).logits
    found = torch.cat([out.logits[:, kept[: sinks + TAIL]], *stepwise], dim=1)
    torch.testing.assert_close(found, wanted, **close)
    torch.testing.assert_close(at_once, wanted[:, -MORE:], **close)
    assert out.logits[:, sinks : PROMPT - TAIL].isnan().all()
    assert (report.filled, report.rows_filled) == (1, PROMPT - TAIL - sinks)


@pytest.mark.parametrize("name", ["llama", "gemma3", "mistral-sliding"])
@pytest.mark.parametrize("kind", ["static", "whole"])
@torch.no_grad()
def test_hidden_in_other_caches(name: str, kind: str, tiny_model: Callable[..., Any]) -> None:
    model, ids = tiny_model(name), tokens(PROMPT + MORE)
    wanted = by_hand(model, ids, [0, 1, *range(PROMPT - TAIL, PROMPT + MORE)])
    cache = DynamicCache() if kind == "whole" else StaticCache(config=model.config, max_cache_len=64)
    with FILL.applied(model, tail=TAIL, sink_rows=2):
        model(ids[:, :PROMPT], cache=cache)
        found = [model(ids[:, i : i + 1], cache=cache).logits for i in range(PROMPT, PROMPT + MORE)]
    torch.testing.assert_close(torch.cat(found, 1), wanted[:, -MORE:], **close)


@pytest.mark.parametrize("sinks", [0, 2])
@torch.no_grad()
def test_hidden_per_sample_under_padding(sinks: int, tiny_model: Callable[..., Any]) -> None:
    model, ids = tiny_model("gemma3"), tokens(PROMPT + MORE, batch=2)
    mask = torch.ones(2, PROMPT + MORE, dtype=torch.long)
    mask[1, :6] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with FILL.applied(model, tail=TAIL, sink_rows=sinks):
        out = model(ids[:, :PROMPT], attention_mask=mask[:, :PROMPT], position_ids=positions[:, :PROMPT])
        later = model(
            ids[:, PROMPT:], attention_mask=mask, position_ids=positions[:, PROMPT:], cache=out.cache
        ).logits
    for row, pad in enumerate((0, 6)):
        kept = [*range(pad, pad + sinks), *range(PROMPT - TAIL, PROMPT + MORE)]
        wanted = by_hand(model, ids[row : row + 1], kept, pad)[0]
        torch.testing.assert_close(out.logits[row, -TAIL:], wanted[sinks : sinks + TAIL], **close)
        torch.testing.assert_close(later[row], wanted[-MORE:], **close)


@torch.no_grad()
def test_what_was_never_written_is_zero(tiny_model: Callable[..., Any]) -> None:
    model, cache = tiny_model("llama"), DynamicCache()
    with FILL.applied(model, tail=TAIL):
        model(tokens(PROMPT), cache=cache)
    for layer, held in enumerate(cache.layers):
        assert held.keys.shape[2] == PROMPT
        assert held.keys[:, :, : PROMPT - TAIL].eq(0).all() == (layer >= SPLIT)


@torch.no_grad()
def test_an_emptied_cache_hides_nothing_more(tiny_model: Callable[..., Any]) -> None:
    model, cache = tiny_model("llama"), DynamicCache()
    stock = model(tokens(TAIL)).logits, model(tokens(1)).logits
    for ids, wanted in zip((tokens(TAIL), tokens(1)), stock, strict=True):
        with FILL.applied(model, tail=TAIL):
            model(tokens(PROMPT), cache=cache)
            cache.reset()
            assert torch.equal(model(ids, cache=cache).logits, wanted)
        cache.reset()
