"""Intervals for a ratio of two means over the same units: the share of a loss that something removes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from ridgefit.evaluate.intervals import bca, strata

_NORMAL = NormalDist()


@dataclass(frozen=True)
class Ratio:
    """A ratio of means with its two-sided 95 % interval.

    Attributes:
        ratio: None where the lower mean cannot be told from zero, so that the ratio says nothing.
        low: lower end; None without an interval.
        high: upper end.
        n: units.
    """

    ratio: float | None
    low: float | None
    high: float | None
    n: int


def bca_ratio(
    above: Sequence[float],
    below: Sequence[float],
    groups: Sequence[Hashable],
    *,
    resamples: int = 5000,
    seed: int = 0,
    positive: bool = True,
) -> Ratio:
    """Bias-corrected and accelerated bootstrap of sum(above) / sum(below), units resampled within groups.

    Args:
        above: one number per unit.
        below: the same units; their mean must lie on one side of zero with 95 % confidence.
        groups: the domain of each unit.
        resamples: bootstrap resamples.
        seed: equal inputs give equal intervals.
        positive: the side of zero on which `below` means a loss.
    """
    top, bottom = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
    side = bottom if positive else -bottom
    loss = bca(side.tolist(), groups, resamples=resamples, seed=seed)
    n = len(bottom)
    if loss.lower_bound is None or loss.lower_bound <= 0:
        return Ratio(None, None, None, n)
    point = float(top.sum() / bottom.sum())
    found = _resampled(top, bottom, groups, resamples, seed)
    if np.ptp(found) <= 1e-12 * max(1.0, abs(point)):
        return Ratio(point, point, point, n)
    jackknife = (top.sum() - top) / (bottom.sum() - bottom)
    away = jackknife.mean() - jackknife
    spread = float((away**2).sum())
    skew = float((away**3).sum()) / (6 * spread**1.5) if spread > 0 else 0.0
    below_point = float(np.mean(found < point) + np.mean(found == point) / 2)
    bias = _NORMAL.inv_cdf(min(max(below_point, 0.5 / resamples), 1 - 0.5 / resamples))

    def end(level: float) -> float:
        shifted = bias + _NORMAL.inv_cdf(level)
        room = 1 - skew * shifted
        return float(
            np.quantile(found, _NORMAL.cdf(bias + shifted / room) if room > 0 else float(shifted > 0))
        )

    return Ratio(point, end(0.025), end(0.975), n)


def _resampled(
    above: NDArray[np.float64],
    below: NDArray[np.float64],
    groups: Sequence[Hashable],
    resamples: int,
    seed: int,
) -> NDArray[np.float64]:
    """The ratio of each resample, `[resamples]`; a resample without any loss is left out."""
    rng = np.random.default_rng(seed)
    sums = np.zeros((2, resamples))
    for stratum in strata(np.arange(len(below), dtype=np.float64), groups):
        members = stratum.astype(int)
        drawn = members[rng.integers(0, len(members), (resamples, len(members)))]
        sums[0] += above[drawn].sum(axis=1)
        sums[1] += below[drawn].sum(axis=1)
    kept = np.sign(sums[1]) == np.sign(below.sum())
    ratios: NDArray[np.float64] = sums[0, kept] / sums[1, kept]
    return ratios
