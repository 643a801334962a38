"""Rows and masks against numpy indexing and loops over columns."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import build_tiny, tokens
from torch.nn import functional as F
from transformers import DynamicCache

from ridgefit.models import Rows
from ridgefit.models.call import cache_columns
from ridgefit.models.masks import (
    as_mask,
    hide_columns,
    padding_of,
    row_mask,
    rows_alone_mask,
    visible,
)
from ridgefit.models.runs import RunKeys, merged

RUNS = Rows(10, runs=((1, 3), (6, 10)))
LIST = Rows(10, columns=torch.tensor([[0, 4, 9], [2, 3, 7]]))


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "rows", [RUNS, LIST, Rows(10, columns=torch.tensor([[1, 5, 8]])), Rows.everything(10)]
)
@pytest.mark.parametrize("dim", [1, 2, -1])
def test_take_and_put_are_fancy_indexing(rows: Rows, dim: int) -> None:
    source = random(2, 10, 10, 10)
    index = rows.index().expand(2, -1).numpy()
    wanted = np.stack([np.take(source[b].numpy(), index[b], axis=dim % 4 - 1) for b in range(2)])
    taken = rows.take(source, dim)
    assert np.array_equal(taken.numpy(), wanted)
    target = torch.zeros_like(source)
    rows.put(target, taken, dim)
    expected = np.zeros(source.shape, dtype=np.float32)
    for b in range(2):
        place: list[Any] = [slice(None)] * 3
        place[dim % 4 - 1] = index[b]
        expected[b][tuple(place)] = wanted[b]
    assert np.array_equal(target.numpy(), expected)


def test_one_sample_serves_many() -> None:
    assert LIST.take(torch.arange(10)[None], 1).tolist() == LIST.index().tolist()
    assert RUNS.take(torch.arange(10)[None], 1).tolist() == [[1, 2, 6, 7, 8, 9]]


def test_one_run_is_a_view() -> None:
    source = random(1, 10, 3)
    tail = Rows.sinks_and_tail(10, 4, 0)
    assert tail.is_tail
    assert tail.take(source, 1).data_ptr() == source[:, 6:].data_ptr()


@pytest.mark.parametrize(("tail", "sinks"), [(3, 2), (3, 0), (1, 9), (3, 7), (3, 50), (10, 4)])
def test_sinks_and_tail_without_padding(tail: int, sinks: int) -> None:
    rows = Rows.sinks_and_tail(10, tail, sinks)
    wanted = sorted(set(range(min(sinks, 10 - tail))) | set(range(10 - tail, 10)))
    assert rows.index().tolist() == [wanted]
    assert rows.count == len(wanted)


@pytest.mark.parametrize("pads", [[0, 2], [3, 3], [0, 6], [5, 8], [2, 9]])
def test_sinks_are_each_samples_first_tokens(pads: list[int]) -> None:
    tail, sinks = 3, 2
    rows = Rows.sinks_and_tail(10, tail, sinks, pads)
    for pad, columns in zip(pads, rows.index().expand(len(pads), -1).tolist(), strict=True):
        assert columns == sorted(set(columns))
        assert len(columns) == tail + sinks
        assert set(range(7, 10)) <= set(columns)
        assert set(range(pad, min(pad + sinks, 10))) <= set(columns)  # in the sinks, or in the tail already


@pytest.mark.parametrize("rows", [RUNS, LIST])
@pytest.mark.parametrize("window", [None, 1, 4, 30])
@pytest.mark.parametrize("pads", [None, [0, 3]])
@pytest.mark.parametrize("first", [0, 2])
def test_visible_against_loops(rows: Rows, window: int | None, pads: list[int] | None, first: int) -> None:
    valid = None if pads is None else torch.arange(10)[None] >= torch.tensor(pads)[:, None]
    seen = visible(rows, window=window, valid=valid, first=first).expand(2, -1, -1, -1)
    index = rows.index().expand(2, -1).tolist()
    for b, (place, query) in itertools.product(range(2), enumerate(index[0])):
        query = index[b][place]
        for key in range(first, 10):
            sees = key <= query and (window is None or query - key < window)
            sees = sees and (pads is None or key >= pads[b])
            assert bool(seen[b, 0, place, key - first]) == (sees or key == query)


@pytest.mark.parametrize("name", ["gemma3", "llama"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("rows", [RUNS, LIST, Rows(10, runs=((5, 10),))])
def test_rows_of_the_stock_mask_are_the_positions_own(name: str, attention: str, rows: Rows) -> None:
    """Masks that transformers makes for a padded prompt, cut to rows, equal masks made from columns."""
    model = build_tiny(name, attention=attention)
    masks: list[Any] = []
    layers = (model.model.layers[0], model.model.layers[2])  # sliding and full in Gemma 3
    for layer in layers:
        layer.register_forward_pre_hook(lambda _, a, kw: masks.append(kw["attention_mask"]), with_kwargs=True)
    pads = torch.arange(10)[None] >= torch.tensor([[0], [4]])
    with torch.no_grad():
        model(tokens(10, batch=2), attention_mask=pads.long())
    for mask, window in zip(masks, (8 if name == "gemma3" else None, None), strict=True):
        assert torch.equal(padding_of(mask, 10), pads)
        for first in (0, 1):
            cut = row_mask(mask, rows, first=first, padded=True, attention=attention)
            made = as_mask(visible(rows, window=window, valid=pads, first=first), attention, torch.float32)
            assert torch.equal(cut, made.expand_as(cut))
        alone = rows_alone_mask(mask, rows, padded=True)
        made = as_mask(rows.take(visible(rows, window=window, valid=pads), -1), attention, torch.float32)
        assert torch.equal(alone, made.expand_as(alone))


def test_padding_is_read_from_any_mask() -> None:
    flat = torch.tensor([[0, 1, 1], [1, 1, 1]])
    assert padding_of(None, 3) is None
    assert padding_of({"full_attention": None, "sliding_attention": None}, 3) is None
    assert torch.equal(padding_of(flat, 3), flat.bool())
    square = (torch.ones(3, 3).tril().bool() & flat.bool()[:, None])[:, None]
    assert torch.equal(padding_of({"full_attention": None, "sliding_attention": square}, 3), flat.bool())
    assert torch.equal(padding_of(as_mask(square, "eager", torch.float32), 3), flat.bool())


def test_no_mask_needed_for_the_last_row_alone() -> None:
    assert row_mask(None, Rows(10, runs=((9, 10),))) is None
    assert torch.equal(row_mask(None, RUNS), visible(RUNS))
    assert rows_alone_mask(None, RUNS) is None
    flat = torch.tensor([[0, 0, 1, 1]])
    assert torch.equal(
        row_mask(flat, Rows(4, runs=((2, 4),)), first=1, attention="flash_attention_2"), flat[:, 1:]
    )


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("runs", [((0, 3), (7, 12)), ((7, 12),), ((11, 12),), ((0, 12),), ((0, 2), (2, 12))])
def test_run_wise_attention_equals_the_dense_mask(runs: tuple[tuple[int, int], ...], grouped: bool) -> None:
    rows = Rows(12, runs=runs)
    heads = 2 if grouped else 4
    query, key, value = random(2, 4, rows.count, 8), random(2, heads, 12, 8), random(2, heads, 12, 8).flip(2)
    keys = RunKeys.of(key, runs)
    attended = F.scaled_dot_product_attention(query, keys, value, scale=0.3, enable_gqa=grouped)
    dense = F.scaled_dot_product_attention(query, key, value, visible(rows), scale=0.3, enable_gqa=grouped)
    torch.testing.assert_close(attended, dense, rtol=0, atol=1e-6)
    assert type(attended) is torch.Tensor
    assert keys[:, :, 1:].contiguous().attend is keys.attend  # views and copies of them still know
    with pytest.raises(ValueError, match="no mask"):
        F.scaled_dot_product_attention(query, keys, value, is_causal=True)


def test_two_halves_of_the_keys_merge_to_all_of_them() -> None:
    query, key, value = (random(1, 2, rows, 8).double() for rows in (5, 12, 12))
    scores = query @ key.transpose(-1, -2)
    halves = []
    for part in (slice(0, 7), slice(7, 12)):
        weights = scores[..., part].softmax(-1)
        halves.append(((weights @ value[:, :, part]).float(), scores[..., part].logsumexp(-1).float()))
    attended, total = merged(*halves)
    torch.testing.assert_close(attended, (scores.softmax(-1) @ value).float(), rtol=0, atol=1e-5)
    torch.testing.assert_close(total, scores.logsumexp(-1).float(), rtol=0, atol=1e-5)


def test_hidden_columns_leave_a_decode_mask() -> None:
    hidden = torch.tensor([[True, True, False, False]])
    mask = hide_columns(None, hidden, queries=2, keys=6, first=0)
    assert mask[0, 0].int().tolist() == [[0, 0, 1, 1, 1, 0], [0, 0, 1, 1, 1, 1]]
    additive = hide_columns(torch.zeros(1, 1, 1, 5), hidden, queries=1, keys=5, first=0)
    assert (additive[0, 0, 0] == torch.finfo(torch.float32).min).tolist() == [True, True, False, False, False]
    later = hide_columns(None, hidden, queries=1, keys=4, first=1)  # a window that has let column 0 go
    assert later[0, 0].int().tolist() == [[0, 1, 1, 1]]
    gone = hide_columns(None, hidden, queries=1, keys=4, first=7)
    assert gone.all()


def test_cache_columns_of_a_window() -> None:
    model = build_tiny("gemma3")
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(tokens(12), cache=cache)
    assert cache_columns(cache, 1, 0) == (8, 5)
    assert cache_columns(cache, 1, 2) == (13, 0)
