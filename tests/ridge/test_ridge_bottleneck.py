"""Parts of sums against sums of parts, and the bottleneck against a reduced-rank regression on rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from ridgefit.errors import BadInput, CheckFailed
from ridgefit.ridge import Penalty, RidgeFit, conditional, directions, projected, selected

ROWS, KEPT, REST, OUT, LAYERS, KEYS = 500, 9, 14, 9, 3, 4


@dataclass
class Centred:
    """Two-pass float64 sums, the plainest there are."""

    n: int
    mean_x: torch.Tensor
    mean_y: torch.Tensor
    sxx: torch.Tensor
    sxy: torch.Tensor
    syy: torch.Tensor


def sums_of(x: np.ndarray, y: np.ndarray) -> Centred:
    dx, dy = x - x.mean(0), y - y.mean(0)
    return Centred(
        len(x),
        torch.tensor(x.mean(0)),
        torch.tensor(y.mean(0)),
        torch.tensor(dx.T @ dx),
        torch.tensor(np.einsum("nw,nld->lwd", dx, dy)),
        torch.tensor((dy**2).sum(0)),
    )


def rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs with uneven correlated channels, outputs `[n, layers, out]`, a metric `[layers, keys, out]`."""
    rng = np.random.default_rng(3)
    width = KEPT + REST
    x = rng.normal(size=(ROWS, width)) @ rng.normal(size=(width, width)) * np.logspace(-0.7, 0.7, width)
    x += rng.normal(size=width)
    y = x @ rng.normal(size=(LAYERS, width, OUT)) + 3 * rng.normal(size=(LAYERS, ROWS, OUT))
    return x, np.moveaxis(y, 0, 1), rng.normal(size=(LAYERS, KEYS, OUT))


def same(found: torch.Tensor, wanted: np.ndarray, tolerance: float = 1e-10) -> bool:
    return bool(np.abs(found.numpy() - wanted).max() <= tolerance * np.abs(wanted).max())


FIELDS = ("mean_x", "mean_y", "sxx", "sxy", "syy")


def test_selected_sums_are_the_sums_of_the_selected_rows() -> None:
    x, y, _ = rows()
    columns = [*range(KEPT), 20, 11]
    found, wanted = selected(sums_of(x, y), columns), sums_of(x[:, columns], y)
    assert found.n == wanted.n
    for field in FIELDS:
        assert same(getattr(found, field), getattr(wanted, field).numpy()), field


def test_projected_sums_are_the_sums_of_the_projected_rows() -> None:
    x, y, _ = rows()
    basis = torch.tensor(np.random.default_rng(1).normal(size=(REST, 5))).bfloat16()
    through = np.concatenate([x[:, :KEPT], x[:, KEPT:] @ basis.double().numpy()], axis=1)
    found, wanted = projected(sums_of(x, y), KEPT, basis), sums_of(through, y)
    for field in FIELDS:
        assert same(getattr(found, field), getattr(wanted, field).numpy(), 1e-9), field


@pytest.mark.parametrize("columns", [[], [0, 0], [KEPT + REST], [-1]])
def test_a_part_that_is_none_is_refused(columns: list[int]) -> None:
    x, y, _ = rows()
    with pytest.raises(BadInput):
        selected(sums_of(x, y), columns)
    with pytest.raises(BadInput, match="bottleneck"):
        projected(sums_of(x, y), KEPT, torch.ones(REST + 1, 2))


def penalised(x: np.ndarray, alpha: float, penalty: Penalty) -> np.ndarray:
    """Square roots of the penalty, one row per input, to be stacked under the centred rows."""
    squares = (x - x.mean(0)) ** 2
    if penalty == "channel":
        return np.diag(np.sqrt(alpha * squares.sum(0)))
    return np.sqrt(alpha * squares.sum() / x.shape[1]) * np.eye(x.shape[1])


def reduced_rank_regression(
    x: np.ndarray, targets: np.ndarray, roots: np.ndarray, rank: int
) -> tuple[np.ndarray, float]:
    """Row space of the best rank-limited coefficients of the rest, and the objective they reach.

    On rows: penalty as extra rows, the state regressed out of both sides, singular vectors of what the
    rest then explains.
    """
    inputs = np.concatenate([x - x.mean(0), roots])
    wanted = np.concatenate([targets - targets.mean(0), np.zeros((len(roots), targets.shape[1]))])
    state, rest = inputs[:, :KEPT], inputs[:, KEPT:]
    rest = rest - state @ np.linalg.lstsq(state, rest, rcond=None)[0]
    wanted = wanted - state @ np.linalg.lstsq(state, wanted, rcond=None)[0]
    full = np.linalg.lstsq(rest, wanted, rcond=None)[0]
    right = np.linalg.svd(rest @ full, full_matrices=False)[2][:rank].T
    coefficients = full @ right @ right.T
    space = np.linalg.svd(coefficients, full_matrices=False)[0][:, :rank]
    return space, float(((wanted - rest @ coefficients) ** 2).sum())


def objective(x: np.ndarray, targets: np.ndarray, roots: np.ndarray, basis: np.ndarray) -> float:
    """What a map of `[state, rest basis]` reaches, by least squares on rows and penalty rows."""
    inputs = np.concatenate([x - x.mean(0), roots])
    inputs = np.concatenate([inputs[:, :KEPT], inputs[:, KEPT:] @ basis], axis=1)
    wanted = np.concatenate([targets - targets.mean(0), np.zeros((len(roots), targets.shape[1]))])
    return float(((wanted - inputs @ np.linalg.lstsq(inputs, wanted, rcond=None)[0]) ** 2).sum())


