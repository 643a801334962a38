"""A prompt in several calls is filled as in one: any family, cache, padding, and cut."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from runtime_reference import HIDDEN, hooks, random_maps
from tiny_models import LAYERS, TINY, WINDOW, tokens
from transformers import DynamicCache, StaticCache

from ridgefit.errors import BadInput
from ridgefit.maps import LayerMap, MapSet
from ridgefit.runtime import FillReport, RidgeFill

SPLIT, PROMPT, TAIL, RANK = 3, 41, 11, 6
NAMES = ("state", "previous-1", "lower-2", "average-4", "previous-3")
# Parts without an exact row, of one row, that straddle the tail's start, and that end in the tail.
CUTS = ([13, 26], [1, 2, 3, 29, 30, 31], [35], [5, 40], list(range(1, PROMPT)))
both = pytest.mark.parametrize("attention", ["sdpa", "eager"])


def feature_maps() -> MapSet:
    generator = torch.Generator().manual_seed(3)

    def item(layer: int) -> LayerMap:
        width = HIDDEN if layer == LAYERS - 1 else HIDDEN + RANK
        weight = 0.3 * torch.randn(HIDDEN, width, generator=generator) / width**0.5
        weight[:, :HIDDEN] += torch.eye(HIDDEN)
        return LayerMap(weight, 0.3 * torch.randn(HIDDEN, generator=generator))

    rest = HIDDEN * (len(NAMES) - 1)
    bottleneck = torch.randn(rest, RANK, generator=generator) / rest**0.5
    layers = range(SPLIT, LAYERS)
    return MapSet.of({layer: item(layer) for layer in layers}, features=NAMES, bottleneck=bottleneck)


FILLS = {
    "state": RidgeFill.of(random_maps(SPLIT)),
    "features": RidgeFill.of(feature_maps()),
    "identity": RidgeFill.identity(SPLIT),
}


@torch.no_grad()
def in_parts(
    model: Any, ids: torch.Tensor, cuts: Sequence[int], cache: Any, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Logits of every column, the parts side by side."""
    found, stops = [], [*cuts, ids.shape[1]]
    for start, stop in zip([0, *cuts], stops, strict=True):
        inside = {} if mask is None else {"attention_mask": mask[:, :stop]}
        if mask is not None:
            inside["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)[:, start:stop]
        found.append(model(ids[:, start:stop], cache=cache, use_cache=True, **inside).logits)
    return torch.cat(found, dim=1)


def same(found: torch.Tensor, wanted: torch.Tensor, model: Any) -> None:
    """Log-probabilities within 1e-5, or what the stock model's own parts differ by, where that is more."""
    ids = tokens(PROMPT, seed=11)
    one, two = (in_parts(model, ids, cuts, DynamicCache()).log_softmax(-1) for cuts in ([], CUTS[1]))
    limit = max(1e-5, 2 * float((one - two).abs().max()))
    torch.testing.assert_close(
        found.log_softmax(-1), wanted.log_softmax(-1), rtol=0, atol=limit, equal_nan=True
    )


@torch.no_grad()
def decoded(model: Any, cache: Any, mask: torch.Tensor | None = None, *, batch: int = 1) -> torch.Tensor:
    """Logits of further tokens, one by one."""
    found = []
    for step, token in enumerate(tokens(4, seed=1).unbind(1)):
        more = {}
        if mask is not None:
            longer = torch.cat([mask, mask.new_ones(batch, step + 1)], 1)
            more = {"attention_mask": longer, "position_ids": longer.cumsum(1)[:, -1:] - 1}
        found.append(model(token.expand(batch)[:, None], cache=cache, **more).logits)
    return torch.cat(found, dim=1)


@pytest.mark.parametrize(
    ("name", "fill"),
    [
        *((name, "features") for name in sorted(TINY)),
        ("llama", "state"),
        ("gemma3", "state"),
        ("llama", "identity"),
    ],
)
@both
def test_parts_equal_one_call(name: str, fill: str, attention: str, tiny_model: Callable[..., Any]) -> None:
    model, ids = tiny_model(name, attention=attention), tokens(PROMPT)
    for sinks in (0, 4):
        settings = {"tail": TAIL, "sink_rows": sinks}
        whole = DynamicCache(config=model.config)
        with FILLS[fill].applied(model, **settings) as once:
            wanted = in_parts(model, ids, [], whole)
            wanted_later = decoded(model, whole)
        for cuts in CUTS[1:4] if sinks else CUTS[:1]:
            cache = DynamicCache(config=model.config)
            with FILLS[fill].applied(model, **settings, prompt_tokens=PROMPT) as report:
                found = in_parts(model, ids, cuts, cache)
                later = decoded(model, cache)
            assert report == once
            assert torch.equal(found.isnan(), wanted.isnan())
            same(found, wanted, model)
            same(later, wanted_later, model)


@pytest.mark.parametrize("name", ["llama", "gemma3", "mistral-sliding", "qwen3_moe"])
@pytest.mark.parametrize("kind", ["windowed", "whole", "static"])
def test_every_column_its_own_part(name: str, kind: str, tiny_model: Callable[..., Any]) -> None:
    model, ids = tiny_model(name), tokens(PROMPT)

    def cache() -> Any:
        if kind == "static":
            return StaticCache(config=model.config, max_cache_len=PROMPT + WINDOW + 3)
        return DynamicCache(config=model.config) if kind == "windowed" else DynamicCache()

    one, several = cache(), [cache() for _ in range(2)]
    with FILLS["features"].applied(model, tail=TAIL, sink_rows=3):
        wanted = torch.cat([in_parts(model, ids, [], one)[:, -TAIL:], decoded(model, one)], 1)
    for cuts, held in zip((CUTS[4], CUTS[0]), several, strict=True):
        with FILLS["features"].applied(model, tail=TAIL, sink_rows=3, prompt_tokens=PROMPT):
            found = torch.cat([in_parts(model, ids, cuts, held)[:, -TAIL:], decoded(model, held)], 1)
        same(found, wanted, model)


@pytest.mark.parametrize(
    ("name", "attention"), [("llama", "eager"), *((n, "sdpa") for n in ("llama", "gemma3", "phi3-partial"))]
)
def test_a_left_padded_batch_in_parts_equals_single_prompts(
    name: str, attention: str, tiny_model: Callable[..., Any]
) -> None:
    """Samples begin in different parts, so that their sink rows do too; one is as short as its tail."""
    model = tiny_model(name, attention=attention)
    lengths = (PROMPT, 22, TAIL + 2, 30)
    ids, mask = torch.zeros(2, len(lengths), PROMPT, dtype=torch.long)
    for at, length in enumerate(lengths):
        ids[at, PROMPT - length :], mask[at, PROMPT - length :] = tokens(length, seed=at)[0], 1
    for fill in ("state", "features"):
        for sinks in (0, 3):
            alone = []
            for at, length in enumerate(lengths):
                held = DynamicCache()
                with FILLS[fill].applied(model, tail=TAIL, sink_rows=min(sinks, length - TAIL)):
                    first = in_parts(model, tokens(length, seed=at), [], held)[:, -TAIL:]
                    alone.append(torch.cat([first, decoded(model, held)], 1))
            with FILLS[fill].applied(model, tail=TAIL, sink_rows=sinks) as once:
                in_parts(model, ids, [], DynamicCache(), mask)
            for cuts in ([7, 20], [13, 26, 38], CUTS[4]):
                cache = DynamicCache()
                with FILLS[fill].applied(model, tail=TAIL, sink_rows=sinks, prompt_tokens=PROMPT) as report:
                    found = in_parts(model, ids, cuts, cache, mask)[:, -TAIL:]
                    found = torch.cat([found, decoded(model, cache, mask, batch=len(lengths))], 1)
                for at in range(len(lengths)):
                    if sinks and lengths[at] < TAIL + sinks:
                        continue  # such a sample has padding rows among its sinks, in one call too
                    same(found[at], alone[at][0], model)
                assert report == once


@pytest.mark.parametrize("fill", FILLS)
def test_plumb_is_stock_bit_for_bit(fill: str, tiny_model: Callable[..., Any]) -> None:
    model, ids = tiny_model("gemma3"), tokens(PROMPT)
    before = hooks(model)
    for cuts in CUTS[:2]:
        wanted = in_parts(model, ids, cuts, DynamicCache())
        with FILLS[fill].applied(model, tail=TAIL, plumb=True, prompt_tokens=PROMPT) as report:
            assert torch.equal(in_parts(model, ids, cuts, DynamicCache()), wanted)
        assert report == FillReport()
    assert hooks(model) == before


@both
def test_every_row_exact_is_stock(attention: str, tiny_model: Callable[..., Any]) -> None:
    model, ids = tiny_model("qwen3", attention=attention), tokens(PROMPT)
    stock = in_parts(model, ids, CUTS[0], DynamicCache())
    with FILLS["state"].applied(model, tail=TAIL, sink_rows=PROMPT, prompt_tokens=PROMPT):
        found = in_parts(model, ids, CUTS[0], DynamicCache())
    same(found, stock, model)


def test_prompts_within_the_tail_and_what_follows_a_prompt_are_stock(tiny_model: Callable[..., Any]) -> None:
    model, ids = tiny_model("llama"), tokens(TAIL)
    stock = in_parts(model, ids, [4], DynamicCache())
    with FILLS["features"].applied(model, tail=TAIL, prompt_tokens=TAIL) as report:
        assert torch.equal(in_parts(model, ids, [4], DynamicCache()), stock)
    assert report == FillReport(exact=1)
    turn, cache = tokens(2 * TAIL, seed=5), DynamicCache()
    with FILLS["features"].applied(model, tail=TAIL, prompt_tokens=PROMPT) as report:
        in_parts(model, tokens(PROMPT), CUTS[0], cache)
        kept = copy.deepcopy(cache)
        inside = in_parts(model, turn, [], cache)
    assert vars(cache).keys() == vars(DynamicCache()).keys()
    assert torch.equal(in_parts(model, turn, [], kept), inside)
    assert report.filled == 1


def test_a_copied_cache_goes_on_from_where_it_was_copied(tiny_model: Callable[..., Any]) -> None:
    model, ids, other = tiny_model("llama"), tokens(PROMPT), tokens(PROMPT, seed=7)
    fill = FILLS["features"]
    other[:, :20] = ids[:, :20]
    with fill.applied(model, tail=TAIL):
        wanted = [in_parts(model, part, [], DynamicCache())[:, -TAIL:] for part in (ids, other)]
    with fill.applied(model, tail=TAIL, prompt_tokens=PROMPT):
        cache = DynamicCache()
        in_parts(model, ids[:, :20], [], cache)
        branch = copy.deepcopy(cache)
        found = [
            in_parts(model, part[:, 20:], [9], held)[:, -TAIL:]
            for part, held in ((ids, cache), (other, branch))
        ]
    for one, exact in zip(found, wanted, strict=True):
        same(one, exact, model)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_generate_reads_its_prompt_in_chunks(name: str, tiny_model: Callable[..., Any]) -> None:
    """transformers' own chunked prefill."""
    model, fill = tiny_model(name), FILLS["features"]
    ids, mask = tokens(PROMPT, batch=2), torch.ones(2, PROMPT, dtype=torch.long)
    ids[1, :17], mask[1, :17] = 0, 0
    options = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    with fill.applied(model, tail=TAIL) as once:
        wanted = model.generate(ids, **options)
    for size in (10, 16, PROMPT):
        with fill.applied(model, tail=TAIL, prompt_tokens=PROMPT) as report:
            assert torch.equal(model.generate(ids, **options, prefill_chunk_size=size), wanted)
        assert report == once


def test_prompts_one_after_another(tiny_model: Callable[..., Any]) -> None:
    """Nothing of one prompt's rows is left for the next."""
    model, fill = tiny_model("llama"), FILLS["features"]
    found = []
    for _ in range(2):
        with fill.applied(model, tail=TAIL, prompt_tokens=PROMPT):
            in_parts(model, tokens(PROMPT, seed=8)[:, :30], [], DynamicCache())  # never ended
            found += [in_parts(model, tokens(PROMPT), CUTS[0], DynamicCache()) for _ in range(2)]
    assert all(torch.equal(other.nan_to_num(), found[0].nan_to_num()) for other in found)


def test_what_cannot_be_filled_in_parts(tiny_model: Callable[..., Any]) -> None:
    model, fill = tiny_model("llama"), FILLS["state"]
    item = LayerMap(torch.zeros(HIDDEN, 2 * HIDDEN), torch.zeros(HIDDEN))
    control = MapSet.of(dict.fromkeys(range(SPLIT, LAYERS), item), features=("state", "control-next-1"))
    for refused, words in (
        (RidgeFill.no_fill(SPLIT), "no fill needs the whole prompt at once"),
        (RidgeFill.of(control), "control-next-1 is a control"),
    ):
        with pytest.raises(BadInput, match=words), refused.applied(model, tail=TAIL, prompt_tokens=PROMPT):
            pass
    with pytest.raises(BadInput, match="prompt of 0 tokens"), fill.applied(model, tail=TAIL, prompt_tokens=0):
        pass
    with (
        pytest.raises(BadInput, match="splices need the whole prompt at once"),
        fill.applied(model, tail=TAIL, prompt_tokens=PROMPT, splice="keys"),
    ):
        pass
    before = hooks(model)
    with fill.applied(model, tail=TAIL, prompt_tokens=PROMPT):
        cache = DynamicCache()
        in_parts(model, tokens(20), [], cache)
        cache.crop(-5)
        with pytest.raises(BadInput, match="cache holds 15 columns, and the prompt's parts so far had 20"):
            in_parts(model, tokens(5), [], cache)
        mask = torch.ones(1, 20, dtype=torch.long)
        mask[0, 15] = 0
        with pytest.raises(BadInput, match="right padding or holes"):
            in_parts(model, tokens(20), [10], DynamicCache(), mask)
        with pytest.raises(BadInput, match="output_hidden_states"):
            model(tokens(20), output_hidden_states=True)
    assert hooks(model) == before
