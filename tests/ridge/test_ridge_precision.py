"""From rows to a chosen penalty: fast sums lead where float64 sums and scikit-learn lead."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from ridgefit.moments import Product, RowSums
from ridgefit.ridge import Choice, Penalty, RidgeFit, choose

ROWS, HELD, WIDTH, LAYERS = 1536, 512, 48, 2
ALPHAS = (3e-4, 3e-3, 0.03, 0.3, 1.0)


def rows(shape: str) -> tuple[np.ndarray, np.ndarray]:
    """float32 inputs and outputs, the held-out rows last; noisy enough that the penalty matters."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(ROWS + HELD, WIDTH)) @ rng.normal(size=(WIDTH, WIDTH)) * np.logspace(-1, 0.5, WIDTH)
    y = x @ rng.normal(size=(LAYERS, WIDTH, WIDTH)) + 40 * rng.normal(size=(LAYERS, ROWS + HELD, WIDTH))
    if "row" in shape:
        x[7, 3] = x[900, 20] = 3e3
    if "channel" in shape:
        x[:, 9] = y[:, :, 9] = 3e3
    return x.astype(np.float32), np.moveaxis(y, 0, 1).astype(np.float32)


def fitted(x: np.ndarray, y: np.ndarray, product: Product, penalty: Penalty) -> RidgeFit:
    sums = RowSums({0: WIDTH}, LAYERS, WIDTH, product=product)
    for start in range(0, ROWS, 256):
        chunk = slice(start, start + 256)
        sums.open(256)
        sums.put_x(0, torch.tensor(x[chunk]))
        for layer in range(LAYERS):
            sums.put_y(layer, torch.tensor(y[chunk, layer]))
        assert sums.close()
    return RidgeFit(sums.moments(0), penalty)


def scored(fit: RidgeFit, x: np.ndarray, y: np.ndarray) -> Choice:
    held, wanted = torch.tensor(x[ROWS:]).double(), torch.tensor(y[ROWS:]).double()
    scores = {}
    for alpha, candidate in fit.candidates(ALPHAS).items():
        scores[alpha] = []
        for layer in range(LAYERS):
            weight, bias = (part.double() for part in candidate(layer))
            centre = wanted[:, layer].mean(0)
            made = held @ weight.T + bias - centre
            cosine = torch.nn.functional.cosine_similarity(made, wanted[:, layer] - centre, dim=-1)
            scores[alpha].append(float(cosine.mean()))
    return choose(scores, scores)


@pytest.mark.parametrize("penalty", ["mean-diag", "channel"])
@pytest.mark.parametrize("shape", ["plain", "row", "channel", "row and channel"])
def test_fast_sums_choose_the_same_penalty(shape: str, penalty: Penalty) -> None:
    x, y = rows(shape)
    exact, fast = fitted(x, y, "fp64", penalty), fitted(x, y, "fast", penalty)
    first, second = scored(exact, x, y), scored(fast, x, y)
    assert first.alpha == second.alpha
    for one, other in zip(first.grid, second.grid, strict=True):
        assert abs(one.mean - other.mean) < 1e-4
    if penalty == "mean-diag":
        alpha = first.alphas[1]
        wide = x[:ROWS].astype(np.float64)
        peer = Ridge(alpha * ((wide - wide.mean(0)) ** 2).sum() / WIDTH, solver="svd").fit(wide, y[:ROWS, 1])
        weight, bias = exact.map(1, alpha)
        assert np.abs(weight.numpy() - peer.coef_).max() < 1e-8 * np.abs(peer.coef_).max()
        assert np.abs(bias.numpy() - peer.intercept_).max() < 1e-8 * np.abs(peer.intercept_).max()


def test_the_penalty_matters_here() -> None:
    """The grid is not flat, so choosing the same penalty means something."""
    x, y = rows("plain")
    grid = scored(fitted(x, y, "fp64", "mean-diag"), x, y).grid
    assert max(entry.mean for entry in grid) - min(entry.mean for entry in grid) > 1e-3