@pytest.mark.parametrize("penalty", ["mean-diag", "channel"])
@pytest.mark.parametrize("alpha", [1e-4, 0.3])
@pytest.mark.parametrize("layers", [(0, 1, 2), (1,)])
def test_directions_are_those_of_a_reduced_rank_regression(
    penalty: Penalty, alpha: float, layers: tuple[int, ...]
) -> None:
    x, y, metric = rows()
    fit = RidgeFit(sums_of(x, y), penalty)
    found = directions(fit, KEPT, alpha, {layer: torch.tensor(metric[layer]) for layer in layers})
    targets = np.concatenate([y[:, layer] @ metric[layer].T for layer in layers], axis=1)
    roots = penalised(x, alpha, penalty)
    assert same(found.basis.T @ found.basis, np.eye(REST))
    for rank in (1, 2, KEYS * len(layers) - 1):
        space, best = reduced_rank_regression(x, targets, roots, rank)
        basis = found.basis[:, :rank].numpy()
        assert np.allclose(basis @ basis.T, space @ space.T, atol=1e-6), rank
        assert objective(x, targets, roots, basis) == pytest.approx(best, rel=1e-9)
    other = np.linalg.qr(np.random.default_rng(0).normal(size=(REST, 2)))[0]
    assert objective(x, targets, roots, other) > 1.001 * objective(
        x, targets, roots, found.basis[:, :2].numpy()
    )


def test_energy_is_the_share_of_the_explained_squares() -> None:
    """The energy kept by a rank is what the objective falls by, on the way from no rest to all of it."""
    x, y, metric = rows()
    alpha = 0.01
    fit = RidgeFit(sums_of(x, y))
    found = directions(fit, KEPT, alpha, {layer: torch.tensor(metric[layer]) for layer in range(LAYERS)})
    targets = np.concatenate([y[:, layer] @ metric[layer].T for layer in range(LAYERS)], axis=1)
    roots = penalised(x, alpha, "mean-diag")
    none = objective(x, targets, roots, np.zeros((REST, 1)))
    everything = objective(x, targets, roots, np.eye(REST))
    for rank in (1, 3, 8):
        share = (none - objective(x, targets, roots, found.basis[:, :rank].numpy())) / (none - everything)
        assert found.kept(rank) == pytest.approx(share, rel=1e-7)
    assert bool((found.energy.diff() >= -1e-12).all())
    assert found.kept(REST) == pytest.approx(1)
    assert found.kept(LAYERS * KEYS) == pytest.approx(1), "no more directions than keys can be needed"


def test_a_bottleneck_of_full_rank_is_the_full_map() -> None:
    """Orthonormal columns turn the inputs and nothing else, so the same penalty gives the same map."""
    x, y, metric = rows()
    sums = sums_of(x, y)
    fit = RidgeFit(sums)
    found = directions(fit, KEPT, 0.03, {1: torch.tensor(metric[1])})
    through = RidgeFit(projected(sums, KEPT, found.basis))
    for layer in range(LAYERS):
        weight, bias = through.map(layer, 0.03)
        whole = torch.cat([weight[:, :KEPT], weight[:, KEPT:] @ found.basis.T], dim=1)
        assert same(whole, fit.weight(layer, 0.03).numpy(), 1e-9)
        assert same(bias, fit.map(layer, 0.03)[1].numpy(), 1e-9)


def test_what_the_state_leaves_of_the_rest() -> None:
    x, y, _ = rows()
    alpha = 0.05
    found = conditional(RidgeFit(sums_of(x, y), "channel"), KEPT, alpha)
    inputs = np.concatenate([x - x.mean(0), penalised(x, alpha, "channel")])
    state, rest = inputs[:, :KEPT], inputs[:, KEPT:]
    left = rest - state @ np.linalg.lstsq(state, rest, rcond=None)[0]
    assert same(found, left.T @ left, 1e-9)


def test_constant_inputs_take_no_part() -> None:
    x, y, metric = rows()
    x[:, KEPT + 2] = 5.0
    fit = RidgeFit(sums_of(x, y), "channel")
    found = directions(fit, KEPT, 0.01, {0: torch.tensor(metric[0])})
    assert float(found.basis[2, :KEYS].abs().max()) < 1e-9


def test_what_cannot_be_a_bottleneck_is_refused() -> None:
    x, y, metric = rows()
    fit = RidgeFit(sums_of(x, y))
    one = {0: torch.tensor(metric[0])}
    for kept in (0, KEPT + REST):
        with pytest.raises(BadInput, match="nothing to do"):
            directions(fit, kept, 0.1, one)
    with pytest.raises(BadInput, match="nothing to do"):
        directions(fit, KEPT, 0.1, {})
    with pytest.raises(BadInput, match="metric of late layer 0"):
        directions(fit, KEPT, 0.1, {0: torch.ones(2, OUT + 1)})
    found = directions(fit, KEPT, 0.1, one)
    for rank in (0, REST + 1):
        with pytest.raises(BadInput, match="rank"):
            found.bottleneck(rank)
    with pytest.raises(BadInput, match="add nothing"):
        directions(fit, KEPT, 0.1, {0: torch.zeros(2, OUT)})
    repeated = np.concatenate([x, x[:, :3]], axis=1)
    with pytest.raises((BadInput, CheckFailed)):
        directions(RidgeFit(sums_of(repeated, y)), KEPT, 0.0, one)
