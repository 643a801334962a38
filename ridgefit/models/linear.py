"""What a layer writes, linearised in its input: how an error of the input reaches the cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

_PIECE = 1024


class WriteMetric(NamedTuple):
    """Linear parts of what a layer writes, float32 `[kv_heads * head_dim, hidden]`.

    Attributes:
        keys: input -> keys, as they stand after the key norm.
        values: input -> values.
    """

    keys: Tensor
    values: Tensor


@torch.no_grad()
def linearised(
    read: Callable[[Tensor], Tensor],
    project: Callable[[Tensor], tuple[Tensor, Tensor]],
    norm_keys: Callable[[Tensor], Tensor],
    rows: Tensor,
    heads: tuple[int, int],
) -> WriteMetric:
    """A layer's write around typical rows: weights times norm gains over the rows' typical root mean square.

    A norm is taken as a division by that number, so what it does along the row itself is left out. Everything
    is found by asking the layer's own modules, which works for fused and quantised projections, gains of any
    form and layers without a norm alike; biases drop out.

    Args:
        read: a layer's input -> what its projections read.
        project: that -> keys and values before any norm.
        norm_keys: keys `[rows, kv_heads, head_dim]` -> after the key norm; the same if there is none.
        rows: `[rows, hidden]` true inputs of the layer. The median over them counts, so a few massive rows
            do not.
        heads: kv_heads and head_dim.
    """
    gain = read(torch.ones_like(rows[:1]))[0].float()
    slope = _slope(read(rows).float(), rows.float() * gain, dims=(1,)).median()
    offset = torch.cat(project(torch.zeros_like(rows[:1])), dim=-1).float()
    basis = torch.eye(rows.shape[1], device=rows.device, dtype=rows.dtype)
    columns = torch.cat(
        [torch.cat(project(part), dim=-1).float() - offset for part in torch.split(basis, _PIECE)]
    )
    weight = (columns * (gain * slope)[:, None]).T
    width = heads[0] * heads[1]
    keys = project(read(rows))[0].view(len(rows), *heads)
    key_gain = norm_keys(torch.ones_like(keys[:1]))[0].float()
    key_slope = _slope(norm_keys(keys).float(), keys.float() * key_gain, dims=(2,)).median(dim=0).values
    per_key = (key_gain * key_slope[:, None]).flatten()
    return WriteMetric(weight[:width] * per_key[:, None], weight[width:])


def _slope(found: Tensor, reference: Tensor, dims: tuple[int, ...]) -> Tensor:
    """What `reference` is multiplied by to give `found`: 1 over the root mean square where a norm divides."""
    squares = reference.square().sum(dims).clamp_min(torch.finfo(torch.float32).tiny)
    return (found * reference).sum(dims) / squares
