"""The fill against the same thing done by hand with stock calls (see runtime_reference.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from runtime_reference import continued, filled_cache, identity, predict_with, random_maps
from tiny_models import LAYERS, TINY, WINDOW, tokens
from transformers import DynamicCache

from ridgefit.models import masks, port_of
from ridgefit.models.masks import attends_by_runs
from ridgefit.runtime import RidgeFill, prefill

NAMES = sorted(TINY)
SPLIT, PROMPT, TAIL = 2, 30, 11
MAPS = random_maps(SPLIT)
ARMS = {
    "ridge": (RidgeFill.of(MAPS), predict_with(MAPS)),
    "identity": (RidgeFill.identity(SPLIT), identity),
}
close = {"rtol": 1e-5, "atol": 1e-4}


@pytest.mark.parametrize("name", ["llama", "qwen3", "phi3", "gemma3", "granite"])
@pytest.mark.parametrize("sinks", [0, 3, PROMPT])
@torch.no_grad()
def test_attention_by_runs_equals_attention_under_a_mask(
    name: str, sinks: int, tiny_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What CUDA does: no mask, keys that know their rows. Only the kernels differ there."""
    model, ids = tiny_model(name), tokens(PROMPT)
    fill, _ = ARMS["ridge"]
    with fill.applied(model, tail=TAIL, sink_rows=sinks):
        masked = model(ids, logits_to_keep=TAIL).logits
    seen = []

    def as_on_cuda(*args: Any, **kwargs: Any) -> bool:
        seen.append(attends_by_runs(*args, **{**kwargs, "device": "cuda"}))
        return seen[-1]

    monkeypatch.setattr(masks, "attends_by_runs", as_on_cuda)
    monkeypatch.setattr(prefill, "attends_by_runs", as_on_cuda)
    with fill.applied(model, tail=TAIL, sink_rows=sinks):
        by_runs = model(ids, logits_to_keep=TAIL).logits
    assert any(seen)
    torch.testing.assert_close(by_runs, masked, **close)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("sinks", [0, 3])
@torch.no_grad()
def test_fill_is_what_stock_makes_of_a_hand_filled_cache(
    name: str, arm: str, sinks: int, tiny_model: Callable[..., Any]
) -> None:
    model, ids, further = tiny_model(name), tokens(PROMPT), tokens(4, seed=1)
    fill, predict = ARMS[arm]
    by_hand = filled_cache(model, ids, SPLIT, TAIL, predict, sinks=sinks)
    filled = [(layer.keys.clone(), layer.values.clone()) for layer in by_hand.layers]
    wanted = continued(model, by_hand, ids[:, -TAIL:])
    wanted_later = continued(model, by_hand, further)

    whole = DynamicCache()
    with fill.applied(model, tail=TAIL, sink_rows=sinks) as report:
        out = model(ids, cache=whole)
        held = [(layer.keys.clone(), layer.values.clone()) for layer in whole.layers]
        later = torch.cat([model(further[:, i : i + 1], cache=whole).logits for i in range(4)], dim=1)
    prefix = PROMPT - TAIL
    torch.testing.assert_close(out.logits[:, prefix:], wanted, **close)
    torch.testing.assert_close(later, wanted_later, **close)
    assert out.logits[:, sinks:prefix].isnan().all()
    assert out.logits[:, :sinks].isfinite().all()
    assert (report.filled, report.rows_filled, report.rows_exact) == (1, prefix - sinks, TAIL + sinks)

    port = port_of(model)
    for layer, ((keys, values), (found_keys, found_values)) in enumerate(zip(filled, held, strict=True)):
        window = port.window(layer)
        seen = 0 if window is None or layer < SPLIT else max(0, prefix - window + 1)
        for wanted_rows, found in ((keys, found_keys), (values, found_values)):
            assert found.shape[2] == PROMPT
            torch.testing.assert_close(found[:, :, seen:prefix], wanted_rows[:, :, seen:], **close)
            torch.testing.assert_close(found[:, :, :sinks], wanted_rows[:, :, :sinks], **close)
            assert found[:, :, sinks:seen].eq(0).all()  # no window of an exact row sees them


@pytest.mark.parametrize("name", ["gemma3", "mistral-sliding", "phi3-partial", "qwen2-sliding"])
@pytest.mark.parametrize(
    ("prompt", "tail"),
    [
        (prompt, tail)
        for prompt in (WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW, 3 * WINDOW + 1)
        for tail in (1, 2, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW - 1)
        if tail < prompt
    ],
)
@torch.no_grad()
def test_window_edges(name: str, prompt: int, tail: int, tiny_model: Callable[..., Any]) -> None:
    """Prompt and tail shorter, as long as and longer than the window, on a cache that lets old rows go."""
    model, ids, further = tiny_model(name), tokens(prompt), tokens(WINDOW + 2, seed=1)
    fill, predict = ARMS["ridge"]
    by_hand = filled_cache(model, ids, SPLIT, tail, predict)
    wanted = continued(model, by_hand, ids[:, -tail:])
    wanted_later = continued(model, by_hand, further)
    with fill.applied(model, tail=tail):
        out = model(ids, cache=DynamicCache(config=model.config))
        later = torch.cat([model(token[:, None], cache=out.cache).logits for token in further.unbind(1)], 1)
    torch.testing.assert_close(out.logits[:, -tail:], wanted, **close)
    torch.testing.assert_close(later, wanted_later, **close)


