"""Fits, frontiers and choices of refresh controllers, against scikit-learn and loops."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

from ridgefit.calibrate.refresh.calibrate import choose
from ridgefit.calibrate.refresh.closed import Comparison, Outcome, compare
from ridgefit.calibrate.refresh.rules import (
    NOTICEABLE,
    Candidate,
    asks,
    candidates,
    fit,
    frontier,
    gate_rules,
)
from ridgefit.calibrate.refresh.traces import Trace
from ridgefit.maps.refresh import GateRule, LinearRule
from ridgefit.runtime.draft.frozen import rule_from
from ridgefit.runtime.draft.signals import NAMES, Signals

DRAW = np.random.default_rng(3)
ROWS = DRAW.normal(size=(300, len(NAMES)))
GAINS = 0.4 * ROWS[:, 5] - 0.2 * ROWS[:, 0] + 0.1 * DRAW.normal(size=300)


def traces() -> list[Trace]:
    return [
        Trace(f"p{i}", f"d{i % 12}", 32 * (i % 8), tuple(map(float, row)), 3.0, 3.0 + float(gain), 0.5)
        for i, (row, gain) in enumerate(zip(ROWS, GAINS, strict=True))
    ]


def test_ridge_equals_scikit_learn() -> None:
    weights, bias = fit(ROWS, GAINS, 2.5, "ridge")
    known = Ridge(alpha=2.5).fit(ROWS, GAINS)
    np.testing.assert_allclose(weights, known.coef_, atol=1e-10)
    assert bias == pytest.approx(known.intercept_, abs=1e-10)


def test_weighted_logistic_equals_scikit_learn() -> None:
    weights, bias = fit(ROWS, GAINS, 2.5, "logistic")
    known = LogisticRegression(C=1 / 2.5, tol=1e-10, max_iter=5000)
    known.fit(ROWS, GAINS > NOTICEABLE, sample_weight=np.abs(GAINS))
    np.testing.assert_allclose(weights, known.coef_[0], atol=2e-3)
    assert bias == pytest.approx(known.intercept_[0], abs=2e-3)


@pytest.mark.parametrize("combine", ["any", "all"])
def test_rules_ask_in_closed_loop_where_they_asked_in_the_fit(combine: str) -> None:
    gate = GateRule(below={"acc_mean": 0.2}, above={"drift": 0.4}, combine=combine)
    linear = LinearRule(
        signals=NAMES, weights=tuple(range(8)), mean=(0.1,) * 8, spread=(2.0,) * 8, bias=0.3, threshold=0.5
    )
    for rule in (gate, linear):
        decide = rule_from(rule)
        assert [decide(Signals(*row)) for row in ROWS] == asks(rule, ROWS).tolist()


def test_rules_may_read_some_signals_in_any_order() -> None:
    whole = LinearRule(
        signals=NAMES,
        weights=(0, 0, 0, 2.0, 0, 1.0, 0, 0),
        mean=(0.5,) * 8,
        spread=(2.0,) * 8,
        bias=0,
        threshold=0.1,
    )
    part = LinearRule(
        signals=("drift", "entropy"),
        weights=(1.0, 2.0),
        mean=(0.5, 0.5),
        spread=(2.0, 2.0),
        bias=0,
        threshold=0.1,
    )
    for row in ROWS[:50]:
        assert rule_from(whole)(Signals(*row)) == rule_from(part)(Signals(*row))


def test_falling_and_rising_signals_are_gated_from_their_side() -> None:
    for rule in gate_rules(ROWS):
        assert set(rule.below) <= {"acc_mean", "acc_first"}
        assert set(rule.above) <= {"entropy", "drift", "since"}


def test_the_frontier_takes_the_most_gain_at_each_rate() -> None:
    rules = [GateRule(below={}, above={"drift": float(limit)}) for limit in np.linspace(-2, 2, 9)]
    pairs = [(rule, asks(rule, ROWS)) for rule in rules]
    found = frontier(pairs, GAINS, 5)
    for rate in np.linspace(0.05, 0.9, 5):
        within = [(GAINS[fires].sum(), rule) for rule, fires in pairs if 0 < fires.mean() <= rate]
        if within:
            assert max(within, key=lambda one: one[0])[1] in found


def test_candidates_are_of_three_kinds_and_find_the_signals_that_matter() -> None:
    found = candidates(traces(), interval=16, every=64, kept=4)
    linear = [one.rule for one in found if isinstance(one.rule, LinearRule)]
    assert len(linear) >= 4
    assert any(isinstance(one.rule, GateRule) for one in found)
    for rule in linear:
        strongest = sorted(range(8), key=lambda place: -abs(rule.weights[place]))[:2]
        assert {NAMES[place] for place in strongest} == {"drift", "acc_mean"}
    assert {one.max_gap for one in found} == {None, 256}


def outcome(document: str, al: float | None, refreshes: int) -> Outcome:
    return Outcome(document, al, refreshes, 200, True)


def test_comparisons_resample_documents() -> None:
    own = [outcome(f"d{i // 2}", 3 + 0.1 * (i // 2), 1) for i in range(20)]
    other = [outcome(f"d{i // 2}", 3.0, 3) for i in range(20)]
    found = compare(own, other, resamples=4000, seed=0)
    gaps = np.array([0.1 * i for i in range(10)])
    assert found.documents == 10
    assert found.difference == pytest.approx(gaps.mean())
    drawn = np.random.default_rng(9).integers(0, 10, (4000, 10))
    assert found.low == pytest.approx(np.quantile(gaps[drawn].mean(1), 0.025), abs=0.03)
    assert found.bound == pytest.approx(np.quantile(gaps[drawn].mean(1), 0.05), abs=0.03)
    assert (found.refreshes, found.other_refreshes) == (5.0, 15.0)
    assert found.ratio == found.ratio_low == found.ratio_high == 3.0
    assert compare([outcome("a", 3, 0)], [outcome("a", 3, 2)], resamples=100, seed=0).ratio is None


def test_the_fewest_refreshes_among_those_that_pass() -> None:
    base = compare([outcome("a", 3, 4)] * 2, [outcome("a", 3, 8)] * 2, resamples=100, seed=0)

    def judged(bound: float, refreshes: float) -> Comparison:
        return dataclasses.replace(base, bound=bound, refreshes=refreshes)

    one = Candidate(GateRule(below={}, above={"drift": 1.0}), 32, None)
    two = Candidate(GateRule(below={"acc_mean": 1.0}, above={"drift": 1.0}), 32, None)
    assert choose([one, two, one], [judged(-0.5, 1), judged(0.0, 5), judged(-0.001, 9)], 0.005) == 1
    assert choose([two, one], [judged(0, 5), judged(0, 5)], 0.005) == 1  # fewer signals
    assert choose([one], [judged(-0.5, 1)], 0.005) is None
    assert choose([one], [judged(0.0, 40.0)], 0.005) is None  # no fewer refreshes than periodic
