"""`model.generate` under a fill: greedy, sampling, beams, batches, static caches, several turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from runtime_reference import filled_cache, hooks, predict_with, random_maps
from tiny_models import TINY, tokens

from ridgefit.runtime import RidgeFill

SPLIT, PROMPT, TAIL, NEW = 2, 30, 11, 6
MAPS = random_maps(SPLIT)
RIDGE = RidgeFill.of(MAPS)
greedy: dict[str, Any] = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False}


@torch.no_grad()
def greedy_by_hand(model: Any, ids: torch.Tensor, **inputs: Any) -> list[int]:
    cache = filled_cache(model, ids, SPLIT, TAIL, predict_with(MAPS), **inputs)
    step, found = ids[:, -TAIL:], []
    for _ in range(NEW):
        logits = model(step, cache=cache).logits[:, -1].clone()
        logits[:, 2] = -torch.inf  # EOS, which min_new_tokens forbids
        step = logits.argmax(-1, keepdim=True)
        found.append(int(step))
    return found


@pytest.mark.parametrize("name", sorted(TINY))
def test_greedy_text_is_the_hand_filled_one(name: str, tiny_model: Callable[..., Any]) -> None:
    model, ids = tiny_model(name), tokens(PROMPT)
    stock = model.generate(ids, **greedy)
    before = hooks(model)
    with RIDGE.applied(model, tail=TAIL) as report:
        found = model.generate(ids, **greedy)
    assert hooks(model) == before
    assert report.filled == 1
    assert found[0, PROMPT:].tolist() == greedy_by_hand(model, ids)
    assert torch.equal(model.generate(ids, **greedy), stock)


@pytest.mark.parametrize("name", ["llama", "gemma3", "phi3-partial"])
@pytest.mark.parametrize("fill", [RIDGE, RidgeFill.identity(SPLIT), RidgeFill.no_fill(SPLIT)])
def test_padded_batches_and_static_caches(name: str, fill: RidgeFill, tiny_model: Callable[..., Any]) -> None:
    model, ids = tiny_model(name), tokens(PROMPT, batch=2)
    mask = torch.ones(2, PROMPT, dtype=torch.long)
    mask[1, :9] = 0
    with fill.applied(model, tail=TAIL, sink_rows=2) as report:
        alone = [model.generate(ids[:1], **greedy)[0, PROMPT:], model.generate(ids[1:, 9:], **greedy)[0, 21:]]
        together = model.generate(ids, attention_mask=mask, **greedy)[:, PROMPT:]
        static = model.generate(ids, attention_mask=mask, cache_implementation="static", **greedy)[:, PROMPT:]
    assert together.tolist() == [row.tolist() for row in alone]
    assert static.tolist() == together.tolist()
    assert report.filled == 4


@pytest.mark.parametrize("fill", [RIDGE, RidgeFill.no_fill(SPLIT)])
def test_sampling_and_beams_run(fill: RidgeFill, tiny_model: Callable[..., Any]) -> None:
    model, ids = tiny_model("gemma3"), tokens(PROMPT, batch=2)
    with fill.applied(model, tail=TAIL, sink_rows=1) as report:
        torch.manual_seed(0)
        sampled = model.generate(ids, do_sample=True, temperature=0.7, max_new_tokens=NEW, min_new_tokens=NEW)
        beams = model.generate(ids, num_beams=3, **greedy)
        one_beam = model.generate(ids, num_beams=1, **greedy)
        best = model.generate(ids[:1], num_beams=3, num_return_sequences=3, **greedy)
    assert report.filled == 4
    for found in (sampled, beams, one_beam):
        assert found.shape == (2, PROMPT + NEW)
        assert torch.equal(found[:, :PROMPT], ids)
    assert torch.equal(best[0], beams[0])
    assert len({tuple(row.tolist()) for row in best}) == 3


@torch.no_grad()
def test_a_conversation_goes_on_from_the_filled_cache(tiny_model: Callable[..., Any]) -> None:
    """The second `generate` gets the whole history and the cache; only the new turn is computed, by stock."""
    model, ids, turn = tiny_model("llama"), tokens(PROMPT), tokens(5, seed=1)
    with RIDGE.applied(model, tail=TAIL) as report:
        first = model.generate(ids, return_dict_in_generate=True, **greedy)
        history = torch.cat([first.sequences, turn], dim=1)
        inside = model.generate(history, past_key_values=first.past_key_values, **greedy)
        again = model.generate(ids, return_dict_in_generate=True, **greedy)
    outside = model.generate(history, past_key_values=again.past_key_values, **greedy)
    assert torch.equal(inside, outside)
    assert report.filled == 2


def test_chunked_prefill_fills_the_first_chunk_only(tiny_model: Callable[..., Any]) -> None:
    model, ids = tiny_model("llama"), tokens(PROMPT)
    with RIDGE.applied(model, tail=4) as report:
        model.generate(ids, prefill_chunk_size=10, **greedy)
    assert (report.filled, report.rows_filled) == (1, 6)
