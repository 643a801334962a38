"""Attention by runs on CUDA's own kernels against fp64; needs a GPU, so CI leaves it out."""

from __future__ import annotations

import pytest
import torch

from ridgefit.models.masks import visible
from ridgefit.models.rows import Rows
from ridgefit.models.runs import attend_runs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("width", [64, 128, 256])
@pytest.mark.parametrize("kv_heads", [2, 8])
@pytest.mark.parametrize(
    "runs",
    [((700, 1000),), ((0, 4), (700, 1000)), ((999, 1000),), ((0, 1000),), ((1, 3), (5, 6), (500, 1000))],
)
def test_runs_equal_fp64_under_a_mask(
    dtype: torch.dtype, width: int, kv_heads: int, runs: tuple[tuple[int, int], ...]
) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    rows = Rows(1000, runs=runs)

    def random(heads: int, count: int) -> torch.Tensor:
        made = torch.randn(1, count, heads, width, device="cuda", generator=generator)
        return made.to(dtype).transpose(1, 2)  # the layout in which layers hold them

    query, key, value = random(8, rows.count), random(kv_heads, 1000), random(kv_heads, 1000)
    found = attend_runs(query, key, value, runs, scale=0.1)
    wide = [part.double().repeat_interleave(8 // part.shape[1], 1) for part in (query, key, value)]
    scores = (wide[0] @ wide[1].transpose(-1, -2) * 0.1).masked_fill(
        ~visible(rows, device="cuda"), float("-inf")
    )
    truth = scores.softmax(-1) @ wide[2]
    step = torch.finfo(dtype).eps
    assert found.dtype == dtype
    assert (found.double() - truth).abs().max() <= (4 if dtype != torch.float32 else 40) * step
