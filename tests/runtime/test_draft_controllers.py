"""When controllers ask for a refresh, and what signals say."""

from __future__ import annotations

import math

import pytest
import torch

from ridgefit.runtime.draft.controllers import (
    Adaptive,
    Controller,
    Gate,
    Linear,
    Never,
    Pace,
    Periodic,
    RandomMatched,
)
from ridgefit.runtime.draft.drafter import _certainty
from ridgefit.runtime.draft.signals import NAMES, Interval, Signals

CALM = Signals(4.0, 4.0, 1.0, 0.5, 0.9, 0.0, 10.0, 0.1)


def moments(controller: Controller, ends: list[int], signals: Signals = CALM) -> list[int]:
    return [end for end in ends if controller.due(end, lambda: signals)]


def test_periodic_counts_committed_tokens() -> None:
    """At the first round end at or past each multiple; a long round skips no more than it passes."""
    assert moments(Periodic(10), [4, 9, 12, 18, 20, 29, 31, 55, 58, 60]) == [12, 20, 31, 55, 60]
    assert moments(Never(), [10, 200]) == []


def test_adaptive_checks_gaps_and_rule() -> None:
    calls: list[float] = []

    def rule(signals: Signals) -> bool:
        calls.append(signals.acc_mean)
        return True

    assert moments(Adaptive(Pace(8, 16, None), rule), [3, 8, 12, 16, 24, 33, 40, 50]) == [16, 33, 50]
    assert moments(Adaptive(Pace(8, 8, 24), lambda _: False), [8, 16, 24, 32, 40, 48]) == [24, 48]
    assert len(calls) == 3  # within the gap the rule is not asked


def test_gates_and_scores() -> None:
    low = Signals(1.0, 1.0, 0.4, 2.0, 0.5, 0.3, 90.0, 0.5)
    either = Gate({"acc_mean": 2.0}, {"drift": 0.9})
    both = Gate({"acc_mean": 2.0}, {"drift": 0.9}, "all")
    assert (either(low), both(low), either(CALM)) == (True, False, False)
    weights = [1.0, 0, 0, 0, 0, 2.0, 0, 0]
    linear = Linear(weights, [0.5] * 8, [2.0] * 8, bias=0.1, threshold=0.0)
    assert linear.score(low.values()) == pytest.approx((1 - 0.5) / 2 + 2 * (0.3 - 0.5) / 2 + 0.1)


def test_random_refreshes_are_seeded_and_of_the_asked_share() -> None:
    ends = list(range(4, 40_000, 4))
    first = moments(RandomMatched(0.25, 32, seed=1), ends)
    assert first == moments(RandomMatched(0.25, 32, seed=1), ends)
    assert len(first) / (40_000 / 32) == pytest.approx(0.25, abs=0.05)


def test_an_interval_is_what_its_rounds_were() -> None:
    interval = Interval()
    interval.add(3, [1.0, 2.0, 3.0], [0.5, 0.5, 0.5])
    interval.add(0, [4.0], [0.1])
    found = interval.read(drift=0.2, since=7, progress=0.5)
    assert found.acc_mean == 1.5
    assert found.acc_ema == pytest.approx(0.7 * 3)
    assert found.acc_first == 0.5
    assert found.entropy == 2.5
    assert found.top1 == pytest.approx(0.4)
    assert dict(zip(NAMES, found.values(), strict=True))["since"] == 7
    interval.add(5, [0.0], [1.0])
    assert interval.read(drift=0, since=0, progress=0).acc_mean == 5  # the interval began anew


def test_certainty_is_entropy_in_nats_and_the_top_probability() -> None:
    logits = torch.tensor([2.0, 0.0, -1.0, float("-inf")], dtype=torch.float64)
    total = math.exp(2) + 1 + math.exp(-1)
    chances = [math.exp(2) / total, 1 / total, math.exp(-1) / total]
    entropy, top = _certainty(logits).tolist()
    assert entropy == pytest.approx(-sum(p * math.log(p) for p in chances), abs=1e-6)
    assert top == pytest.approx(chances[0], abs=1e-6)
