"""Intervals against scipy, a plain loop, the paper's floors and simulated coverage."""

from __future__ import annotations

import math
import random
from statistics import NormalDist

import numpy as np
import pytest
from scipy import stats

from ridgefit.evaluate.intervals import Interval, bca, binomial_floor, wilson


def samples(kind: str, n: int, seed: int = 3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    match kind:
        case "normal":
            return rng.normal(0.1, 1.0, n)
        case "skewed":
            return rng.exponential(1.0, n) ** 2
        case "scores":
            return rng.choice([-1.0, 0.0, 1.0], n, p=[0.2, 0.75, 0.05])
    raise AssertionError(kind)


# With few real-valued differences scipy's ties depend on rounding; ours do not, so those are left out.
@pytest.mark.parametrize("kind", ["normal", "skewed", "scores"])
@pytest.mark.parametrize("n", [12, 80])
def test_one_group_equals_scipy(kind: str, n: int) -> None:
    values = samples(kind, n)
    ours = bca(values.tolist(), resamples=5000, seed=11)
    theirs = stats.bootstrap(
        (values,), np.mean, n_resamples=5000, method="BCa", rng=np.random.default_rng(11)
    ).confidence_interval
    # Same generator, same draws: the only freedom left is rounding.
    np.testing.assert_allclose([ours.low, ours.high], [theirs.low, theirs.high], rtol=1e-12, atol=1e-12)
    for side, end in (("greater", ours.lower_bound), ("less", ours.upper_bound)):
        bound = stats.bootstrap(
            (values,),
            np.mean,
            n_resamples=5000,
            method="BCa",
            alternative=side,
            rng=np.random.default_rng(11),
        ).confidence_interval
        assert end == pytest.approx(bound.low if side == "greater" else bound.high, rel=1e-12)


def plain_loop(values: list[float], groups: list[str], resamples: int, seed: int) -> tuple[float, float]:
    """Stratified BCa written out with Python's own random numbers and a leave-one-out loop."""
    names = sorted(set(groups))
    parts = [[v for v, g in zip(values, groups, strict=True) if g == name] for name in names]
    share = [len(part) / len(values) for part in parts]

    def statistic(data: list[list[float]]) -> float:
        return sum(w * sum(part) / len(part) for w, part in zip(share, data, strict=True))

    rng = random.Random(seed)
    point = statistic(parts)
    drawn = sorted(statistic([rng.choices(part, k=len(part)) for part in parts]) for _ in range(resamples))
    below = sum(d < point - 1e-12 for d in drawn) + sum(abs(d - point) <= 1e-12 for d in drawn) / 2
    normal = NormalDist()
    z0 = normal.inv_cdf(below / resamples)
    top = bottom = 0.0
    for place, part in enumerate(parts):
        left_out = [
            statistic([*parts[:place], part[:i] + part[i + 1 :], *parts[place + 1 :]])
            for i in range(len(part))
        ]
        centre = sum(left_out) / len(left_out)
        influence = [(len(part) - 1) * (centre - value) for value in left_out]
        top += sum(u**3 for u in influence) / len(part) ** 3
        bottom += sum(u**2 for u in influence) / len(part) ** 2
    a = top / bottom**1.5 / 6

    def end(level: float) -> float:
        z = z0 + normal.inv_cdf(level)
        place = normal.cdf(z0 + z / (1 - a * z)) * (resamples - 1)
        floor = math.floor(place)
        upper = min(floor + 1, resamples - 1)
        return drawn[floor] + (place - floor) * (drawn[upper] - drawn[floor])

    return end(0.025), end(0.975)


@pytest.mark.parametrize("kind", ["skewed", "scores"])
def test_groups_equal_a_plain_loop(kind: str) -> None:
    groups = ["code"] * 5 + ["prose"] * 9 + ["chat"] * 16
    # Group means far apart: resampling across groups would give a much wider interval.
    offset = {"code": 0.0, "prose": 3.0, "chat": -4.0}
    values = [float(v) + offset[g] for v, g in zip(samples(kind, 30), groups, strict=True)]
    low, high = plain_loop(values, groups, 20000, seed=5)
    ours = bca(values, groups, resamples=20000, seed=6)
    width = high - low
    # Two seeds of 20,000 resamples: an end moves by about 0.6 % of the width (one sigma).
    assert ours.low == pytest.approx(low, abs=0.04 * width)
    assert ours.high == pytest.approx(high, abs=0.04 * width)
    pooled = bca(values, resamples=5000)
    assert pooled.high - pooled.low > 1.5 * width


def test_the_order_of_groups_and_a_shift_change_nothing_else() -> None:
    values = samples("skewed", 20).tolist()
    groups = ["a", "b"] * 10
    base = bca(values, groups, seed=2)
    moved = bca([v + 5 for v in values], groups, seed=2)
    for ours, theirs in zip(ends(base), ends(moved), strict=True):
        assert theirs == pytest.approx(ours + 5, abs=1e-9)
    negated = bca([-v for v in values], groups, seed=2)
    assert negated.low == pytest.approx(-base.high, abs=1e-9)
    assert bca(values, groups, seed=2) == base
    assert bca(values, groups, seed=3) != base


def ends(interval: Interval) -> list[float]:
    found = [interval.mean, interval.low, interval.high, interval.lower_bound, interval.upper_bound]
    return [value for value in found if value is not None]


def test_blocks_do_not_change_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    values = samples("normal", 50).tolist()
    whole = bca(values, resamples=1000, seed=1)
    monkeypatch.setattr("ridgefit.evaluate.intervals._BLOCK", 333)
    assert bca(values, resamples=1000, seed=1) == whole


def test_one_difference_has_no_interval() -> None:
    assert bca([0.25]) == Interval(0.25, None, None, None, None, 1)


@pytest.mark.parametrize("value", [0.0, 0.1, -1 / 3])
def test_equal_differences_give_their_value(value: float) -> None:
    interval = bca([value] * 7, ["a", "b", "b", "a", "a", "c", "c"])
    assert interval.low == interval.high == interval.lower_bound == interval.mean
    assert interval.mean == pytest.approx(value)


def test_groups_that_differ_only_between_them_have_no_spread() -> None:
    interval = bca([1.0, 1.0, 5.0, 5.0], ["a", "a", "b", "b"])
    assert (interval.low, interval.high) == (3.0, 3.0)


def test_groups_of_one_are_pooled_not_certain() -> None:
    values = samples("normal", 6).tolist()
    assert bca(values, list("abcdef"), seed=4) == bca(values, seed=4)
    # A lone single joins the smallest other group: here "b".
    lone = bca(values, ["a", "a", "a", "b", "b", "c"], seed=4)
    assert lone == bca(values, ["a", "a", "a", "b", "b", "b"], seed=4)
    assert lone.low is not None and lone.low < lone.mean


@pytest.mark.parametrize("bad", [[], [1.0, math.nan], [[1.0], [2.0]]])
def test_bad_differences_are_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="differences"):
        bca(bad)


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="2 groups for 3"):
        bca([1.0, 2.0, 3.0], ["a", "b"])


