"""From a split's moments to its maps: weights, biases, and a report that says how far to trust them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from ridgefit.errors import BadInput, CheckFailed
from ridgefit.ridge.spectrum import Penalty, Spectrum


class Sums(Protocol):
    """Centred sums of one split: what `moments` gathers and this room reads."""

    @property
    def n(self) -> int:
        """Rows."""

    @property
    def mean_x(self) -> Tensor:
        """`[width]` mean input."""

    @property
    def mean_y(self) -> Tensor:
        """`[layers, out]` mean output."""

    @property
    def sxx(self) -> Tensor:
        """`[width, width]` centred input products."""

    @property
    def sxy(self) -> Tensor:
        """`[layers, width, out]` centred cross products."""

    @property
    def syy(self) -> Tensor:
        """`[layers, out]` centred output squares."""


class AlphaReport(BaseModel):
    """One penalty of the grid."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    alpha: float
    absolute: float
    degrees: float
    unexplained: tuple[float, ...] | None = None


class FitReport(BaseModel):
    """What the sums of a split look like and what each penalty makes of them.

    Attributes:
        rows: rows in the fit.
        width: input channels.
        rows_per_width: below about 10 the maps lean on the penalty.
        constant_channels: channels left out because they never vary (`channel` only).
        eigenvalue_min: smallest eigenvalue as found; slightly below zero is round-off.
        eigenvalue_max: largest eigenvalue.
        condition: their ratio, None where it is infinite.
        mean_diagonal: lambda of alpha 1.
        penalty: `mean-diag` or `channel`.
        grid: per alpha the absolute lambda, the effective degrees of freedom and, when asked for, the share
            of each layer's output variance that the map leaves unexplained on its own rows.
        warnings: one line each.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: int
    width: int
    rows_per_width: float
    constant_channels: int
    eigenvalue_min: float
    eigenvalue_max: float
    condition: float | None
    mean_diagonal: float
    penalty: Penalty
    grid: tuple[AlphaReport, ...]
    warnings: tuple[str, ...]


class RidgeFit:
    """Maps of every late layer of one split, solved from its sums on demand.

    Holds the spectrum and the projected sums of one layer at a time, so memory stays at the sums plus a few
    matrices of `width x width` doubles, however many layers and penalties are asked for. Ask for one layer
    with every penalty, then go to the next.

    Raises:
        BadInput: no rows, or nothing varies.
        CheckFailed: the sums are corrupt (see `Spectrum.of`).
    """

    def __init__(self, sums: Sums, penalty: Penalty = "mean-diag") -> None:
        for name in ("mean_x", "mean_y", "syy"):
            if not bool(torch.isfinite(getattr(sums, name)).all()):
                raise CheckFailed(f"{name} of the sums holds values that are not finite", "capture again")
        self.sums = sums
        self.spectrum = Spectrum.of(sums.sxx, penalty, rows=sums.n, mean_x=sums.mean_x)
        self._held: tuple[int, Tensor] | None = None

    @property
    def layers(self) -> int:
        """Number of late layers."""
        return self.sums.sxy.shape[0]

    def weight(self, layer: int, alpha: float) -> Tensor:
        """Map of late layer `layer` (0 is the split layer), float64 `[out, width]`."""
        return self.spectrum.weight(self._projected(layer), alpha)

    def bias_for(self, layer: int, weight: Tensor) -> Tensor:
        """Unpenalised offset that makes `weight` right on average, float64 `[out]`: mean_y - W mean_x."""
        mean_y = self.sums.mean_y[layer].double()
        return mean_y - weight.double() @ self.sums.mean_x.double()

    def map(self, layer: int, alpha: float) -> tuple[Tensor, Tensor]:
        """Weight `[out, width]` and bias `[out]` in float64."""
        weight = self.weight(layer, alpha)
        return weight, self.bias_for(layer, weight)

    def rounded(self, layer: int, alpha: float, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor]:
        """Weight and bias as a file holds them.

        The bias belongs to the rounded weight: a channel with a large mean would otherwise turn the weight's
        rounding into an offset of every row.
        """
        weight = self.weight(layer, alpha).to(dtype)
        return weight, self.bias_for(layer, weight).to(dtype)

    def candidates(
        self, alphas: Sequence[float], dtype: torch.dtype = torch.bfloat16
    ) -> dict[float, Callable[[int], tuple[Tensor, Tensor]]]:
        """Per penalty a function from late layer index to its `rounded` map, for scoring on held-out rows."""

        def solver(alpha: float) -> Callable[[int], tuple[Tensor, Tensor]]:
            return lambda layer: self.rounded(layer, alpha, dtype)

        return {alpha: solver(alpha) for alpha in alphas}

    def unexplained(self, layer: int, alpha: float) -> float:
        """Share of the layer's output variance that its map misses on the rows of the fit, 0 to 1."""
        syy = self.sums.syy[layer]
        total = float(syy.double().sum())
        return self.spectrum.residual(self._projected(layer), syy, alpha) / total if total > 0 else 0.0

    def report(self, alphas: Sequence[float], *, residuals: bool = True) -> FitReport:
        """Describe the fit over a penalty grid.

        Args:
            alphas: scale-free penalties.
            residuals: also compute every layer's unexplained share (one projection per layer).

        Raises:
            BadInput: a penalty is negative, or 0 where the sums cannot be solved without one.
        """
        spectrum = self.spectrum
        missed: Mapping[float, list[float]] = {alpha: [] for alpha in alphas}
        for layer in range(self.layers if residuals else 0):
            for alpha in alphas:
                missed[alpha].append(self.unexplained(layer, alpha))
        grid = tuple(
            AlphaReport(
                alpha=alpha,
                absolute=spectrum.absolute(alpha),
                degrees=spectrum.degrees(alpha),
                unexplained=tuple(missed[alpha]) if residuals else None,
            )
            for alpha in alphas
        )
        condition = spectrum.condition
        return FitReport(
            rows=spectrum.rows,
            width=spectrum.width,
            rows_per_width=spectrum.rows / spectrum.width,
            constant_channels=spectrum.width - len(spectrum.live),
            eigenvalue_min=spectrum.lowest,
            eigenvalue_max=float(spectrum.values[-1]),
            condition=condition if condition < float("inf") else None,
            mean_diagonal=spectrum.mean_diagonal,
            penalty=spectrum.penalty,
            grid=grid,
            warnings=tuple(self._warnings(grid)),
        )

    def _warnings(self, grid: Sequence[AlphaReport]) -> list[str]:
        spectrum = self.spectrum
        found = []
        if spectrum.rows < spectrum.width:
            found.append(
                f"{spectrum.rows} rows are fewer than {spectrum.width} inputs, the penalty alone decides "
                "part of every map; capture more text"
            )
        elif spectrum.rows < 10 * spectrum.width:
            found.append(
                f"{spectrum.rows / spectrum.width:.1f} rows per input are few; 10 or more make a steady fit"
            )
        noise = [entry.alpha for entry in grid if 0 < entry.absolute <= -spectrum.lowest]
        if noise:
            found.append(
                f"alpha {', '.join(f'{alpha:g}' for alpha in noise)} is below the round-off of the sums "
                f"(smallest eigenvalue {spectrum.lowest:.2e})"
            )
        constant = spectrum.width - len(spectrum.live)
        if constant:
            found.append(f"{constant} of {spectrum.width} input channels never vary and get coefficient 0")
        return found

    def _projected(self, layer: int) -> Tensor:
        if not 0 <= layer < self.layers:
            raise BadInput(f"late layer {layer} does not exist, there are {self.layers}")
        if self._held is None or self._held[0] != layer:
            self._held = (layer, self.spectrum.project(self.sums.sxy[layer]))
        return self._held[1]
