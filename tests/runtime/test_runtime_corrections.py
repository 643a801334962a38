"""Corrections and splices against the same thing done by hand, and what they promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from runtime_reference import predict_with, random_maps
from tiny_models import LAYERS, TINY, tokens
from transformers import DynamicCache

from ridgefit.errors import BadInput
from ridgefit.maps import LayerMap, MapSet
from ridgefit.models import port_of
from ridgefit.runtime import SPLICES, Corrections, RidgeFill
from ridgefit.runtime.selectors import Explicit, Probe

NAMES = sorted(TINY)
SPLIT, PROMPT, TAIL = 2, 30, 9
PREFIX = PROMPT - TAIL
MAPS = random_maps(SPLIT)
FILL = RidgeFill.of(MAPS)
ALL = ("value_rescale", "key_rescale", "key_shift", "key_temperature")
close = {"rtol": 1e-4, "atol": 1e-4}


def turned(port: Any, layer: int, rows: torch.Tensor, columns: range) -> torch.Tensor:
    rotary = port.position_embeddings(layer, rows, torch.tensor([list(columns)]))
    return port.rotate(layer, rows, rotary)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3", "phi3-partial", "smollm3"])
@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("rows", [4, 512])
@torch.no_grad()
def test_the_first_late_layers_cache_by_hand(
    name: str, kind: str, rows: int, tiny_model: Callable[..., Any]
) -> None:
    """In the split layer the tail's true inputs are the exact ones, so numpy loops can say what is right."""
    model, ids = tiny_model(name), tokens(PROMPT)
    port = port_of(model)
    state = model(ids, output_hidden_states=True).hidden_states[SPLIT]
    predicted = predict_with(MAPS)(SPLIT, state)
    exact, filled = port.written(SPLIT, state), port.written(SPLIT, predicted)
    m = min(rows, TAIL)
    first = range(PREFIX, PREFIX + m)
    keys, values = filled.keys.clone(), filled.values.clone()
    for head in range(port.kv_heads):
        true_k, true_v = (part[0, head].double().numpy() for part in exact)
        pred_k, pred_v = (part[0, head].double().numpy() for part in filled)
        if kind == "value_rescale":
            values[0, head] *= float(
                np.mean([np.linalg.norm(true_v[r]) / np.linalg.norm(pred_v[r]) for r in first])
            )
        elif kind == "key_rescale":
            keys[0, head] *= float(
                np.mean([np.linalg.norm(true_k[r]) / np.linalg.norm(pred_k[r]) for r in first])
            )
        elif kind == "key_shift":
            keys[0, head] += torch.tensor(np.mean([true_k[r] - pred_k[r] for r in first], axis=0)).float()
        else:
            rotary = port.position_embeddings(SPLIT, state, torch.arange(PROMPT)[None])
            queries = port.queries(SPLIT, state, rotary)[0].double().numpy()
            true_k, pred_k = (
                port.rotate(SPLIT, part, rotary)[0, head].double().numpy()
                for part in (exact.keys, filled.keys)
            )
            above = below = 0.0
            group = port.heads // port.kv_heads
            for asked in range(head * group, (head + 1) * group):
                for row in first:
                    seen = range(PREFIX, row + 1)
                    t = np.array([queries[asked, row] @ true_k[c] for c in seen])
                    p = np.array([queries[asked, row] @ pred_k[c] for c in seen])
                    above += float((t - t.mean()) @ (p - p.mean()))
                    below += float((p - p.mean()) @ (p - p.mean()))
            keys[0, head] *= above / below
    wanted = turned(port, SPLIT, keys[:, :, :PREFIX], range(PREFIX))
    cache = DynamicCache()
    with FILL.applied(model, tail=TAIL, corrections=Corrections(**{kind: True}, rows=rows)):
        model(ids, cache=cache)
    window = port.window(SPLIT)
    seen = slice(0 if window is None else PREFIX - window + 1, PREFIX)
    found = cache.layers[SPLIT]
    torch.testing.assert_close(found.keys[:, :, seen], wanted[:, :, seen], **close)
    torch.testing.assert_close(found.values[:, :, seen], values[:, :, seen], **close)
    torch.testing.assert_close(
        found.keys[:, :, PREFIX:], turned(port, SPLIT, exact.keys, range(PROMPT))[:, :, PREFIX:], **close
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ALL)
@torch.no_grad()
def test_perfect_predictions_need_no_correction(name: str, kind: str, tiny_model: Callable[..., Any]) -> None:
    """With identity in the split layer alone, prediction and truth are the same rows: factor 1, shift 0."""
    split = LAYERS - 1
    unit = RidgeFill.of(MapSet.of({split: LayerMap(torch.eye(32), torch.zeros(32))}))
    model, ids = tiny_model(name), tokens(PROMPT)
    stock = model(ids).logits[:, -TAIL:]
    with unit.applied(model, tail=TAIL, corrections=Corrections(**{kind: True})):
        found = model(ids).logits[:, -TAIL:]
    torch.testing.assert_close(found, stock, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_corrections_of_a_padded_batch_are_those_of_its_samples(
    name: str, tiny_model: Callable[..., Any]
) -> None:
    """Also where padding reaches into the measured rows, and where a sample is shorter than the tail."""
    model, lengths = tiny_model(name), [PROMPT, 20, TAIL + 1, 5]
    ids, mask = tokens(PROMPT, batch=4), torch.zeros(4, PROMPT, dtype=torch.long)
    for row, length in enumerate(lengths):
        mask[row, PROMPT - length :] = 1
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    every = Corrections(**dict.fromkeys(ALL, True), rows=5)
    for rows in (None, [Probe(window=4, count=3)]):
        with FILL.applied(model, tail=TAIL, corrections=every, rows=rows):
            out = model(ids, attention_mask=mask, position_ids=positions).logits
            for row, length in enumerate(lengths):
                alone = model(ids[row : row + 1, -length:]).logits
                kept = min(TAIL, length)
                torch.testing.assert_close(out[row, -kept:], alone[0, -kept:], rtol=1e-4, atol=5e-4)


@torch.no_grad()
def test_corrections_that_are_off_change_nothing(tiny_model: Callable[..., Any]) -> None:
    model, ids = tiny_model("llama"), tokens(PROMPT)
    with FILL.applied(model, tail=TAIL):
        plain = model(ids).logits
    with FILL.applied(model, tail=TAIL, corrections=Corrections()):
        off = model(ids).logits
    with FILL.applied(model, tail=TAIL, corrections=Corrections(key_rescale=True)):
        on = model(ids).logits
    assert torch.equal(plain.nan_to_num(), off.nan_to_num())
    assert not torch.equal(plain.nan_to_num(), on.nan_to_num())
    with pytest.raises(BadInput, match="0 tail rows"):
        Corrections(value_rescale=True, rows=0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@torch.no_grad()
def test_splicing_both_is_exact(name: str, attention: str, tiny_model: Callable[..., Any]) -> None:
    model, ids = tiny_model(name, attention=attention), tokens(PROMPT)
    stock = model(ids)
    with FILL.applied(model, tail=TAIL, splice="both"):
        found = model(ids)
    torch.testing.assert_close(
        found.logits[:, -TAIL:].log_softmax(-1), stock.logits[:, -TAIL:].log_softmax(-1), rtol=0, atol=3e-5
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("splice", SPLICES)
@pytest.mark.parametrize("pad", [0, 4])
@torch.no_grad()
def test_a_spliced_cache_holds_exact_parts(
    name: str, splice: str, pad: int, tiny_model: Callable[..., Any]
) -> None:
    """Those of the exact model's own cache at the same columns; the other part stays as it was filled."""
    model, ids = tiny_model(name), tokens(PROMPT)
    mask = torch.ones_like(ids)
    mask[:, :pad] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    inputs: dict[str, Any] = {"attention_mask": mask, "position_ids": positions} if pad else {}
    caches = {kind: DynamicCache() for kind in ("exact", "plain", "spliced")}
    model(ids, cache=caches["exact"], **inputs)
    chosen = [Explicit(rows=(2, 8))]
    with FILL.applied(model, tail=TAIL, rows=chosen):
        model(ids, cache=caches["plain"], **inputs)
    with FILL.applied(model, tail=TAIL, rows=chosen, splice=splice):
        model(ids, cache=caches["spliced"], **inputs)
    filled = [column for column in range(pad, PREFIX) if column - pad not in (2, 8)]
    for layer in range(SPLIT, LAYERS):
        exact, plain, found = (caches[kind].layers[layer] for kind in ("exact", "plain", "spliced"))
        keys = plain.keys if splice == "values" else exact.keys
        values = plain.values if splice == "keys" else exact.values
        torch.testing.assert_close(found.keys[:, :, filled], keys[:, :, filled], **close)
        torch.testing.assert_close(found.values[:, :, filled], values[:, :, filled], **close)
