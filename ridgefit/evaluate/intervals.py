"""Intervals for paired differences and for shares (paper section 3.4).

All intervals are 95 % and two-sided unless a name says otherwise. Pure numpy, no model.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

_NORMAL = NormalDist()
_BLOCK = 1 << 22  # resampled values held at once; keeps memory flat for large samples


@dataclass(frozen=True)
class Interval:
    """A mean of paired differences with its bootstrap interval; the unit is that of the differences.

    The four bounds are None where nothing can be resampled, that is with a single difference.

    Attributes:
        mean: plain mean of the differences.
        low: lower end of the two-sided interval.
        high: upper end of the two-sided interval.
        lower_bound: one-sided lower bound of the same confidence.
        upper_bound: one-sided upper bound of the same confidence.
        n: number of differences.
    """

    mean: float
    low: float | None
    high: float | None
    lower_bound: float | None
    upper_bound: float | None
    n: int


def bca(
    differences: Sequence[float],
    groups: Sequence[Hashable] | None = None,
    *,
    resamples: int = 5000,
    seed: int = 0,
    confidence: float = 0.95,
) -> Interval:
    """Bias-corrected and accelerated bootstrap of a mean, resampled within groups (Efron 1987).

    Every resample keeps each group's size, so the mix of tasks or domains does not vary. The
    acceleration is the multi-sample jackknife one, which for a mean with fixed group shares is the
    skewness of the differences around their own group's mean. A group of one cannot be resampled
    and would count as certain: groups of one are pooled, and a lone one joins the smallest other
    group, which widens the interval rather than narrowing it.

    Args:
        differences: one paired difference per sample.
        groups: the task or domain of each difference; one group if absent.
        resamples: bootstrap resamples.
        seed: seed of the resampling; equal inputs give equal intervals.
        confidence: coverage of the interval and of each one-sided bound.

    Returns:
        The mean with its interval. Where all differences of each group are equal, the interval is
        the mean itself; `binomial_floor` is then the honest bound for a share.

    Raises:
        ValueError: no differences, a non-finite one, or lengths that disagree.
    """
    values = np.asarray(differences, dtype=np.float64)
    if values.ndim != 1 or values.size == 0 or not np.isfinite(values).all():
        raise ValueError("differences must be a non-empty row of finite numbers")
    if groups is not None and len(groups) != values.size:
        raise ValueError(f"{len(groups)} groups for {values.size} differences")
    mean = float(values.mean())
    if values.size == 1:
        return Interval(mean, None, None, None, None, 1)
    parts = strata(values, groups)
    centred = np.concatenate([stratum - stratum.mean() for stratum in parts])
    # Equal values may miss their own mean by one rounding; that is no spread.
    spread = float(np.abs(centred).max())
    if spread <= 1e-14 * float(np.abs(values).max()):
        return Interval(mean, mean, mean, mean, mean, values.size)
    sums = _resampled_sums(parts, resamples, np.random.default_rng(seed))
    # Ties are compared on sums, which are exact for 0/1 scores, and count half on each side.
    total = float(sum(stratum.sum() for stratum in parts))
    tolerance = 1e-12 * float(np.abs(values).sum())
    below = float(np.mean(sums < total - tolerance))
    tied = float(np.mean(np.abs(sums - total) <= tolerance))
    share = min(max(below + tied / 2, 0.5 / resamples), 1 - 0.5 / resamples)
    bias = _NORMAL.inv_cdf(share)
    skew = float((centred**3).sum() / (centred**2).sum() ** 1.5) / 6

    def end(level: float) -> float:
        shifted = bias + _NORMAL.inv_cdf(level)
        room = 1 - skew * shifted
        # Past the pole of the correction the level has run into its end of the distribution.
        adjusted = _NORMAL.cdf(bias + shifted / room) if room > 0 else float(shifted > 0)
        return float(np.quantile(sums, adjusted)) / values.size

    rest = 1 - confidence
    return Interval(mean, end(rest / 2), end(1 - rest / 2), end(rest), end(confidence), values.size)


def strata(values: NDArray[np.float64], groups: Sequence[Hashable] | None) -> list[NDArray[np.float64]]:
    """Values by group in order of first appearance, groups of one pooled."""
    if groups is None:
        return [values]
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    found = [rows for rows in members.values() if len(rows) > 1]
    single = [row for rows in members.values() if len(rows) == 1 for row in rows]
    if len(single) == 1 and found:
        smallest = min(range(len(found)), key=lambda place: len(found[place]))
        found[smallest] = sorted([*found[smallest], *single])
    elif single:
        found.append(single)
    return [values[rows] for rows in found]


def _resampled_sums(
    parts: list[NDArray[np.float64]], resamples: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Sum of each resample, `[resamples]`, every stratum drawn with replacement at its own size."""
    sums = np.zeros(resamples)
    for stratum in parts:
        step = max(1, _BLOCK // stratum.size)
        for start in range(0, resamples, step):
            stop = min(resamples, start + step)
            drawn = rng.integers(0, stratum.size, (stop - start, stratum.size))
            sums[start:stop] += stratum[drawn].sum(axis=1)
    return sums


def binomial_floor(n: int, confidence: float = 0.95) -> float:
    """Failure share that `n` flawless samples cannot rule out, one-sided (paper section 3.4).

    Returns:
        `1 - (1 - confidence) ** (1 / n)` as a share: 0.0138 at 216 samples.

    Raises:
        ValueError: `n` is not positive.
    """
    if n < 1:
        raise ValueError("a binomial floor needs at least one sample")
    return -math.expm1(math.log(1 - confidence) / n)


def wilson(successes: float, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a share (Wilson 1927).

    Args:
        successes: number of successes, 0 to `n`.
        n: number of samples.
        confidence: two-sided coverage.

    Returns:
        Lower and upper end, within [0, 1].

    Raises:
        ValueError: `n` is not positive or `successes` lies outside it.
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n} samples")
    z = _NORMAL.inv_cdf(0.5 + confidence / 2)
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)
