"""Which few directions of the other inputs a map needs besides the state: closed form, from the moments.

A map that reads `[state, rest]` costs `width x hidden` per late layer. Through one bottleneck `U`, shared by
all late layers, it reads `[state, rest U]` and costs little more than the plain map. `U` is the solution of a
reduced-rank ridge regression (Izenman 1975; Mukherjee and Zhu 2011) with the state left unrestricted, whose
error is measured after a linear map of each late layer's input, for instance on the keys it writes:

    minimise  sum over layers l of  || K_l (Y_l - A_l h - B_l U' r) ||^2  +  penalty

With `W_l` the rest's block of the unrestricted ridge map and `S = Srr + P - Srh (Shh + P)^-1 Shr` what the
state leaves of the rest, the fitted response is `K_l W_l`, and `U` spans the leading right singular vectors
of the stacked `K_l W_l S^(1/2)`, taken back through `S^(-1/2)`. Directions are nested: those of rank 16 are
the first 16 of rank 64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ridgefit.errors import BadInput, CheckFailed
from ridgefit.ridge.fit import RidgeFit


@dataclass(frozen=True)
class Directions:
    """Directions of the rest, most needed first.

    Attributes:
        basis: float64 `[rest, rest]`, orthonormal columns; the first `r` are the bottleneck of rank `r`.
        energy: float64 `[rest]`, share of the response's energy that the first columns keep, ascending to 1.
    """

    basis: Tensor
    energy: Tensor

    def bottleneck(self, rank: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """The first `rank` directions as a file holds them, `[rest, rank]`.

        Raises:
            BadInput: the rank is not between 1 and the width of the rest.
        """
        width = self.basis.shape[1]
        if not 1 <= rank <= width:
            raise BadInput(f"a bottleneck of rank {rank} is not between 1 and the {width} inputs it reads")
        return self.basis[:, :rank].to(dtype)

    def kept(self, rank: int) -> float:
        """Share of the response's energy that the first `rank` directions keep, 0 to 1."""
        return float(self.energy[rank - 1])


def directions(fit: RidgeFit, kept: int, alpha: float, metrics: Mapping[int, Tensor]) -> Directions:
    """Directions of the inputs after the first `kept`, by what they add to the response of some layers.

    Args:
        fit: of rows `[state, rest]`.
        kept: columns of the state.
        alpha: penalty of the unrestricted maps.
        metrics: late layer index (0 is the split layer) -> `[any, out]`: what of the layer's input counts,
            such as the linearised write of its keys; the layers named here are those that will read the rest.

    Raises:
        BadInput: no layer, no rest, or a metric that does not fit the layer's input.
        CheckFailed: the sums are too near singular for this penalty.
    """
    width, out = fit.sums.sxx.shape[0], fit.sums.sxy.shape[2]
    if not metrics or not 0 < kept < width:
        raise BadInput(f"a bottleneck of {width - kept} inputs for {len(metrics)} layers has nothing to do")
    gram = fit.sums.sxx.new_zeros(width - kept, width - kept, dtype=torch.float64)
    for layer, metric in metrics.items():
        if metric.ndim != 2 or metric.shape[1] != out:
            raise BadInput(
                f"the metric of late layer {layer} has shape {tuple(metric.shape)}, not [any, {out}]"
            )
        response = metric.to(gram.device).double() @ fit.weight(layer, alpha)[:, kept:]
        gram.addmm_(response.T, response)
    root = _cholesky(conditional(fit, kept, alpha), alpha)
    squares = root.T @ gram @ root
    values, vectors = torch.linalg.eigh((squares + squares.T) / 2)
    values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
    if float(values[0]) <= 0:
        raise BadInput("the inputs beside the state add nothing to these layers", "use the plain map")
    spread = torch.linalg.solve_triangular(root.T, vectors, upper=True)
    # Orthonormal columns: the ridge penalty on a map of `rest U` is then that on the map of the rest.
    basis, triangle = torch.linalg.qr(spread)
    basis = basis * triangle.diagonal().sign()
    return Directions(basis, values.cumsum(0) / values.sum())


def conditional(fit: RidgeFit, kept: int, alpha: float) -> Tensor:
    """Penalised sums of what the first `kept` inputs leave of the others, float64 `[rest, rest]`.

    The Schur complement of `Sxx + P`; `P` is the penalty in the units of the inputs.
    """
    sums = fit.sums.sxx.double() + torch.diag(fit.spectrum.penalties(alpha))
    root = _cholesky(sums[:kept, :kept], alpha)
    half = torch.linalg.solve_triangular(root, sums[:kept, kept:], upper=False)
    left: Tensor = sums[kept:, kept:] - half.T @ half
    return (left + left.T) / 2


def _cholesky(sums: Tensor, alpha: float) -> Tensor:
    root: Tensor
    root, failed = torch.linalg.cholesky_ex(sums)
    if int(failed):
        raise CheckFailed(
            f"the sums of the features are too near singular for a bottleneck at alpha {alpha:g}",
            "leave out features that repeat others, or raise --alphas",
        )
    return root
