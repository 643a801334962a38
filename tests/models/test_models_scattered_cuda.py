"""Attention of scattered rows on CUDA's own kernels against fp64; needs a GPU, so CI leaves it out."""

from __future__ import annotations

import pytest
import torch

from ridgefit.models import Rows, ScatteredRows
from ridgefit.models.masks import visible

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
TOTAL = 3000


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("width", [64, 128, 256])
@pytest.mark.parametrize("kv_heads", [2, 8])
@pytest.mark.parametrize("window", [None, 512])
@pytest.mark.parametrize("pads", [(), (0, 70)])
def test_scattered_rows_equal_fp64_under_a_mask(
    dtype: torch.dtype, width: int, kv_heads: int, window: int | None, pads: tuple[int, ...]
) -> None:
    generator = torch.Generator().manual_seed(0)
    chosen = [sorted(torch.randperm(2600, generator=generator)[:400].tolist()) for _ in range(2)]
    chosen[1] = [column for column in chosen[1] if column >= 70]
    rows = Rows.chosen(TOTAL, 400, chosen).to("cuda")

    def random(heads: int, count: int, seed: int) -> torch.Tensor:
        own = torch.Generator().manual_seed(seed)
        return torch.randn(2, count, heads, width, generator=own).to("cuda", dtype).transpose(1, 2)

    query, key, value = random(8, rows.count, 0), random(kv_heads, TOTAL, 1), random(kv_heads, TOTAL, 2)
    found = ScatteredRows(rows, window=window, pads=pads)(query, key, value, scale=0.1)
    wide = [part.double().repeat_interleave(8 // part.shape[1], 1) for part in (query, key, value)]
    valid = torch.arange(TOTAL)[None] >= torch.tensor(pads or (0, 0))[:, None]
    seen = visible(rows, window=window, valid=valid.cuda(), device="cuda")
    scores = (wide[0] @ wide[1].transpose(-1, -2) * 0.1).masked_fill(~seen, float("-inf"))
    truth = scores.softmax(-1) @ wide[2]
    step = torch.finfo(dtype).eps
    assert found.dtype == dtype
    assert (found.double() - truth).abs().max() <= (6 if dtype != torch.float32 else 40) * step
