"""Attention masks that say in one pass what step-by-step decoding under RIFT-stat would see.

A dense pass of the frozen draft over the prompt gives scores; the sparse pass then lets every later query see
the selected columns and the newest ones. The boundaries are those of the draft cache: it has read all of the
prompt but its last token when it selects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ridgefit.models.attending import Plain, attending, decoder_of
from ridgefit.models.rollback import subset_cache, subset_layers
from ridgefit.runtime.draft.scores import LayerView, attention


@dataclass(frozen=True)
class Budget:
    """How much of a prompt stays in sight.

    Attributes:
        columns: B.
        recent: newest columns among them, r.
        observe: last prompt queries that score.
        kernel: width of the average over neighbouring scores.
    """

    columns: int
    recent: int
    observe: int
    kernel: int


def full_layers(model: Any) -> tuple[int, ...]:
    """Layers that attend to everything, which are those a draft cache compresses.

    Raises:
        BadInput: there is none.
    """
    return tuple(subset_layers(subset_cache(model, 2, 1)))


@torch.no_grad()
def selected_columns(frozen: Any, ids: Tensor, prefix: int, budget: Budget) -> dict[int, Tensor]:
    """Columns that each KV head selects after the prefix, by a dense pass of the frozen draft.

    Args:
        frozen: draft before training.
        ids: `[rows, tokens]`; the first `prefix` are read.
        prefix: tokens that stand in the cache when it selects: the prompt but its last.
        budget: sizes.

    Returns:
        layer -> sorted columns `[rows, kv_heads, B - r]`.
    """
    found: dict[int, Tensor] = {}
    wanted = full_layers(frozen)

    def attend(layer: int, queries: Tensor, keys: Tensor, scaling: float, mask: Any, plain: Plain) -> Any:
        if layer in wanted:
            found[layer] = torch.stack(
                [
                    _select(query[:, -budget.observe :], key, scaling, budget)
                    for query, key in zip(queries, keys, strict=True)
                ]
            )
        return plain(mask)

    with attending(decoder_of(frozen), attend):
        frozen(input_ids=ids[:, :prefix], use_cache=False)
    return found


def sparse_mask(columns: Tensor, heads: int, tokens: int, prefix: int, recent: int) -> Tensor:
    """What each query sees, bool `[rows, heads, tokens, tokens]`.

    Args:
        columns: `[rows, kv_heads, selected]`.
        heads: query heads.
        tokens: length of the sequence.
        prefix: queries before it see everything before them.
        recent: newest columns that later queries see, their own included.
    """
    rows, kv_heads, _ = columns.shape
    at = torch.arange(tokens, device=columns.device)
    dense = at[None, :] <= at[:, None]
    start = (at + 1 - recent).clamp(min=prefix - recent)
    window = dense & (at[None, :] >= start[:, None])
    chosen = torch.zeros(rows, kv_heads, tokens, dtype=torch.bool, device=columns.device)
    chosen.scatter_(2, columns, True)
    later = window[None, None] | chosen[:, :, None, :]
    seen = torch.where((at < prefix)[None, None, :, None], dense[None, None], later)
    return seen.repeat_interleave(heads // kv_heads, dim=1)


@contextmanager
def compressed(model: Any, columns: Mapping[int, Tensor], prefix: int, recent: int) -> Iterator[None]:
    """Within, a pass over whole sequences attends as RIFT-stat would while decoding."""
    masks: dict[int, Tensor] = {}

    def attend(layer: int, queries: Tensor, keys: Tensor, _scaling: float, mask: Any, plain: Plain) -> Any:
        if layer not in columns:
            return plain(mask)
        if layer not in masks:
            masks[layer] = sparse_mask(columns[layer], queries.shape[1], keys.shape[2], prefix, recent)
        return plain(masks[layer])

    with attending(decoder_of(model), attend):
        yield


def _select(queries: Tensor, keys: Tensor, scaling: float, budget: Budget) -> Tensor:
    """Best columns before the window for one row, `[kv_heads, B - r]`, sorted."""

    def absent() -> Any:
        raise ValueError("attention scores read neither plain queries nor weights")

    view = LayerView(
        keys=keys,
        values=keys,
        queries=queries,
        unrotated=absent,
        rotary=absent,
        scaling=scaling,
        kernel=budget.kernel,
        keep=budget.columns - budget.recent,
        output=absent,
        sums=None,
        generator=torch.Generator(),
    )
    scores = attention(view)[:, : keys.shape[1] - budget.recent]
    best = scores.sort(dim=1, descending=True, stable=True).indices[:, : view.keep]
    return best.sort(dim=1).values