def test_extreme_skew_stays_inside_the_sample() -> None:
    interval = bca([0.0] * 40 + [1e6], resamples=500)
    assert interval.low is not None and interval.high is not None
    assert 0.0 <= interval.low <= interval.mean <= interval.high <= 1e6


@pytest.mark.parametrize("grouped", [False, True])
def test_coverage(grouped: bool) -> None:
    """400 skewed samples of 40: the interval holds the true mean near its nominal 95 %."""
    rng = np.random.default_rng(17)
    groups = ["a"] * 15 + ["b"] * 25
    shift = np.array([0.0] * 15 + [6.0] * 25) if grouped else np.zeros(40)
    truth = 1.0 + float(shift.mean())
    held = bounded = 0
    for trial in range(400):
        values = rng.exponential(1.0, 40) + shift
        interval = bca(values.tolist(), groups if grouped else None, resamples=600, seed=trial)
        assert interval.low is not None and interval.high is not None and interval.lower_bound is not None
        held += interval.low <= truth <= interval.high
        bounded += interval.lower_bound <= truth
    assert 0.91 <= held / 400 <= 0.975
    assert 0.915 <= bounded / 400 <= 0.98


@pytest.mark.parametrize(("n", "points"), [(216, 1.38), (219, 1.36), (138, 2.15)])
def test_floors_of_the_paper(n: int, points: float) -> None:
    assert round(100 * binomial_floor(n), 2) == points
    # By definition: at this failure share, n flawless samples have probability 5 %.
    assert (1 - binomial_floor(n)) ** n == pytest.approx(0.05, rel=1e-12)


def test_floor_of_one_sample_and_of_none() -> None:
    assert binomial_floor(1) == pytest.approx(0.95)
    with pytest.raises(ValueError, match="at least one"):
        binomial_floor(0)


@pytest.mark.parametrize(("successes", "n"), [(0, 10), (10, 10), (7, 12), (1, 216)])
def test_wilson_equals_scipy(successes: int, n: int) -> None:
    theirs = stats.binomtest(successes, n).proportion_ci(method="wilson")
    np.testing.assert_allclose(wilson(successes, n), (theirs.low, theirs.high), atol=1e-12)


def test_wilson_refuses_nonsense() -> None:
    with pytest.raises(ValueError, match="11 successes of 10"):
        wilson(11, 10)
