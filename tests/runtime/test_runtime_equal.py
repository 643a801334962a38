"""What must equal what: off, plumb and every row exact against stock; maps I, 0 against identity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from runtime_reference import HIDDEN, hooks, random_maps
from tiny_models import LAYERS, TINY, tokens
from transformers import DynamicCache, StaticCache

from ridgefit.maps import LayerMap, MapSet
from ridgefit.runtime import RidgeFill

NAMES = sorted(TINY)
SPLIT, PROMPT, TAIL = 2, 30, 11
FILLS = {
    "ridge": RidgeFill.of(random_maps(SPLIT)),
    "identity": RidgeFill.identity(SPLIT),
    "none": RidgeFill.no_fill(SPLIT),
}
both = pytest.mark.parametrize("attention", ["sdpa", "eager"])
every = pytest.mark.parametrize("name", NAMES)


@torch.no_grad()
def two_turns(model: Any, cache: Any = None, *, batch: int = 1) -> torch.Tensor:
    """Logits of a prompt and of a second turn on its cache."""
    ids = tokens(PROMPT + 5, batch=batch)
    first = model(ids[:, :PROMPT], cache=cache, use_cache=True)
    second = model(ids[:, PROMPT:], cache=first.cache)
    return torch.cat([first.logits, second.logits], dim=1)


@every
@both
@pytest.mark.parametrize("fill", FILLS)
def test_off_and_plumb_are_stock_bit_for_bit(
    name: str, attention: str, fill: str, tiny_model: Callable[..., Any]
) -> None:
    model = tiny_model(name, attention=attention)
    stock, before = two_turns(model), hooks(model)
    with FILLS[fill].applied(model, tail=TAIL, plumb=True) as report:
        plumb = two_turns(model)
    assert torch.equal(plumb, stock)
    assert report.filled == 0
    with FILLS[fill].applied(model, tail=TAIL):
        assert not torch.equal(two_turns(model)[:, -5:], stock[:, -5:])
    assert torch.equal(two_turns(model), stock)
    assert hooks(model) == before


@every
@both
@pytest.mark.parametrize("batch", [1, 2])
def test_every_row_exact_is_stock(
    name: str, attention: str, batch: int, tiny_model: Callable[..., Any]
) -> None:
    model = tiny_model(name, attention=attention)
    stock = two_turns(model, batch=batch).log_softmax(-1)
    for fill in FILLS.values():
        with fill.applied(model, tail=TAIL, sink_rows=PROMPT - TAIL):
            exact = two_turns(model, batch=batch).log_softmax(-1)
        torch.testing.assert_close(exact, stock, rtol=0, atol=1e-5)


@every
@both
def test_unit_maps_are_identity(name: str, attention: str, tiny_model: Callable[..., Any]) -> None:
    model = tiny_model(name, attention=attention)
    unit = LayerMap(torch.eye(HIDDEN), torch.zeros(HIDDEN))
    ridge = RidgeFill.of(MapSet.of(dict.fromkeys(range(SPLIT, LAYERS), unit)))
    with ridge.applied(model, tail=TAIL, sink_rows=2):
        found = two_turns(model)
    with FILLS["identity"].applied(model, tail=TAIL, sink_rows=2):
        wanted = two_turns(model)
    assert torch.equal(found.isnan(), wanted.isnan())
    assert torch.equal(found.nan_to_num(), wanted.nan_to_num())


@every
def test_eager_and_sdpa_agree_under_the_fill(name: str, tiny_model: Callable[..., Any]) -> None:
    found = []
    for attention in ("sdpa", "eager"):
        with FILLS["ridge"].applied(tiny_model(name, attention=attention), tail=TAIL, sink_rows=3):
            found.append(two_turns(tiny_model(name, attention=attention)).log_softmax(-1))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("name", ["llama", "gemma3", "mistral-sliding", "phi3-partial"])
@pytest.mark.parametrize("fill", FILLS)
def test_caches_of_other_kinds_agree(name: str, fill: str, tiny_model: Callable[..., Any]) -> None:
    model = tiny_model(name)
    caches = {
        "windowed": DynamicCache(config=model.config),
        "whole": DynamicCache(),
        "static": StaticCache(config=model.config, max_cache_len=PROMPT + 12),
    }
    with FILLS[fill].applied(model, tail=TAIL, sink_rows=2) as report:
        found = {kind: two_turns(model, cache).log_softmax(-1) for kind, cache in caches.items()}
        without = model(tokens(PROMPT + 5)[:, :PROMPT], use_cache=False).logits.log_softmax(-1)
    assert report.filled == 4
    for kind in ("whole", "static"):
        torch.testing.assert_close(found[kind], found["windowed"], rtol=0, atol=1e-4, equal_nan=True)
    torch.testing.assert_close(without, found["windowed"][:, :PROMPT], rtol=0, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("rows", [1, 5, TAIL])
@pytest.mark.parametrize("fill", FILLS)
def test_prompts_within_the_tail_are_stock(rows: int, fill: str, tiny_model: Callable[..., Any]) -> None:
    model = tiny_model("llama")
    ids = tokens(rows)
    with torch.no_grad():
        stock = model(ids).logits
        with FILLS[fill].applied(model, tail=TAIL, sink_rows=3) as report:
            assert torch.equal(model(ids).logits, stock)
    assert (report.filled, report.exact) == (0, 1)


@both
def test_a_second_turn_is_stock(attention: str, tiny_model: Callable[..., Any]) -> None:
    """Inside the block or after it: on a cache that holds something, ridge and identity do nothing."""
    model = tiny_model("llama", attention=attention)
    ids, turn = tokens(PROMPT), tokens(TAIL + 9, seed=1)
    found = []
    for inside in (True, False):
        with torch.no_grad(), FILLS["ridge"].applied(model, tail=TAIL) as report:
            cache = model(ids).cache
            if inside:
                found.append(model(turn, cache=cache).logits)
        if not inside:
            with torch.no_grad():
                found.append(model(turn, cache=cache).logits)
        assert (report.filled, report.exact) == (1, 0)
    assert torch.equal(found[0], found[1])
    assert found[0].isfinite().all()


@pytest.mark.parametrize("fill", FILLS)
def test_nothing_stays_after_an_exception(fill: str, tiny_model: Callable[..., Any]) -> None:
    model = tiny_model("gemma3")
    stock, before = two_turns(model), hooks(model)

    def fail(*args: Any) -> None:
        raise RuntimeError("in a late layer")

    trap = model.model.layers[4].register_forward_pre_hook(fail)
    trapped = hooks(model)
    with pytest.raises(RuntimeError, match="late layer"), FILLS[fill].applied(model, tail=TAIL):
        two_turns(model)
    assert hooks(model) == trapped
    with FILLS[fill].applied(model, tail=TAIL):
        entered = hooks(model)
        with pytest.raises(RuntimeError, match="late layer"):
            two_turns(model)
        assert hooks(model) == entered  # caught inside: late layers are free again
        trap.remove()
        filled = two_turns(model)
    assert hooks(model) == before
    assert torch.equal(two_turns(model), stock)
    with FILLS[fill].applied(model, tail=TAIL):
        assert torch.equal(two_turns(model).nan_to_num(), filled.nan_to_num())


def test_an_interrupted_call_leaves_no_hooks_for_the_next(tiny_model: Callable[..., Any]) -> None:
    model = tiny_model("llama")

    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    with FILLS["ridge"].applied(model, tail=TAIL):
        wanted = two_turns(model)
        trap = model.model.layers[4].register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            two_turns(model)
        trap.remove()
        assert torch.equal(two_turns(model).nan_to_num(), wanted.nan_to_num())
