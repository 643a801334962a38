"""Flash attention's side of the bargain, kept by a stand-in: it is not installed where the tests run.

The stand-in does what transformers' wrapper promises: causal, aligned to the lower right corner; padding
as a mask of columns whose last entries are the queries'; a window given as a keyword.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from runtime_reference import random_maps
from tiny_models import build_tiny, tokens
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ridgefit.runtime import RidgeFill

SPLIT, PROMPT, TAIL = 2, 30, 11


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    rows, keys = query.shape[2], key.shape[2]
    gap = torch.arange(keys - rows, keys)[:, None] - torch.arange(keys)[None]
    seen = (gap >= 0) & (gap < (sliding_window or keys))
    seen = seen[None, None].expand(query.shape[0], 1, -1, -1).clone()
    if attention_mask is not None:
        assert attention_mask.shape == (query.shape[0], keys)
        seen &= attention_mask.bool()[:, None, None]
        seen |= torch.eye(keys, dtype=torch.bool)[-rows:]
    groups = module.num_key_value_groups
    out = torch.nn.functional.scaled_dot_product_attention(
        query, key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1), seen, scale=scaling
    )
    return out.transpose(1, 2), None


@pytest.mark.parametrize("name", ["llama", "gemma3", "mistral-sliding", "qwen3"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("fill", [RidgeFill.of(random_maps(SPLIT)), RidgeFill.identity(SPLIT)])
@torch.no_grad()
def test_tail_over_filled_rows(
    name: str, padded: bool, fill: RidgeFill, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = tokens(PROMPT, batch=2)
    mask = torch.ones_like(ids)
    mask[1, : 7 if padded else 0] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    found = []
    for attention in ("sdpa", "flash_attention_2"):
        model = build_tiny(name)
        with monkeypatch.context() as patch:
            patch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "flash_attention_2", attend)
            model.config._attn_implementation = attention
            with fill.applied(model, tail=TAIL) as report:
                out = model(ids, attention_mask=mask, position_ids=positions)
                step = model(
                    tokens(1, batch=2, seed=1),
                    attention_mask=torch.nn.functional.pad(mask, (0, 1), value=1),
                    position_ids=positions[:, -1:] + 1,
                    cache=out.cache,
                )
        assert report.filled == 1
        found.append(torch.cat([out.logits[:, -TAIL:], step.logits], 1))
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-4)
