"""Exact prefix rows: against a loop that runs late layers row by row in fp64; all of them against stock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from runtime_reference import hooks, identity, predict_with, random_maps, row_by_row
from tiny_models import TINY, build_tiny, tokens
from transformers import DynamicCache, StaticCache

from ridgefit.errors import BadInput
from ridgefit.models import port_of
from ridgefit.runtime import Corrections, RidgeFill
from ridgefit.runtime.selectors import (
    Attention,
    Digits,
    Explicit,
    LongerTail,
    Probe,
    QuestionBlind,
    Random,
    Sinks,
)

NAMES = sorted(TINY)
SPLIT, PROMPT, TAIL = 2, 30, 8
PREFIX = PROMPT - TAIL
MAPS = random_maps(SPLIT)
FILLS = {"ridge": RidgeFill.of(MAPS), "identity": RidgeFill.identity(SPLIT)}
LOWER = Attention(layers=(0, 1), window=6, count=5)
SELECTORS = {
    "scattered": [Explicit(rows=(1, 2, 7, 12, 13, 21))],
    "sinks and attention": [Sinks(2), LOWER],
    "probe": [Probe(window=4, count=7)],
    "random": [Random(share=0.2)],
}
close = {"rtol": 1e-5, "atol": 1e-4}
every = pytest.mark.parametrize("name", NAMES)
both = pytest.mark.parametrize("attention", ["sdpa", "eager"])


def best(scores: torch.Tensor, count: int) -> list[int]:
    """Of equal scores the lower row."""
    return sorted(sorted(range(len(scores)), key=lambda row: (-float(scores[row]), row))[:count])


@every
@both
@pytest.mark.parametrize("batch", [1, 2])
@torch.no_grad()
def test_all_rows_exact_is_stock(
    name: str, attention: str, batch: int, tiny_model: Callable[..., Any]
) -> None:
    model, ids = tiny_model(name, attention=attention), tokens(PROMPT + 4, batch=batch)
    prompt = model(ids[:, :PROMPT])
    turn = model(ids[:, PROMPT:], cache=prompt.cache)
    stock = torch.cat([prompt.logits, turn.logits], dim=1).log_softmax(-1)
    for fill in FILLS.values():
        for selector in (Explicit(rows=tuple(range(PREFIX))), Random(share=1.0), LongerTail(count=PREFIX)):
            with fill.applied(model, tail=TAIL, rows=[selector]) as report:
                first = model(ids[:, :PROMPT])
                second = model(ids[:, PROMPT:], cache=first.cache)
            found = torch.cat([first.logits, second.logits], dim=1).log_softmax(-1)
            torch.testing.assert_close(found, stock, rtol=0, atol=1e-5)
            assert (report.rows_filled, report.rows_chosen) == (0, batch * PREFIX)


@every
@both
@pytest.mark.parametrize("fill", FILLS)
@torch.no_grad()
def test_any_rows_equal_a_loop_over_rows_in_fp64(name: str, attention: str, fill: str) -> None:
    wide = torch.float32 if name == "qwen3_moe" else torch.float64  # torch multiplies experts in fp32 at most
    model, ids = build_tiny(name, attention=attention).to(wide), tokens(PROMPT)
    chosen = (0, 1, 5, 6, 13, 20, 21)
    rows = [*chosen, *range(PREFIX, PROMPT)]
    predict = identity
    if fill == "ridge":

        def predict(layer: int, h: torch.Tensor) -> torch.Tensor:
            return h @ MAPS.layer(layer).weight.to(wide).T + MAPS.layer(layer).bias.to(wide)

    wanted, caches = row_by_row(model, ids, SPLIT, predict, rows)
    cache = DynamicCache()
    with FILLS[fill].applied(model, tail=TAIL, rows=[Explicit(rows=chosen)]) as report:
        found = port_of(model).decoder(ids, cache=cache).last_hidden_state
    wanted = port_of(model).decoder.norm(wanted)
    # Eager attention takes its softmax in fp32 whatever the model.
    limit = {"rtol": 0.0, "atol": 1e-9 if attention == "sdpa" and wide == torch.float64 else 1e-4}
    torch.testing.assert_close(found[:, rows], wanted, **limit)
    assert found[:, [row for row in range(PROMPT) if row not in rows]].isnan().all()
    for layer, (keys, values) in enumerate(caches, start=SPLIT):
        torch.testing.assert_close(cache.layers[layer].keys, keys, **limit)
        torch.testing.assert_close(cache.layers[layer].values, values, **limit)
    assert (report.filled, report.rows_exact, report.rows_chosen) == (1, len(rows), len(chosen))
    assert report.rows_filled == PROMPT - len(rows)


@every
@both
@pytest.mark.parametrize("rows", SELECTORS)
@torch.no_grad()
def test_left_padded_batch_equals_its_samples(
    name: str, attention: str, rows: str, tiny_model: Callable[..., Any]
) -> None:
    """Samples choose their own rows, and different numbers of them."""
    model = tiny_model(name, attention=attention)
    lengths = [PROMPT, 29, TAIL + 2, 7] if rows != "scattered" else [PROMPT, PROMPT - 1]
    batch = len(lengths)
    ids, mask = tokens(PROMPT, batch=batch), torch.zeros(batch, PROMPT, dtype=torch.long)
    chosen = [Explicit(rows=(1, 2, 7, 12, 20))] if rows == "scattered" else SELECTORS[rows]
    for row, length in enumerate(lengths):
        mask[row, PROMPT - length :] = 1
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    further = tokens(3, batch=batch, seed=1)
    with FILLS["ridge"].applied(model, tail=TAIL, rows=chosen) as report:
        out = model(ids, attention_mask=mask, position_ids=positions)
        later = model(
            further,
            attention_mask=torch.cat([mask, torch.ones(batch, 3, dtype=torch.long)], 1),
            position_ids=positions[:, -1:] + torch.arange(1, 4),
            cache=out.cache,
        ).logits
        together = (report.rows_filled, report.rows_exact, report.rows_chosen)
        for row, length in enumerate(lengths):
            alone = model(ids[row : row + 1, -length:])
            kept = min(TAIL, length)
            torch.testing.assert_close(out.logits[row, -kept:], alone.logits[0, -kept:], **close)
            again = model(further[row : row + 1], cache=alone.cache).logits
            torch.testing.assert_close(later[row], again[0], **close)
    assert together[0] + together[1] == sum(lengths)
    assert 0 < together[2] < sum(lengths)


@pytest.mark.parametrize("name", ["llama", "gemma3", "mistral-sliding", "phi3-partial"])
@pytest.mark.parametrize("rows", SELECTORS)
@torch.no_grad()
def test_caches_of_other_kinds_agree(name: str, rows: str, tiny_model: Callable[..., Any]) -> None:
    model, ids = tiny_model(name), tokens(PROMPT + 5)
    caches = {
        "windowed": DynamicCache(config=model.config),
        "whole": DynamicCache(),
        "static": StaticCache(config=model.config, max_cache_len=PROMPT + 12),
    }
    found = {}
    with FILLS["ridge"].applied(model, tail=TAIL, rows=SELECTORS[rows]):
        for kind, cache in caches.items():
            model(ids[:, :PROMPT], cache=cache)
            found[kind] = model(ids[:, PROMPT:], cache=cache).logits
    for kind in ("whole", "static"):
        torch.testing.assert_close(found[kind], found["windowed"], **close)


@both
@torch.no_grad()
def test_a_mask_of_four_dimensions_is_honoured(attention: str, tiny_model: Callable[..., Any]) -> None:
    """Two columns that no row may see: the same as a prompt whose rows never met them."""
    model, ids = tiny_model("llama", attention=attention), tokens(PROMPT)
    mask = torch.ones(PROMPT, PROMPT, dtype=torch.bool).tril()
    mask[:, 5:7] = False
    mask |= torch.eye(PROMPT, dtype=torch.bool)
    mask = mask[None, None]
    given = mask if attention == "sdpa" else torch.where(mask, 0.0, torch.finfo(torch.float32).min)
    kept = [column for column in range(PROMPT) if column not in (5, 6)]
    places = {column: place for place, column in enumerate(kept)}
    chosen = (1, 4, 9, 15)
    with FILLS["ridge"].applied(model, tail=TAIL, rows=[Explicit(rows=chosen)]):
        found = model(ids, attention_mask=given).logits[:, -TAIL:]
    with FILLS["ridge"].applied(model, tail=TAIL, rows=[Explicit(rows=tuple(places[c] for c in chosen))]):
        alone = model(ids[:, kept], position_ids=torch.tensor([kept])).logits[:, -TAIL:]
    torch.testing.assert_close(found, alone, **close)


@every
@torch.no_grad()
def test_rows_do_not_depend_on_how_they_were_found(name: str, tiny_model: Callable[..., Any]) -> None:
    """Two sweeps and one give the same cache for the same rows."""
    model, ids = tiny_model(name), tokens(PROMPT)
    fill = FILLS["ridge"]
    with fill.applied(model, tail=TAIL, rows=[Probe(window=4, count=7)]) as report:
        probed = model(ids)
    exact = [row for row in range(PREFIX) if bool(probed.logits[0, row].isfinite().all())]
    assert len(exact) == 7
    assert report.held_bytes == 4 * 2 * PROMPT * 16 * 4  # late layers, keys and values, columns, heads, fp32
    with fill.applied(model, tail=TAIL, rows=[Explicit(rows=tuple(exact))]) as other:
        named = model(ids)
    assert other.held_bytes == 0
    torch.testing.assert_close(named.logits, probed.logits, rtol=0, atol=1e-5, equal_nan=True)


@torch.no_grad()
def test_rows_help_where_they_stand(tiny_model: Callable[..., Any]) -> None:
    """The runtime's own predictor agrees with the reference's, so that the loop above tests rows alone."""
    model, ids = tiny_model("llama"), tokens(PROMPT)
    rows = [3, 9, *range(PREFIX, PROMPT)]
    wanted, _ = row_by_row(model, ids, SPLIT, predict_with(MAPS), rows)
    with FILLS["ridge"].applied(model, tail=TAIL, rows=[Explicit(rows=(9, 3, 9))]):
        found = port_of(model).decoder(ids).last_hidden_state[:, rows]
    torch.testing.assert_close(found, port_of(model).decoder.norm(wanted), **close)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_attention_rows_are_those_that_transformers_attends_to(
    name: str, tiny_model: Callable[..., Any]
) -> None:
    model, ids = tiny_model(name, attention="eager"), tokens(PROMPT)
    attentions = model(ids, output_attentions=True).attentions
    for selector, asking in (
        (Attention(layers=(0, 1), window=6, count=5), slice(PROMPT - 6, PROMPT)),
        (QuestionBlind(layers=(0, 1), window=6, count=5), slice(PREFIX - 6, PREFIX)),
    ):
        total = sum(attentions[layer][0, :, asking, :PREFIX].double().sum(dim=(0, 1)) for layer in (0, 1))
        with FILLS["ridge"].applied(tiny_model(name), tail=TAIL, rows=[selector]):
            found = tiny_model(name)(ids).logits[0, :PREFIX].isfinite().all(-1)
        assert found.nonzero().flatten().tolist() == best(total, 5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("window", [4, TAIL])
@torch.no_grad()
def test_the_probe_is_a_stock_continuation_on_the_filled_cache(
    name: str, window: int, tiny_model: Callable[..., Any]
) -> None:
    """Its rows, at their own positions, on a cache of the filled prefix alone: late layers run by stock."""
    model, ids = tiny_model(name, attention="eager"), tokens(PROMPT)
    port = port_of(model)
    state = model(ids, output_hidden_states=True).hidden_states[SPLIT]
    asking = torch.arange(PROMPT - window, PROMPT)
    seen_columns = torch.cat([torch.arange(PREFIX), asking])
    hidden, total = state[:, asking], torch.zeros(PREFIX, dtype=torch.float64)
    for layer in range(SPLIT, port.n_layers):
        rotary = port.position_embeddings(layer, state, torch.arange(PROMPT)[None])
        keys, values = port.write(layer, predict_with(MAPS)(layer, state), rotary)
        cache = DynamicCache()
        for below in range(layer + 1):
            cache.update(keys[:, :, :PREFIX], values[:, :, :PREFIX], below)
        mask = seen_columns <= asking[:, None]
        reach = port.window(layer)
        if reach is not None:
            mask &= seen_columns > asking[:, None] - reach
        weights = []
        hook = port.layers[layer].self_attn.register_forward_hook(lambda *a, w=weights: w.append(a[-1][1]))
        hidden = port.layers[layer](
            hidden,
            attention_mask=torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)[
                None, None
            ],
            position_embeddings=tuple(part[:, asking] for part in rotary),
            position_ids=asking[None],
            cache=cache,
        )
        hook.remove()
        total += weights[0][0, :, :, :PREFIX].double().sum(dim=(0, 1))
    with FILLS["ridge"].applied(tiny_model(name), tail=TAIL, rows=[Probe(window=window, count=6)]):
        found = tiny_model(name)(ids).logits[0, :PREFIX].isfinite().all(-1)
    assert found.nonzero().flatten().tolist() == best(total, 6)


@torch.no_grad()
def test_selectors_in_a_list_spend_on_different_rows(tiny_model: Callable[..., Any]) -> None:
    """Sink rows are what attention likes best; listed before, they cost it nothing."""
    model, ids = tiny_model("llama"), tokens(PROMPT)
    for rows, sinks in (([Sinks(4), LOWER], 0), ([LOWER], 4)):
        with FILLS["ridge"].applied(model, tail=TAIL, rows=rows, sink_rows=sinks) as report:
            found = model(ids).logits[0, :PREFIX].isfinite().all(-1)
        assert int(found.sum()) == report.rows_chosen == 4 + 5
        assert bool(found[:4].all())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rows": []}, "empty selection"),
        ({"rows": [Sinks(2), Sinks(3)]}, "sinks twice"),
        ({"rows": [Probe(count=3)]}, "256 rows, and the tail that holds them has 8"),
        ({"rows": [Attention()]}, "below split 2"),
        ({"rows": [Digits()]}, "tokenizer"),
        ({"splice": "queries"}, "no splice 'queries'"),
        ({"splice": "keys", "corrections": Corrections(key_rescale=True)}, "nothing to correct"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_model_runs(
    settings: dict[str, Any], said: str, tiny_model: Callable[..., Any]
) -> None:
    model = tiny_model("llama")
    before = hooks(model)
    with pytest.raises(BadInput, match=said), FILLS["ridge"].applied(model, tail=TAIL, **settings):
        pass
    assert hooks(model) == before


@pytest.mark.parametrize("what", ["rows", "corrections", "splice"])
def test_no_fill_and_flash_take_none_of_it(what: str, tiny_model: Callable[..., Any]) -> None:
    settings: dict[str, Any] = {
        "rows": {"rows": [Sinks(2)]},
        "corrections": {"corrections": Corrections(value_rescale=True)},
        "splice": {"splice": "both"},
    }[what]
    with (
        pytest.raises(BadInput, match="no fill"),
        RidgeFill.no_fill(SPLIT).applied(tiny_model("llama"), tail=TAIL, **settings),
    ):
        pass
    flash = build_tiny("llama")
    flash.config._attn_implementation = "flash_attention_2"
    with (
        pytest.raises(BadInput, match="flash_attention_2"),
        FILLS["ridge"].applied(flash, tail=TAIL, **settings),
    ):
        pass


@torch.no_grad()
def test_a_row_outside_the_prefix_leaves_no_hooks(tiny_model: Callable[..., Any]) -> None:
    model, ids = tiny_model("llama"), tokens(PROMPT)
    before = hooks(model)
    with FILLS["ridge"].applied(model, tail=TAIL, rows=[Explicit(rows=(PREFIX,)), LOWER]):
        with pytest.raises(BadInput, match="outside the prefix"):
            model(ids)
        stock = model(ids[:, :TAIL]).logits
    assert hooks(model) == before
    assert torch.equal(model(ids[:, :TAIL]).logits, stock)
