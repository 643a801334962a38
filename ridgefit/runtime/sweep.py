"""The first of two sweeps: late caches of the prefix from the maps, and a probe that reads them
(RidgeFill section 2.4).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ridgefit.models import Port, Rows
from ridgefit.models.port import Rotary
from ridgefit.runtime.received import received

Buffers = tuple[Tensor, Tensor]


def first_sweep(
    port: Port,
    split: int,
    state: Tensor,
    fill: Callable[[int, Rotary], Buffers],
    *,
    windows: tuple[int, ...],
    tail: int,
    position_ids: Tensor,
    valid: Tensor | None = None,
) -> tuple[dict[int, Buffers], dict[int, Tensor]]:
    """Fill every late layer and run the prompt's last rows through them over it.

    The rows that ask see the filled prefix and one another; the tail's other rows are not there yet.

    Args:
        port: the model.
        split: first late layer.
        state: `[batch, columns, hidden]` entering the split layer.
        fill: gives a layer's keys and values `[batch, kv_heads, columns, head_dim]` with the prefix filled,
            for that layer's cosines and sines of all columns; what stands after the prefix is written over.
        windows: numbers of last rows that ask, one probe for each.
        tail: rows of the tail, at least every window.
        position_ids: `[batch or 1, columns]`.
        valid: `[batch, columns]` bool, False for padding.

    Returns:
        The filled buffers by layer, and the attention `[batch, columns]` that columns receive, fp64, summed
        over rows that ask, heads and late layers, by window.
    """
    total = state.shape[1]
    probes = {window: Rows(total, runs=((total - window, total),)) for window in windows}
    hidden = {window: rows.take(state, dim=1) for window, rows in probes.items()}
    sums: dict[int, Tensor] = {}
    held: dict[int, Buffers] = {}
    for layer in range(split, port.n_layers):
        cos, sin = port.position_embeddings(layer, state, position_ids)
        keys, values = held[layer] = fill(layer, (cos, sin))
        for window, rows in probes.items():
            there = _there(total, tail, window, valid, keys.device)
            own = hidden[window].to(keys.device)
            rotary = (rows.take(cos, dim=1).to(keys.device), rows.take(sin, dim=1).to(keys.device))
            queries = port.queries(layer, own, rotary)
            hidden[window] = port.run_rows(
                layer, own, rows, keys, values, position_ids=position_ids, valid=there
            )
            found = received(
                queries,
                keys,
                first=total - window,
                scale=port.score_scale(layer),
                window=port.window(layer),
                valid=there,
            )
            sums[window] = found if window not in sums else sums[window] + found.to(sums[window].device)
    return held, sums


def _there(total: int, tail: int, window: int, valid: Tensor | None, device: torch.device) -> Tensor | None:
    """Columns that a probe may see: the prefix and its own rows, padding left out."""
    if tail == window:
        return valid
    place = torch.arange(total, device=device)
    there = ((place < total - tail) | (place >= total - window))[None]
    return there if valid is None else there & valid.to(device)
