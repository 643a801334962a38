"""Attention masks for a subset of rows over the whole cache, by column: what a row sees depends on where
it stands in the prompt, never on how many rows are computed with it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ridgefit.models.rows import Rows

ADDITIVE = "eager"
BOOLEAN = "sdpa"
COLUMNS_ONLY = ("flash_attention_2", "flash_attention_3")
SUPPORTED = (ADDITIVE, BOOLEAN, *COLUMNS_ONLY)


def visible(
    rows: Rows,
    *,
    window: int | None = None,
    valid: Tensor | None = None,
    first: int = 0,
    device: torch.device | str = "cpu",
) -> Tensor:
    """What each row sees: columns at or before its own, inside the window, not padding; always itself.

    Args:
        rows: the query rows.
        window: columns a row sees, its own included; None for all.
        valid: `[samples, columns]` bool, False for padding.
        first: first column of the keys.
        device: where the mask is made.

    Returns:
        bool `[samples or 1, 1, rows, columns - first]`.
    """
    query = rows.index(device)[:, :, None]
    key = torch.arange(first, rows.total, device=device)
    seen = key <= query
    if window is not None:
        seen &= key > query - window
    if valid is not None:
        seen = (seen & valid[:, None, first:]) | (key == query)
    return seen[:, None]


def as_mask(seen: Tensor, attention: str, dtype: torch.dtype) -> Tensor:
    """A boolean mask in the form that transformers' attention function `attention` takes."""
    if attention != ADDITIVE:
        return seen
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(
        ~seen, torch.finfo(dtype).min
    )


def padding_of(attention_mask: Any, columns: int, seen: int = 0) -> Tensor | None:
    """Which new columns are real tokens, read from whatever mask a decoder was called with.

    Args:
        attention_mask: None, `[batch, columns]`, `[batch, 1, columns, keys]` bool or additive, or a mapping
            from layer kind to one of these.
        columns: new columns.
        seen: columns before them, which the cache holds.

    Returns:
        bool `[batch, columns]`, or None where the mask cannot hold padding. In a mask of four dimensions
        a column is a token if it sees itself.
    """
    if isinstance(attention_mask, dict):
        masks = [mask for mask in attention_mask.values() if isinstance(mask, Tensor)]
        attention_mask = max(masks, key=lambda mask: mask.shape[-1]) if masks else None
    if attention_mask is None:
        return None
    if attention_mask.ndim == 2:
        tokens: Tensor = attention_mask[:, seen : seen + columns].bool()
        return tokens
    # Keys may begin later than the prompt (sliding layers) or go on after it (caches of fixed length).
    first = min(seen, attention_mask.shape[-1] - columns)
    own: Tensor = attention_mask[:, 0, :columns, first : first + columns].diagonal(dim1=-2, dim2=-1)
    return own if own.dtype == torch.bool else own == 0


def row_mask(
    stock: Tensor | None,
    rows: Rows,
    *,
    first: int = 0,
    padded: bool = False,
    attention: str = BOOLEAN,
    device: torch.device | str = "cpu",
) -> Tensor | None:
    """Mask for `rows`, made from the mask that the layer gets for the whole prompt.

    Args:
        stock: that mask: None (plain causal attention over an unpadded prompt), `[batch, columns]` for
            flash attention, else `[batch or 1, 1, columns, keys]`, possibly with more keys than columns.
        rows: the query rows.
        first: first column of the keys that the rows will attend to.
        padded: whether padding rows may be among `rows`; they are then made to see themselves, since
            a row that sees nothing is not a number in some kernels.
        attention: transformers' name of the attention function.
        device: where the keys are.
    """
    if attention in COLUMNS_ONLY:
        return stock if stock is None else stock[:, first : rows.total]
    if stock is None:
        plain = rows.runs == ((rows.total - 1, rows.total),)
        plain = plain or attends_by_runs(stock, rows, first=first, attention=attention, device=device)
        return None if plain else visible(rows, first=first, device=device)
    mask = rows.take(stock[..., first : rows.total], dim=-2)
    if not padded:
        return mask
    own = rows.index(mask.device)[:, None, :, None] == torch.arange(first, rows.total, device=mask.device)
    return mask | own if mask.dtype == torch.bool else mask.masked_fill(own, 0)


def rows_alone_mask(stock: Tensor | None, rows: Rows, *, padded: bool = False) -> Tensor | None:
    """Mask `[batch or 1, 1, rows, rows]` for rows that attend to one another and to nothing else.

    Args:
        stock: as in `row_mask`; None stays None, since rows in order are causal among themselves.
        rows: query and key rows.
        padded: whether padding rows may be among them.
    """
    if stock is None:
        return None
    mask = rows.take(rows.take(stock[..., : rows.total], dim=-2), dim=-1)
    if not padded:
        return mask
    own = torch.eye(rows.count, dtype=torch.bool, device=mask.device)
    return mask | own if mask.dtype == torch.bool else mask.masked_fill(own, 0)


def hide_columns(mask: Tensor | None, hidden: Tensor, queries: int, keys: int, first: int) -> Tensor:
    """Take columns out of a decode mask.

    Args:
        mask: `[batch or 1, 1, queries, keys]` bool or additive; None for one query that sees every key.
        hidden: `[batch or 1, columns]` bool, True for columns that were never written.
        queries: new rows.
        keys: key columns that attention will see.
        first: the column of the first key.

    Returns:
        mask of the same kind as `mask`, bool for None.
    """
    if mask is None:
        mask = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=hidden.device).tril(keys - queries)
    gone = torch.zeros(hidden.shape[0], keys, dtype=torch.bool, device=hidden.device)
    known = hidden[:, first : first + keys]
    gone[:, : known.shape[1]] = known
    gone = gone[:, None, None, :]
    if mask.dtype == torch.bool:
        return mask & ~gone
    return mask.masked_fill(gone, torch.finfo(mask.dtype).min)


def attends_by_runs(
    stock: Tensor | None, rows: Rows, *, first: int, attention: str, device: torch.device | str
) -> bool:
    """Whether `rows` attend with `RunKeys` instead of a mask: plain causal attention over runs, on CUDA."""
    return (
        attention == BOOLEAN
        and stock is None
        and torch.device(device).type == "cuda"
        and rows.columns is None
        and rows.count > 1
        and first == 0
    )
