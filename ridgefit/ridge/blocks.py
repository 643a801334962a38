"""Sums of some of the captured inputs, or of linear combinations of them, without another pass.

Centred sums transform as their rows do: rows `x T` have sums `T' Sxx T` and `T' Sxy`. One capture of a long
list of features therefore holds the moments of every map that reads part of it (RidgeFill, section 2.2, with
more than the split state as input).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ridgefit.errors import BadInput
from ridgefit.ridge.fit import Sums


@dataclass(frozen=True)
class BlockSums:
    """Centred sums of a part of other sums; the fields are those of `Sums`, float64."""

    n: int
    mean_x: Tensor
    mean_y: Tensor
    sxx: Tensor
    sxy: Tensor
    syy: Tensor


def selected(sums: Sums, columns: Sequence[int] | Tensor) -> BlockSums:
    """Sums of the input columns `columns`, in that order.

    Raises:
        BadInput: no column, a column twice, or one that the sums do not have.
    """
    index = torch.as_tensor(columns, dtype=torch.long, device=sums.sxx.device)
    width = sums.sxx.shape[0]
    if index.numel() == 0 or len(set(index.tolist())) != index.numel():
        raise BadInput("a part of the inputs needs each of its columns once, and at least one")
    if int(index.min()) < 0 or int(index.max()) >= width:
        raise BadInput(f"column {int(index.max())} does not belong to sums of {width} inputs")
    return BlockSums(
        n=sums.n,
        mean_x=sums.mean_x[index],
        mean_y=sums.mean_y,
        sxx=sums.sxx[index][:, index],
        sxy=sums.sxy[:, index],
        syy=sums.syy,
    )


def projected(sums: Sums, kept: int, basis: Tensor) -> BlockSums:
    """Sums of rows `[x[:kept], x[kept:] @ basis]`.

    Args:
        sums: of rows `x`.
        kept: leading columns that stay as they are.
        basis: `[width - kept, rank]`, exactly as it will be applied (a file's bf16 values, say).

    Raises:
        BadInput: `basis` has not one row per column after the kept ones.
    """
    rest = sums.sxx.shape[0] - kept
    if kept < 0 or basis.ndim != 2 or basis.shape[0] != rest:
        raise BadInput(
            f"a bottleneck of shape {tuple(basis.shape)} does not read the {rest} inputs it should"
        )
    turn = basis.to(sums.sxx.device).double()
    own, cross, other = sums.sxx[:kept, :kept], sums.sxx[:kept, kept:], sums.sxx[kept:, kept:]
    mixed = cross.double() @ turn
    inner = turn.T @ other.double() @ turn
    return BlockSums(
        n=sums.n,
        mean_x=torch.cat([sums.mean_x[:kept].double(), sums.mean_x[kept:].double() @ turn]),
        mean_y=sums.mean_y,
        sxx=torch.cat(
            [torch.cat([own.double(), mixed], dim=1), torch.cat([mixed.T, (inner + inner.T) / 2], dim=1)]
        ),
        sxy=torch.stack(
            [torch.cat([layer[:kept].double(), turn.T @ layer[kept:].double()]) for layer in sums.sxy]
        ),
        syy=sums.syy,
    )
