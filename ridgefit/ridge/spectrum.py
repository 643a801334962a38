"""One eigendecomposition per split, from which the map of every layer and every penalty follows.

The ridge map of a layer (RidgeFill, section 2.2) is `W = Sxy^T (Sxx + lambda I)^-1` on centred sums. All late
layers of a split read the same rows, so they share one `Sxx`, and with `Sxx = V diag(e) V^T` and
`P = V^T Sxy` computed once, `W = P^T diag(1 / (e + lambda)) V^T` costs one product per layer and penalty.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ridgefit.errors import BadInput, CheckFailed

Penalty = Literal["mean-diag", "channel"]

# Fast sums hold to 1e-6, and on rows of low rank their smallest eigenvalues are as far below zero as that.
_ROUND_OFF = 1e-6
# A channel whose deviation is this small a share of its mean varies by less than float32 can express.
_CONSTANT_TOLERANCE = 1e-12


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues and eigenvectors of a split's centred sums, ready for any penalty.

    Attributes:
        values: float64 `[live]`, ascending, never negative; of the scaled sums under `channel`.
        vectors: float64 `[live, live]`, one eigenvector per column.
        live: int64 `[live]`, the input channels that vary (all of them under `mean-diag`).
        scale: float64 `[live]`, what each live channel is multiplied by before the penalty.
        width: number of input channels.
        rows: rows behind the sums.
        mean_diagonal: trace of the (scaled) sums over their width; lambda = alpha x this.
        lowest: smallest eigenvalue as found, before round-off below zero was taken as zero.
        penalty: which of the two scalings.
    """

    values: Tensor
    vectors: Tensor
    live: Tensor
    scale: Tensor
    width: int
    rows: int
    mean_diagonal: float
    lowest: float
    penalty: Penalty

    @classmethod
    def of(
        cls, sxx: Tensor, penalty: Penalty = "mean-diag", *, rows: int, mean_x: Tensor | None = None
    ) -> Spectrum:
        """Decompose centred sums.

        Args:
            sxx: `[width, width]`, sum over rows of the outer product of centred inputs.
            penalty: `mean-diag` sets lambda = alpha x trace(Sxx) / width (the paper); `channel` does the same
                on channels scaled to unit variance, where a constant channel gets coefficient 0.
            rows: number of rows in the sums.
            mean_x: `[width]` means; with them `channel` knows a constant channel from round-off.

        Raises:
            BadInput: there are no rows, or none of the inputs varies.
            CheckFailed: the sums are not finite, not symmetric, or have an eigenvalue clearly below zero.
        """
        if rows < 1:
            raise BadInput("the sums hold no rows", "capture text first")
        sums = _checked(sxx)
        width = sums.shape[0]
        live = torch.arange(width, device=sums.device)
        scale = torch.ones(width, dtype=torch.float64, device=sums.device)
        if penalty == "channel":
            deviation = (sums.diagonal() / rows).clamp_min(0).sqrt()
            floor = torch.zeros_like(deviation) if mean_x is None else mean_x.double().abs()
            live = (deviation > floor * _CONSTANT_TOLERANCE).nonzero()[:, 0]
            scale = 1 / deviation[live]
            sums = sums[live][:, live] * scale[:, None] * scale
        mean_diagonal = float(sums.trace()) / max(len(live), 1)
        if mean_diagonal <= 0:
            raise BadInput(f"none of the {width} input channels varies over {rows} rows", "capture more text")
        try:
            values, vectors = torch.linalg.eigh(sums)
        except RuntimeError as error:  # no convergence, or no memory for it
            raise CheckFailed(
                f"the eigendecomposition of the {width} x {width} sums failed ({error})", "capture again"
            ) from error
        lowest, highest = float(values[0]), float(values[-1])
        if lowest < -_ROUND_OFF * highest:
            raise CheckFailed(
                f"the sums are corrupt: smallest eigenvalue {lowest:.3e}, largest {highest:.3e}",
                "capture again",
            )
        return cls(values.clamp_min(0), vectors, live, scale, width, rows, mean_diagonal, lowest, penalty)

    def absolute(self, alpha: float) -> float:
        """Lambda for a scale-free `alpha`, in the units of the (scaled) sums.

        Raises:
            BadInput: `alpha` is negative or not finite, or is 0 where the sums cannot be solved without one.
        """
        if not 0 <= alpha < float("inf"):
            raise BadInput(f"alpha is {alpha}", "use a number that is not negative")
        if alpha == 0:
            self._require_regular()
        return alpha * self.mean_diagonal

    def penalties(self, alpha: float) -> Tensor:
        """What is added to the diagonal of the unscaled sums, float64 `[width]`.

        Under `channel` that is alpha times the diagonal itself. A channel that never varies gets 1: its sums
        are zero, so any positive number keeps it out of every map.
        """
        penalties = self.values.new_ones(self.width)
        penalties[self.live] = self.absolute(alpha) / self.scale.square()
        return penalties

    def degrees(self, alpha: float) -> float:
        """Effective degrees of freedom at `alpha`: sum of e / (e + lambda)."""
        return float((self.values / (self.values + self.absolute(alpha))).sum())

    @property
    def condition(self) -> float:
        """Largest over smallest eigenvalue; infinite where the smallest is zero."""
        lowest = float(self.values[0])
        return float(self.values[-1]) / lowest if lowest > 0 else float("inf")

    def project(self, sxy: Tensor) -> Tensor:
        """`P = V^T Sxy` of one layer's `[width, out]` sums: float64 `[live, out]`, shared by all penalties.

        Raises:
            CheckFailed: the sums are not finite.
            BadInput: their first dimension is not the spectrum's width.
        """
        if sxy.shape[0] != self.width:
            raise BadInput(f"sums of {sxy.shape[0]} inputs do not belong to a spectrum of {self.width}")
        sums = sxy.double()
        if not bool(torch.isfinite(sums).all()):
            raise CheckFailed("the cross sums hold values that are not finite", "capture again")
        if self.penalty == "channel":
            sums = sums[self.live] * self.scale[:, None]
        return self.vectors.T @ sums

    def weight(self, projected: Tensor, alpha: float) -> Tensor:
        """Map `[out, width]` in float64 from a layer's `project` result."""
        damped = projected.T / (self.values + self.absolute(alpha))
        weight = damped @ self.vectors.T
        if self.penalty == "mean-diag":
            return weight
        full = weight.new_zeros(weight.shape[0], self.width)
        full[:, self.live] = weight * self.scale
        return full

    def residual(self, projected: Tensor, syy: Tensor, alpha: float) -> float:
        """Sum of squared training errors of a layer's map, from the sums alone.

        Args:
            projected: the layer's `project` result.
            syy: `[out]` centred sums of squares of the outputs.
            alpha: scale-free penalty.
        """
        shrunk = self.values + self.absolute(alpha)
        explained = (projected.square().sum(1) * (shrunk + self.absolute(alpha)) / shrunk.square()).sum()
        return max(float(syy.double().sum() - explained), 0.0)

    def stream(self, sxy: Tensor, alpha: float) -> Iterator[Tensor]:
        """Maps `[out, width]` of the layers of `sxy` `[layers, width, out]`, one at a time."""
        for layer in sxy:
            yield self.weight(self.project(layer), alpha)

    def maps(self, sxy: Tensor, alpha: float) -> Tensor:
        """All maps at once, float64 `[layers, out, width]`; `stream` is the same with one in memory."""
        layers, width, out = sxy.shape
        weights = torch.empty(layers, out, width, dtype=torch.float64, device=sxy.device)
        for target, weight in zip(weights, self.stream(sxy, alpha), strict=True):
            target.copy_(weight)
        return weights

    def _require_regular(self) -> None:
        live = len(self.live)
        if self.rows <= live:
            raise BadInput(
                f"{self.rows} rows cannot fit {live} inputs with alpha 0", "capture more text or raise alpha"
            )
        if float(self.values[0]) <= live * torch.finfo(torch.float64).eps * float(self.values[-1]):
            raise BadInput(
                "alpha 0 cannot be solved, some inputs are linear combinations of others "
                f"(eigenvalues {self.lowest:.3e} to {float(self.values[-1]):.3e})",
                "use a positive alpha",
            )


def _checked(sxx: Tensor) -> Tensor:
    if sxx.ndim != 2 or sxx.shape[0] != sxx.shape[1]:
        raise CheckFailed(f"the sums have shape {tuple(sxx.shape)}, not square", "capture again")
    sums = sxx.double()
    if not bool(torch.isfinite(sums).all()):
        raise CheckFailed("the sums hold values that are not finite", "capture again")
    size = float(sums.abs().max()) if sums.numel() else 0.0
    if float((sums - sums.T).abs().max() if sums.numel() else 0.0) > _ROUND_OFF * size:
        raise CheckFailed("the sums are corrupt: they are not symmetric", "capture again")
    return (sums + sums.T) / 2
