"""Attention of scattered rows against loops over rows and columns in fp64."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch

from ridgefit.models import Rows, ScatteredRows, scattered
from ridgefit.models.scattered import blocks

TOTAL, HEADS, WIDTH = 23, 4, 8
SETS = {
    "one list": [[0, 3, 4, 11, 18, 19, 20, 21, 22]],
    "per sample": [[1, 9, 10, 21, 22], [5, 6, 13, 21, 22]],
    "one repeats": [[0, 0, 0, 21, 22], [2, 7, 9, 21, 22]],
    "everything": [list(range(TOTAL))],
    "alone": [[22]],
}


def looped(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    columns: list[list[int]],
    window: int | None,
    pads: tuple[int, ...],
    scale: float,
) -> torch.Tensor:
    """One sample, head, row and column at a time, with Python's own exp."""
    out = torch.zeros(*query.shape[:3], value.shape[-1], dtype=torch.float64)
    group = query.shape[1] // key.shape[1]
    for b in range(query.shape[0]):
        pad = pads[b] if pads else 0
        for h in range(query.shape[1]):
            for place, column in enumerate(columns[b % len(columns)]):
                seen = [c for c in range(pad, column + 1) if window is None or c > column - window] or [
                    column
                ]
                if column not in seen:
                    seen.append(column)
                scores = [
                    scale * float(query[b, h, place].double() @ key[b, h // group, c].double()) for c in seen
                ]
                top = max(scores)
                weights = [math.exp(score - top) for score in scores]
                for weight, c in zip(weights, seen, strict=True):
                    out[b, h, place] += weight / sum(weights) * value[b, h // group, c].double()
    return out


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=["whole", "small blocks", "fast kernels"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Blocks of every size, and the path that CUDA takes, with its kernels done in plain products."""
    if request.param != "whole":
        monkeypatch.setattr(scattered, "BLOCK_ROWS", 3)
        monkeypatch.setattr(scattered, "SPAN", 5)
    if request.param == "fast kernels":

        def unmasked(query: Any, key: Any, value: Any, scale: float | None) -> tuple[Any, Any]:
            group = query.shape[1] // key.shape[1]
            key, value = (part.repeat_interleave(group, 1) for part in (key, value))
            scores = query @ key.transpose(-1, -2) * (scale or WIDTH**-0.5)
            return scores.softmax(-1) @ value, scores.logsumexp(-1)

        monkeypatch.setattr(scattered, "fast_kernel", lambda *_: True)
        monkeypatch.setattr(scattered, "attend_unmasked", unmasked)
    return str(request.param)


@pytest.mark.parametrize("columns", SETS)
@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("pads", [(), (0, 4)])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_scattered_rows_against_loops(
    columns: str, window: int | None, pads: tuple[int, ...], kv_heads: int, way: str
) -> None:
    sets = SETS[columns]
    rows = Rows(TOTAL, columns=torch.tensor(sets))
    query = random(2, HEADS, rows.count, WIDTH, seed=0)
    if columns == "one repeats":  # a repeated row asks the same
        query[0, :, :3] = query[0, :, :1]
    key, value = random(2, kv_heads, TOTAL, WIDTH, seed=1), random(2, kv_heads, TOTAL, WIDTH, seed=2)
    found = ScatteredRows(rows, window=window, pads=pads)(query, key, value, scale=0.7)
    wanted = looped(query, key, value, sets, window, pads, 0.7)
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=2e-6)


def test_blocks_cover_every_row_once_and_stay_small() -> None:
    generator = torch.Generator().manual_seed(0)
    columns = sorted(torch.randperm(100_000, generator=generator)[:9000].tolist())
    cut = list(blocks(columns, 3, None))
    assert cut[0].start == 0
    assert cut[-1].stop == len(columns)
    assert all(one.stop == other.start for one, other in pairwise(cut))
    for block in cut:
        assert (block.first, block.last) == (columns[block.start], columns[block.stop - 1])
        assert block.stop - block.start <= scattered.BLOCK_ROWS
        assert block.last - block.first <= scattered.SPAN
        assert (block.stop - block.start) * 3 * (block.last + 1) <= scattered.MASK_ENTRIES


def test_halves_do_the_work_once_and_most_of_it_in_large_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    total, count = 40_000, 8000
    calls: list[int] = []
    masked: list[int] = []

    def unmasked(query: Any, key: Any, value: Any, scale: float | None) -> tuple[Any, Any]:
        calls.append(query.shape[2] * key.shape[2])
        return query, torch.zeros(query.shape[:3])

    def scored(query: Any, key: Any, value: Any, visible: Any, scale: float | None) -> tuple[Any, Any]:
        masked.append(visible.numel())
        return query, torch.zeros(query.shape[:3])

    monkeypatch.setattr(scattered, "fast_kernel", lambda *_: True)
    monkeypatch.setattr(scattered, "attend_unmasked", unmasked)
    monkeypatch.setattr(scattered, "_scored", scored)
    generator = torch.Generator().manual_seed(0)
    columns = sorted(torch.randperm(total - 1, generator=generator)[:count].tolist())
    rows = Rows(total, columns=torch.tensor([columns]))
    query, key = random(1, 1, count, WIDTH, seed=0), random(1, 1, total, WIDTH, seed=1)
    ScatteredRows(rows)(query, key, key)
    seen = sum(column + 1 for column in columns)
    assert seen <= sum(calls) + sum(masked) <= 1.1 * seen
    assert sum(masked) <= 0.15 * seen
    assert max(calls) >= 0.45 * seen
    assert sum(sorted(calls)[-3:]) >= 0.7 * seen


def test_rows_of_different_lengths_repeat_their_first() -> None:
    rows = Rows.chosen(10, 2, [[1, 4, 8], [], [3]])
    assert rows.columns is not None
    assert rows.columns.tolist() == [[1, 4, 8, 9], [8, 8, 8, 9], [3, 3, 8, 9]]
