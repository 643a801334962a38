"""Shares of a loss removed: against numpy, scipy's bootstrap, and known cases."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import bootstrap

from ridgefit.evaluate.ratios import bca_ratio


def drawn(seed: int, n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    lost = rng.gamma(2.0, 0.1, n)
    return lost * rng.normal(0.6, 0.2, n), lost


@pytest.mark.parametrize("seed", range(4))
def test_ratio_and_interval_are_scipys(seed: int) -> None:
    gained, lost = drawn(seed)
    found = bca_ratio(gained, lost, [0] * len(lost), resamples=20_000, seed=1)
    assert found.ratio == pytest.approx(gained.mean() / lost.mean(), rel=1e-12)
    wanted = bootstrap(
        (gained, lost),
        lambda a, b, axis=-1: a.sum(axis) / b.sum(axis),
        paired=True,
        n_resamples=20_000,
        method="BCa",
        rng=np.random.default_rng(2),
    ).confidence_interval
    spread = wanted.high - wanted.low
    assert found.low == pytest.approx(wanted.low, abs=0.05 * spread)
    assert found.high == pytest.approx(wanted.high, abs=0.05 * spread)


def test_groups_keep_their_size() -> None:
    """One unit of a loud group beside many quiet ones: resampled within groups, both always weigh alike."""
    gained, lost = np.array([0.1] * 20 + [5.0] * 20), np.array([0.2] * 20 + [10.0] * 20)
    found = bca_ratio(gained, lost, [0] * 20 + [1] * 20)
    assert (found.ratio, found.low, found.high) == (0.5, 0.5, 0.5)


def test_no_loss_no_share() -> None:
    rng = np.random.default_rng(0)
    found = bca_ratio(rng.normal(0, 1, 30), rng.normal(0, 1, 30), [0] * 30)
    assert (found.ratio, found.low, found.n) == (None, None, 30)
    assert bca_ratio([0.1], [0.2], [0]).ratio is None


def test_a_gap_is_a_loss_of_the_other_sign() -> None:
    """Retrieval: plain minus exact is negative, and what closes the gap is negative too."""
    gained, lost = drawn(3)
    one = bca_ratio(gained, lost, [0] * len(lost))
    other = bca_ratio(-gained, -lost, [0] * len(lost), positive=False)
    assert other == one
    assert bca_ratio(gained, lost, [0] * len(lost), positive=False).ratio is None
