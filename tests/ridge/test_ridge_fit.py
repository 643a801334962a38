"""Maps against scikit-learn and Cholesky, on ordinary rows and on the two shapes that break naive sums."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from ridgefit.errors import BadInput, CheckFailed
from ridgefit.ridge import Penalty, RidgeFit, Spectrum

ROWS, WIDTH, OUT, LAYERS = 700, 40, 24, 3
ALPHAS = (1e-6, 3e-4, 0.01, 0.3, 1.0, 100.0)


@dataclass
class Centred:
    """Two-pass float64 sums, the plainest there are."""

    n: int
    mean_x: torch.Tensor
    mean_y: torch.Tensor
    sxx: torch.Tensor
    sxy: torch.Tensor
    syy: torch.Tensor


def rows(shape: str, n: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    """Inputs `[n, WIDTH]` with uneven correlated channels, outputs `[n, LAYERS, OUT]`."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(n, WIDTH)) @ rng.normal(size=(WIDTH, WIDTH)) * np.logspace(-1, 1, WIDTH)
    x += rng.normal(size=WIDTH)
    if "row" in shape:
        x[n // 3, 5] = 3e3
        x[n // 3, 11] = -3e3
    if "channel" in shape:
        x[:, 17] = 3e3
    y = x @ rng.normal(size=(LAYERS, WIDTH, OUT)) + rng.normal(size=(LAYERS, n, OUT)) + 2.0
    return x, np.moveaxis(y, 0, 1)


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


def relative(found: torch.Tensor, wanted: np.ndarray) -> float:
    return float(np.abs(found.numpy() - wanted).max() / np.abs(wanted).max())


SHAPES = ["plain", "row", "channel", "row and channel"]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_maps_equal_sklearn(shape: str, alpha: float) -> None:
    x, y = rows(shape)
    fit = RidgeFit(sums_of(x, y))
    penalty = alpha * np.trace(np.cov(x.T, bias=True) * len(x)) / WIDTH
    assert fit.spectrum.absolute(alpha) == pytest.approx(penalty, rel=1e-12)
    for layer in range(LAYERS):
        peer = Ridge(alpha=penalty, solver="svd").fit(x, y[:, layer])
        weight, bias = fit.map(layer, alpha)
        assert weight.dtype == bias.dtype == torch.float64
        assert relative(weight, peer.coef_) < 1e-8
        assert relative(bias, peer.intercept_) < 1e-8


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_channel_penalty_equals_sklearn_on_scaled_columns(shape: str, alpha: float) -> None:
    x, y = rows(shape)
    fit = RidgeFit(sums_of(x, y), "channel")
    deviation = x.std(0)
    live = deviation > 1e-9
    assert live.sum() == WIDTH - ("channel" in shape)
    peer = Ridge(alpha=alpha * len(x), solver="svd").fit(x[:, live] / deviation[live], y[:, 1])
    wanted = np.zeros((OUT, WIDTH))
    wanted[:, live] = peer.coef_ / deviation[live]
    weight, bias = fit.map(1, alpha)
    assert relative(weight, wanted) < 1e-8
    assert relative(bias, y[:, 1].mean(0) - wanted @ x.mean(0)) < 1e-8
    if "channel" in shape:
        assert not weight[:, 17].any()


def test_maps_equal_cholesky_and_stream() -> None:
    sums = sums_of(*rows("row"))
    spectrum = Spectrum.of(sums.sxx, rows=sums.n)
    for alpha in (0.0, 0.003):
        shifted = sums.sxx + alpha * float(sums.sxx.trace()) / WIDTH * torch.eye(WIDTH, dtype=torch.float64)
        wanted = torch.cholesky_solve(sums.sxy, torch.linalg.cholesky(shifted)).mT
        maps = spectrum.maps(sums.sxy, alpha)
        assert maps.shape == (LAYERS, OUT, WIDTH)
        assert relative(maps, wanted.numpy()) < 1e-8
        assert all(torch.equal(a, b) for a, b in zip(maps, spectrum.stream(sums.sxy, alpha), strict=True))


def test_alpha_zero_is_least_squares() -> None:
    x, y = rows("plain")
    weight, bias = RidgeFit(sums_of(x, y)).map(2, 0.0)
    wanted = np.linalg.lstsq(np.c_[x, np.ones(ROWS)], y[:, 2], rcond=None)[0]
    assert relative(weight, wanted[:-1].T) < 1e-8
    assert relative(bias, wanted[-1]) < 1e-8


@pytest.mark.parametrize("penalty", ["mean-diag", "channel"])
def test_report_against_the_rows(penalty: Penalty) -> None:
    x, y = rows("row")
    fit = RidgeFit(sums_of(x, y), penalty)
    report = fit.report((0.001, 0.1))
    scaled = (x - x.mean(0)) / (x.std(0) if penalty == "channel" else 1)
    values = np.linalg.svd(scaled, compute_uv=False) ** 2
    assert (report.rows, report.width, report.rows_per_width) == (ROWS, WIDTH, ROWS / WIDTH)
    assert report.eigenvalue_max == pytest.approx(values[0])
    assert report.eigenvalue_min == pytest.approx(values[-1], rel=1e-6)
    assert report.condition == pytest.approx(values[0] / values[-1], rel=1e-6)
    assert report.mean_diagonal == pytest.approx(values.sum() / WIDTH)
    assert not report.warnings
    for entry in report.grid:
        assert entry.absolute == pytest.approx(entry.alpha * values.sum() / WIDTH)
        assert entry.degrees == pytest.approx((values / (values + entry.absolute)).sum())
        assert entry.unexplained is not None
        for layer, share in enumerate(entry.unexplained):
            weight, bias = (part.numpy() for part in fit.map(layer, entry.alpha))
            missed = ((y[:, layer] - x @ weight.T - bias) ** 2).sum()
            assert share == pytest.approx(missed / ((y[:, layer] - y[:, layer].mean(0)) ** 2).sum(), rel=1e-6)


def test_rounded_map_keeps_the_mean() -> None:
    """The bias belongs to the rounded weight, or a channel at 3e3 would shift every row."""
    x, y = rows("plain")
    x[:, 17] += 3e3
    fit = RidgeFit(sums_of(x, y))
    weight, bias = fit.rounded(0, 0.01)
    assert weight.dtype == bias.dtype == torch.bfloat16
    assert torch.equal(weight, fit.weight(0, 0.01).bfloat16())
    centre = weight.double() @ torch.tensor(x.mean(0))
    exact = torch.tensor(y[:, 0].mean(0)) - centre
    assert torch.equal(bias, exact.bfloat16())
    naive = fit.map(0, 0.01)[1]
    assert (centre + naive - torch.tensor(y[:, 0].mean(0))).abs().max() > 1
    same = fit.candidates((0.01, 0.1))
    assert torch.equal(same[0.01](0)[0], weight)
    assert not torch.equal(same[0.1](0)[0], weight)


def test_few_rows_are_named_and_alpha_zero_is_refused() -> None:
    x, y = rows("plain", WIDTH - 1)
    fit = RidgeFit(sums_of(x, y))
    assert "fewer than 40 inputs" in fit.report((0.1,)).warnings[0]
    with pytest.raises(BadInput, match="39 rows cannot fit 40 inputs with alpha 0") as caught:
        fit.map(0, 0.0)
    assert caught.value.exit_status == 2
    x, y = rows("plain", WIDTH)  # centring takes one row away
    with pytest.raises(BadInput, match="alpha 0"):
        RidgeFit(sums_of(x, y)).map(0, 0.0)
    x, y = rows("plain", WIDTH * 5)
    assert "5.0 rows per input" in RidgeFit(sums_of(x, y)).report((0.1,)).warnings[0]


def test_singular_sums_refuse_alpha_zero_only() -> None:
    sums = sums_of(*rows("channel"))
    with pytest.raises(BadInput, match="linear combinations"):
        RidgeFit(sums).map(0, 0.0)
    assert torch.isfinite(RidgeFit(sums).map(0, 1e-6)[0]).all()
    channel = RidgeFit(sums, "channel")
    assert torch.isfinite(channel.map(0, 0.0)[0]).all()
    report = channel.report((0.01,))
    assert report.constant_channels == 1
    assert "1 of 40 input channels never vary" in report.warnings[0]


def test_round_off_below_zero_is_taken_as_zero_and_named() -> None:
    sums = sums_of(*rows("row"))
    noise = torch.randn(WIDTH, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sums.sxx += (noise + noise.T) * 1e-10 * float(sums.sxx.diagonal().max())
    sums.sxx[3] = sums.sxx[:, 3] = 0
    sums.sxx[3, 3] = -1e-9 * float(sums.sxx.diagonal().max())
    fit = RidgeFit(sums)
    report = fit.report((1e-12, 0.1))
    assert report.eigenvalue_min < 0
    assert report.condition is None
    assert "alpha 1e-12 is below the round-off" in report.warnings[0]
    assert float(fit.spectrum.values.min()) == 0


@pytest.mark.parametrize("rank", [1, 7, 33])
def test_float32_products_of_low_rank_rows_are_not_called_corrupt(rank: int) -> None:
    """Their sums have eigenvalues a few 1e-8 of the largest below zero."""
    rng = np.random.default_rng(rank)
    x = rng.normal(size=(2048, rank)) @ rng.normal(size=(rank, WIDTH))
    y = x[:, :OUT][:, None].repeat(LAYERS, 1)
    sums = sums_of(x, y)
    narrow = torch.tensor(x - x.mean(0)).float()
    sums.sxx = (narrow.T @ narrow).double()
    assert float(torch.linalg.eigvalsh(sums.sxx)[0]) < 0
    weight, bias = RidgeFit(sums).map(0, 1e-4)
    missed = x @ weight.numpy().T + bias.numpy() - y[:, 0]
    assert (missed**2).mean() < 1e-4 * y.var()


@pytest.mark.parametrize("penalty", ["mean-diag", "channel"])
@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("sxx", float("nan"), "not finite"),
        ("sxx", float("inf"), "not finite"),
        ("sxx", -1e12, "corrupt"),
        ("sxy", float("nan"), "cross sums"),
        ("mean_x", float("nan"), "mean_x"),
        ("mean_y", float("inf"), "mean_y"),
        ("syy", float("nan"), "syy"),
    ],
)
def test_corrupt_sums_are_refused(field: str, value: float, words: str, penalty: Penalty) -> None:
    sums = sums_of(*rows("plain"))
    tensor = getattr(sums, field)
    tensor[(0, 1, 2)[: tensor.ndim]] = value
    if field == "sxx":
        sums.sxx[1, 0] = value
    with pytest.raises(CheckFailed, match=words) as caught:
        RidgeFit(sums, penalty).map(0, 0.1)
    assert caught.value.exit_status == 1


def test_other_refusals() -> None:
    sums = sums_of(*rows("plain"))
    lopsided = sums.sxx.clone()
    lopsided[0, 1] += float(sums.sxx.max())
    with pytest.raises(CheckFailed, match="not symmetric"):
        Spectrum.of(lopsided, rows=ROWS)
    with pytest.raises(CheckFailed, match="not square"):
        Spectrum.of(sums.sxx[:3], rows=ROWS)
    with pytest.raises(BadInput, match="no rows"):
        RidgeFit(replace(sums, n=0))
    for penalty in ("mean-diag", "channel"):
        with pytest.raises(BadInput, match="none of the 40 input channels varies"):
            Spectrum.of(torch.zeros(40, 40), penalty, rows=5)
    fit = RidgeFit(sums)
    for alpha in (-0.1, float("nan"), float("inf")):
        with pytest.raises(BadInput, match="alpha is"):
            fit.map(0, alpha)
    with pytest.raises(BadInput, match="late layer 3 does not exist, there are 3"):
        fit.map(3, 0.1)
    with pytest.raises(BadInput, match="sums of 39 inputs"):
        fit.spectrum.project(sums.sxy[0, 1:])


def test_round_off_between_the_triangles_does_not_matter() -> None:
    sums = sums_of(*rows("plain"))
    sums.sxx[0, 1:] *= 1 + 1e-10
    first, second = (Spectrum.of(part, rows=ROWS) for part in (sums.sxx, sums.sxx.T.contiguous()))
    assert torch.equal(
        first.weight(first.project(sums.sxy[0]), 0.1), second.weight(second.project(sums.sxy[0]), 0.1)
    )


def test_same_sums_same_bytes() -> None:
    sums = sums_of(*rows("row and channel"))
    first, second = RidgeFit(sums), RidgeFit(sums)
    assert torch.equal(first.weight(2, 0.01), second.weight(2, 0.01))
    first.weight(0, 0.3)  # asking in another order changes nothing
    assert torch.equal(first.weight(2, 0.01), second.weight(2, 0.01))


def test_one_projection_is_held_however_much_is_asked() -> None:
    fit = RidgeFit(sums_of(*rows("plain")))

    def projections() -> int:
        gc.collect()
        tensors = [item for item in gc.get_objects() if isinstance(item, torch.Tensor)]
        return sum(item.shape == (WIDTH, OUT) and item._base is None for item in tensors)

    before = projections()
    for layer in range(LAYERS):
        for alpha in ALPHAS:
            fit.weight(layer, alpha)
    assert projections() == before + 1