@pytest.mark.parametrize("split", [1, 3, LAYERS - 1])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
@torch.no_grad()
def test_any_split_down_to_one_late_layer(split: int, name: str, tiny_model: Callable[..., Any]) -> None:
    model, ids = tiny_model(name), tokens(PROMPT)
    maps = random_maps(split)
    wanted = continued(model, filled_cache(model, ids, split, TAIL, predict_with(maps)), ids[:, -TAIL:])
    with RidgeFill.of(maps).applied(model, tail=TAIL, split=split):
        found = model(ids).logits[:, -TAIL:]
    torch.testing.assert_close(found, wanted, **close)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("sinks", [0, 3])
@torch.no_grad()
def test_left_padded_batch_equals_its_samples(
    name: str, attention: str, sinks: int, tiny_model: Callable[..., Any]
) -> None:
    """Long, shorter, as long as tail and sinks, and shorter than the tail: each as if alone."""
    model = tiny_model(name, attention=attention)
    lengths = [PROMPT, 21, TAIL + 2, 7]
    ids, mask = tokens(PROMPT, batch=4), torch.zeros(4, PROMPT, dtype=torch.long)
    for row, length in enumerate(lengths):
        mask[row, PROMPT - length :] = 1
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    further = tokens(3, batch=4, seed=1)
    fill, _ = ARMS["ridge"]
    with fill.applied(model, tail=TAIL, sink_rows=sinks) as report:
        out = model(ids, attention_mask=mask, position_ids=positions)
        later = model(
            further,
            attention_mask=torch.cat([mask, torch.ones(4, 3, dtype=torch.long)], 1),
            position_ids=positions[:, -1:] + torch.arange(1, 4),
            cache=out.cache,
        ).logits
        together = (report.rows_filled, report.rows_exact)
        for row, length in enumerate(lengths):
            alone = model(ids[row : row + 1, -length:])
            rows = min(TAIL, length)
            torch.testing.assert_close(out.logits[row, -rows:], alone.logits[0, -rows:], **close)
            again = model(further[row : row + 1], cache=alone.cache).logits
            torch.testing.assert_close(later[row], again[0], **close)
    filled = [max(length - TAIL - sinks, 0) for length in lengths]
    assert together == (sum(filled), sum(lengths) - sum(filled))


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@torch.no_grad()
def test_equal_padding_and_given_positions(name: str, tiny_model: Callable[..., Any]) -> None:
    model, ids = tiny_model(name), tokens(PROMPT, batch=2)
    mask = torch.ones(2, PROMPT, dtype=torch.long)
    mask[:, :4] = 0
    positions = torch.arange(PROMPT)[None] + 40
    fill, predict = ARMS["ridge"]
    inputs = {"attention_mask": mask, "position_ids": positions}
    by_hand = filled_cache(model, ids, SPLIT, TAIL, predict, sinks=2, **inputs)
    wanted = continued(model, by_hand, ids[:, -TAIL:], attention_mask=mask, position_ids=positions[:, -TAIL:])
    with fill.applied(model, tail=TAIL, sink_rows=2):
        found = model(ids, **inputs).logits
    torch.testing.assert_close(found[:, -TAIL:], wanted, **close)
    assert found[:, 4:6].isfinite().all()


@torch.no_grad()
def test_every_way_of_calling_the_model(tiny_model: Callable[..., Any]) -> None:
    model, ids = tiny_model("gemma3-multimodal"), tokens(PROMPT)
    decoder = port_of(model).decoder
    with ARMS["ridge"][0].applied(model, tail=TAIL) as report:
        wanted = model(ids).logits
        ways = {
            "embeddings": model(inputs_embeds=model.get_input_embeddings()(ids)).logits,
            "mask of ones": model(ids, attention_mask=torch.ones_like(ids)).logits,
            "decoder": model.lm_head(decoder(ids).last_hidden_state),
            "decoder, tuple": model.lm_head(decoder(ids, return_dict=False)[0]),
            "old name": model(ids, past_key_values=DynamicCache(config=model.config)).logits,
        }
        last = model(ids, logits_to_keep=1).logits
    assert report.filled == 7
    for way, logits in ways.items():
        torch.testing.assert_close(logits, wanted, equal_nan=True, msg=way, **close)
    torch.testing.assert_close(last, wanted[:, -1:], **close)


@torch.no_grad()
def test_a_mask_of_four_dimensions_is_honoured(tiny_model: Callable[..., Any]) -> None:
    """Two columns that no row may see, as a custom mask says."""
    model, ids = tiny_model("llama"), tokens(PROMPT)
    mask = torch.ones(PROMPT, PROMPT, dtype=torch.bool).tril()
    mask[:, 5:7] = False
    mask |= torch.eye(PROMPT, dtype=torch.bool)
    mask = mask[None, None]
    fill, predict = ARMS["ridge"]
    by_hand = filled_cache(model, ids, SPLIT, TAIL, predict)
    exact = DynamicCache()
    state = model(ids, attention_mask=mask, cache=exact, output_hidden_states=True).hidden_states[SPLIT]
    for layer in range(LAYERS):
        rotary = port_of(model).position_embeddings(layer, state, torch.arange(PROMPT)[None])
        kept = exact.layers[layer]
        if layer >= SPLIT:
            kept.keys, kept.values = port_of(model).write(layer, predict(layer, state), rotary)
        by_hand.layers[layer].keys = kept.keys[:, :, :-TAIL]
        by_hand.layers[layer].values = kept.values[:, :, :-TAIL]
    wanted = continued(
        model,
        by_hand,
        ids[:, -TAIL:],
        attention_mask=mask[:, :, -TAIL:],
        position_ids=torch.arange(PROMPT - TAIL, PROMPT)[None],
    )
    with fill.applied(model, tail=TAIL):
        found = model(ids, attention_mask=mask).logits[:, -TAIL:]
    torch.testing.assert_close(found, wanted, **close)
