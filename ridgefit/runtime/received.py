"""Attention that a prompt's rows receive from some of its last rows (paper section 2.4)."""

from __future__ import annotations

import torch
from torch import Tensor

from ridgefit.models import Port
from ridgefit.models.call import default_positions

ENTRIES = 1 << 22
"""Scores held at once: 16 MiB in fp32."""


def received(
    queries: Tensor,
    keys: Tensor,
    *,
    first: int,
    scale: float,
    window: int | None = None,
    valid: Tensor | None = None,
) -> Tensor:
    """Attention summed over query rows and heads, for every column.

    Scores and softmax are in fp32, and so is the sum over rows; heads are added in fp64.

    Args:
        queries: `[batch, heads, rows, width]` of the columns from `first` on, after rotary.
        keys: `[batch, kv_heads, columns, width]` of the whole prompt, after rotary.
        first: column of the first query row.
        scale: of query times key.
        window: columns a row sees, its own included; None for all before it.
        valid: `[batch or 1, columns]` bool, False for columns that nobody sees and that do not ask.

    Returns:
        `[batch, columns]` fp64.
    """
    batch, heads, rows, _ = queries.shape
    columns = keys.shape[2]
    asking = torch.arange(first, first + rows, device=keys.device)
    place = torch.arange(columns, device=keys.device)
    visible = place <= asking[:, None]
    if window is not None:
        visible &= place > asking[:, None] - window
    valid = None if valid is None else valid.expand(batch, columns)
    found = torch.zeros(batch, columns, dtype=torch.float64, device=keys.device)
    step = max(1, ENTRIES // (rows * columns))
    group = heads // keys.shape[1]
    for sample in range(batch):
        mask = visible if valid is None else visible & valid[sample]
        # A row that sees nothing is padding; it gets a column to look at, and its answer is left out.
        unseen = ~(mask | (place == asking[:, None]))
        for start in range(0, heads, step):
            part = range(start, min(start + step, heads))
            own = keys[sample, [head // group for head in part]]
            scores = (queries[sample, part.start : part.stop] @ own.transpose(-1, -2)).float().mul_(scale)
            scores = scores.masked_fill_(unseen, float("-inf")).softmax(dim=-1)
            if valid is not None:
                scores *= valid[sample, first : first + rows, None]
            found[sample] += scores.sum(dim=1).double().sum(dim=0)
    return found


def received_in(
    port: Port,
    layer: int,
    hidden: Tensor,
    rows: range,
    *,
    position_ids: Tensor | None = None,
    valid: Tensor | None = None,
) -> Tensor:
    """Attention that every column receives in one exact layer from some rows.

    Args:
        port: the model.
        layer: layer number.
        hidden: `[batch, columns, hidden]` entering the layer.
        rows: columns that ask.
        position_ids: `[batch or 1, columns]`; counted from 0 if absent.
        valid: `[batch, columns]` bool, False for padding.

    Returns:
        `[batch, columns]` fp64, summed over rows and heads.
    """
    positions = default_positions(hidden.shape[1], hidden.device) if position_ids is None else position_ids
    cos, sin = port.position_embeddings(layer, hidden, positions)
    keys = port.write(layer, hidden, (cos, sin)).keys
    asked = slice(rows.start, rows.stop)
    queries = port.queries(layer, hidden[:, asked], (cos[:, asked], sin[:, asked]))
    return received(
        queries,
        keys,
        first=rows.start,
        scale=port.score_scale(layer),
        window=port.window(layer),
        valid=valid,
    )
