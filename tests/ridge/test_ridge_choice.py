"""The choice of the penalty: mean over layers, keys and values; ties; edges; per layer."""

from __future__ import annotations

import itertools
import random

import pytest

from ridgefit.errors import BadInput, CheckFailed
from ridgefit.ridge import Choice, choose

KEYS = {0.01: [0.90, 0.80], 0.1: [0.95, 0.82], 1.0: [0.94, 0.90]}
VALUES = {0.01: [0.70, 0.60], 0.1: [0.75, 0.64], 1.0: [0.74, 0.50]}


def test_one_alpha_is_the_best_mean() -> None:
    choice = choose(KEYS, VALUES)
    assert choice.alpha == 0.1
    assert choice.alphas == (0.1, 0.1)
    assert choice.score == pytest.approx((0.95 + 0.82 + 0.75 + 0.64) / 4)
    assert not choice.warnings
    assert [entry.alpha for entry in choice.grid] == [0.01, 0.1, 1.0]
    assert choice.grid[0].mean == pytest.approx(0.75)
    assert choice.grid[2].keys == (0.94, 0.90)


def test_values_count_as_much_as_keys() -> None:
    nothing = {alpha: [0.0, 0.0] for alpha in KEYS}
    assert choose(KEYS, nothing).alpha == 1.0
    assert choose(nothing, VALUES).alpha == 0.1


def test_per_layer_against_brute_force() -> None:
    rng = random.Random(3)
    keys = {alpha: [rng.random() for _ in range(5)] for alpha in (0.001, 0.01, 0.1, 1.0)}
    values = {alpha: [rng.random() for _ in range(5)] for alpha in keys}
    choice = choose(keys, values, per_layer=True)
    best = max(
        itertools.product(keys, repeat=5),
        key=lambda alphas: sum(keys[a][i] + values[a][i] for i, a in enumerate(alphas)),
    )
    assert choice.alphas == best
    assert choice.alpha is None
    assert choice.score == pytest.approx(sum(keys[a][i] + values[a][i] for i, a in enumerate(best)) / 10)
    assert choice.score >= choose(keys, values).score


def test_ties_go_to_the_larger_alpha_in_any_order() -> None:
    flat = {0.1: [0.5], 0.001: [0.5], 0.01: [0.5]}
    for per_layer in (False, True):
        assert choose(flat, flat, per_layer=per_layer).alpha == 0.1


def test_edges_of_the_grid_are_named() -> None:
    rising = {0.01: [0.1, 0.1], 0.1: [0.2, 0.2]}
    assert choose(rising, rising).warnings == (
        "the split chose alpha 0.1, the largest of the grid; widen --alphas",
    )
    mixed = {0.01: [0.3, 0.1], 0.1: [0.2, 0.2]}
    warnings = choose(mixed, mixed, per_layer=True).warnings
    assert len(warnings) == 2
    assert "1 of 2 layers chose alpha 0.01, the smallest" in warnings[0]
    assert not choose({0.1: [0.5]}, {0.1: [0.5]}).warnings
    falling = {0.0: [0.3], 0.1: [0.2]}
    assert not choose(falling, falling).warnings, "no grid goes below no penalty"


def test_choice_survives_json() -> None:
    choice = choose(KEYS, VALUES)
    assert Choice.model_validate_json(choice.model_dump_json()) == choice


def test_refusals() -> None:
    with pytest.raises(BadInput, match="no penalty"):
        choose({}, {})
    with pytest.raises(BadInput, match="do not cover"):
        choose(KEYS, {0.01: [0.1, 0.2]})
    with pytest.raises(BadInput, match="do not cover"):
        choose(KEYS, {alpha: row[:1] for alpha, row in VALUES.items()})
    with pytest.raises(CheckFailed, match=r"alpha 0\.1 is not finite"):
        choose(KEYS | {0.1: [float("nan"), 1.0]}, VALUES)
