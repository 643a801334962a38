"""Streamed moments against two-pass sums and scikit-learn, with the rows that break naive sums."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from ridgefit.moments import Moments, RowSums, ieee_products, merge, product_for

LAYERS, WIDTH = 5, 48
SPLITS = (1, 3)
LENGTHS = (300, 1, 70, 3, 511, 2048)
KINDS = ("plain", "massive", "offset", "both", "constant")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def rows_of(kind: str, dtype: torch.dtype, seed: int = 0) -> list[torch.Tensor]:
    """Chunks `[rows, layers, width]` that look like a residual stream."""
    generator = torch.Generator().manual_seed(seed)
    chunks = [
        torch.randn(n, LAYERS, WIDTH, generator=generator, dtype=torch.float64).cumsum(1) for n in LENGTHS
    ]
    for chunk in chunks:
        chunk *= torch.logspace(-2, 1, WIDTH, dtype=torch.float64)
        if kind in ("massive", "both"):
            chunk[len(chunk) // 3, 1:, [4, 5]] = 3e3
            chunk[0, 2:, [4, 9]] = -3e3
        if kind in ("offset", "both"):
            chunk[:, :, 7] += 3e3
            chunk[:, :, 8] -= 3e3
        if kind == "constant":
            chunk[:, :, 7] = 3e3
    return [chunk.to(dtype) for chunk in chunks]


def summed(chunks: list[torch.Tensor], product: str, splits: tuple[int, ...] = SPLITS) -> RowSums:
    sums = RowSums(dict.fromkeys(splits, WIDTH), LAYERS, WIDTH, product=product)
    for chunk in chunks:
        sums.open(len(chunk))
        for layer in range(min(splits), LAYERS):
            if layer in splits:
                sums.put_x(layer, chunk[:, layer])
            sums.put_y(layer, chunk[:, layer])
        assert sums.close()
    return sums


def oracle(chunks: list[torch.Tensor], split: int) -> dict[str, np.ndarray]:
    """Two passes over all rows at once: means and differences in long double, products in float64."""
    rows = torch.cat(chunks).double().numpy().astype(np.longdouble)
    means = rows.mean(0)
    centred = (rows - means).astype(np.float64)
    x = centred[:, split]
    return {
        "mean_x": means[split],
        "mean_y": means[split:],
        "sxx": x.T @ x,
        "sxy": np.stack([x.T @ centred[:, layer] for layer in range(split, LAYERS)]),
        "syy": (centred[:, split:] ** 2).sum(0),
    }


def worst(found: Moments, true: dict[str, np.ndarray]) -> float:
    """Largest error, relative to the deviations of the two channels that a sum belongs to."""
    x, y = np.sqrt(np.diag(true["sxx"])), np.sqrt(true["syy"])
    x, y = np.where(x > 0, x, 1), np.where(y > 0, y, 1)
    scale = {
        "mean_x": np.maximum(np.abs(true["mean_x"]), x / np.sqrt(found.n)),
        "mean_y": np.maximum(np.abs(true["mean_y"]), y / np.sqrt(found.n)),
        "sxx": np.outer(x, x),
        "sxy": x[None, :, None] * y[:, None, :],
        "syy": y**2,
    }
    return max(float(np.max(np.abs(t.numpy() - true[name]) / scale[name])) for name, t in found.tensors())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("product", "bound"), [("fp64", 1e-10), ("fast", 1e-6)])
def test_streamed_sums_are_the_two_pass_sums(
    kind: str, dtype: torch.dtype, product: str, bound: float
) -> None:
    chunks = rows_of(kind, dtype)
    sums = summed(chunks, product)
    for split in SPLITS:
        found = sums.moments(split)
        assert found.n == sum(LENGTHS)
        assert worst(found, oracle(chunks, split)) < bound


@pytest.mark.parametrize("kind", KINDS)
def test_fast_sums_are_far_from_their_bound(kind: str) -> None:
    """Single long chunks, where float32 sums are worst; several seeds, so that the bound is not luck."""
    for seed in range(3):
        chunks = rows_of(kind, torch.bfloat16, seed)[-1:]
        found = summed(chunks, "fast", (1,)).moments(1)
        assert worst(found, oracle(chunks, 1)) < 6e-7


@pytest.mark.parametrize("heavy", [3e3, 1e4])
def test_a_massive_row_hides_no_ordinary_row(heavy: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Massive rows that come first; added in the order in which they came, the error is a multiple."""
    generator = torch.Generator().manual_seed(0)
    chunk = torch.randn(8192, LAYERS, WIDTH, generator=generator)
    chunk[:3, :, :8] = heavy * torch.randn(3, LAYERS, 8, generator=generator).sign()
    true = oracle([chunk], 1)
    sorted_error = worst(summed([chunk], "fast", (1,)).moments(1), true)
    assert sorted_error < 5e-7
    monkeypatch.setattr(RowSums, "_weigh", lambda *_: None)
    assert worst(summed([chunk], "fast", (1,)).moments(1), true) > 2 * sorted_error


def test_naive_sums_fail_the_same_rows() -> None:
    """The bound can fail: the textbook formula in float64 does, on an offset channel."""
    chunks = rows_of("offset", torch.float32)
    true = oracle(chunks, 1)
    rows = torch.cat(chunks)[:, 1]
    mean = rows.double().mean(0)
    naive = (rows.T @ rows).double() - len(rows) * torch.outer(mean, mean)
    deviations = np.sqrt(np.diag(true["sxx"]))
    assert np.max(np.abs(naive.numpy() - true["sxx"]) / np.outer(deviations, deviations)) > 1e-4


@pytest.mark.parametrize("product", ["fp64", "fast"])
def test_several_splits_in_one_pass_are_each_split_alone(product: str) -> None:
    chunks = rows_of("both", torch.float32)
    together = summed(chunks, product)
    for split in SPLITS:
        alone = summed(chunks, product, (split,)).moments(split)
        for (name, mine), (_, other) in zip(together.moments(split).tensors(), alone.tensors(), strict=True):
            scale = mine.abs().max()
            assert (mine - other).abs().max() <= (1e-12 if product == "fp64" else 1e-6) * scale, name


def test_merging_any_cut_gives_the_whole() -> None:
    chunks = rows_of("both", torch.float32)
    whole = summed(chunks, "fp64").moments(1)
    true = oracle(chunks, 1)
    for cut in range(len(chunks) + 1):
        parts = [summed(part, "fp64").moments(1) for part in (chunks[:cut], chunks[cut:])]
        merged = merge(*parts)
        assert merged.n == whole.n
        assert worst(merged, true) < 1e-10


def test_merging_nothing_changes_no_bit() -> None:
    some = summed(rows_of("both", torch.float32), "fast").moments(1)
    none = Moments.zeros(some.width, some.layers, some.hidden)
    for merged in (merge(some, none), merge(none, some)):
        assert merged.n == some.n
        for (name, mine), (_, other) in zip(merged.tensors(), some.tensors(), strict=True):
            assert torch.equal(mine, other), name
    assert merge(none, none).n == 0


def test_shapes_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="different shapes"):
        Moments.zeros(4, 2, 4).merge_(Moments.zeros(4, 3, 4))


def test_lead_and_body_combine_to_all_rows() -> None:
    chunks = rows_of("massive", torch.float32)
    lead = summed([chunk[:4] for chunk in chunks], "fast").moments(1)
    body = summed([chunk[4:] for chunk in chunks], "fast").moments(1)
    whole = Moments.combine(body, lead)
    assert whole.n == sum(LENGTHS)
    assert worst(whole, oracle(chunks, 1)) < 1e-6
    assert Moments.combine(body, lead, drop_lead=True) is body
    assert Moments.combine(body, None) is body


def test_going_on_from_saved_sums_changes_no_bit() -> None:
    chunks = rows_of("both", torch.bfloat16)
    for cut in range(len(chunks)):
        first = summed(chunks[:cut], "fast")
        saved = {split: first.moments(split).clone() for split in SPLITS}
        second = RowSums(dict.fromkeys(SPLITS, WIDTH), LAYERS, WIDTH, product="fast")
        second.restore(saved)
        for sums in (first, second):
            for chunk in chunks[cut:]:
                sums.open(len(chunk))
                for layer in range(1, LAYERS):
                    if layer in SPLITS:
                        sums.put_x(layer, chunk[:, layer])
                    sums.put_y(layer, chunk[:, layer])
                sums.close()
        for split in SPLITS:
            pairs = zip(first.moments(split).tensors(), second.moments(split).tensors(), strict=True)
            assert all(torch.equal(a, b) for (_, a), (_, b) in pairs)
    first.reset()
    assert first.moments(1).n == 0
    assert all(not tensor.any() for _, tensor in first.moments(1).tensors())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_is_reported(bad: float) -> None:
    chunk = rows_of("plain", torch.float32)[0]
    chunk[17, 4, 3] = bad
    sums = RowSums({1: WIDTH}, LAYERS, WIDTH, product="fast")
    sums.open(len(chunk))
    for layer in range(1, LAYERS):
        if layer == 1:
            sums.put_x(1, chunk[:, 1])
        sums.put_y(layer, chunk[:, layer])
    assert not sums.close()


def test_layers_out_of_order_are_refused() -> None:
    sums = RowSums({1: WIDTH, 3: WIDTH}, LAYERS, WIDTH, product="fast")
    rows = torch.randn(8, WIDTH)
    sums.open(8)
    with pytest.raises(RuntimeError, match="out of order"):
        sums.put_y(1, rows)
    with pytest.raises(RuntimeError, match="out of order"):
        sums.put_x(3, rows)
    sums.put_x(1, rows)
    sums.put_y(1, rows)
    with pytest.raises(RuntimeError, match="out of order"):
        sums.put_y(3, rows)
    with pytest.raises(RuntimeError, match="before every layer"):
        sums.close()


def centred_solve(found: Moments, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    penalty = alpha * float(found.sxx.trace()) / found.width
    weight = torch.linalg.solve(
        found.sxx + penalty * torch.eye(found.width, dtype=torch.float64), found.sxy[-1]
    ).T
    return weight.numpy(), (found.mean_y[-1] - weight @ found.mean_x).numpy()


@pytest.mark.parametrize("kind", ["plain", "both"])
@pytest.mark.parametrize(("product", "bound"), [("fp64", 1e-8), ("fast", 1e-4)])
def test_maps_are_those_of_scikit_learn(kind: str, product: str, bound: float) -> None:
    """Same maps as `Ridge` on the rows themselves; in the fast mode the same choice and the same score."""
    chunks = rows_of(kind, torch.float32)
    held = torch.cat(rows_of(kind, torch.float32, seed=9)).double().numpy()
    found = summed(chunks, product).moments(1)
    rows = torch.cat(chunks).double().numpy()
    scores: dict[str, list[float]] = {"mine": [], "theirs": []}
    for alpha in (3e-4, 3e-3, 3e-2, 3e-1, 1.0):
        weight, bias = centred_solve(found, alpha)
        absolute = alpha * np.trace(np.cov(rows[:, 1].T, bias=True)) * len(rows) / WIDTH
        theirs = Ridge(alpha=absolute, solver="cholesky").fit(rows[:, 1], rows[:, -1])
        if product == "fp64":
            assert np.abs(weight - theirs.coef_).max() < bound * np.abs(theirs.coef_).max()
            assert np.abs(bias - theirs.intercept_).max() < bound * np.abs(theirs.intercept_).max()
        for name, guess in (
            ("mine", held[:, 1] @ weight.T + bias),
            ("theirs", theirs.predict(held[:, 1])),
        ):
            true = held[:, -1]
            norms = np.linalg.norm(guess, axis=1) * np.linalg.norm(true, axis=1)
            scores[name].append(float(np.mean((guess * true).sum(1) / norms)))
    assert np.argmax(scores["mine"]) == np.argmax(scores["theirs"])
    assert np.abs(np.subtract(scores["mine"], scores["theirs"])).max() < bound


def test_tf32_is_off_inside_and_restored_outside() -> None:
    backend = torch.backends.cuda.matmul
    before = backend.fp32_precision
    try:
        backend.fp32_precision = "tf32"
        with ieee_products():
            assert backend.fp32_precision == "ieee"
        assert backend.fp32_precision == "tf32"
        with pytest.raises(ZeroDivisionError), ieee_products():
            raise ZeroDivisionError
        assert backend.fp32_precision == "tf32"
    finally:
        backend.fp32_precision = before


@pytest.mark.parametrize(
    ("capability", "expected"), [((9, 0), "fp64"), ((8, 0), "fp64"), ((8, 9), "fast"), ((10, 3), "fast")]
)
def test_auto_precision_follows_the_device(
    capability: tuple[int, int], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    assert product_for("auto", "cuda:0") == expected
    assert product_for("auto", "cpu") == "fast"
    assert product_for("fp64", "cpu") == "fp64"
    assert product_for("fast", "cuda:0") == "fast"


def test_widths_may_differ_from_the_hidden_width() -> None:
    """Maps may read more than one state: the sums take any width per split."""
    chunk = rows_of("plain", torch.float32)[0]
    x = {1: torch.cat((chunk[:, 0], chunk[:, 1]), dim=1), 2: chunk[:, 2, :20]}
    sums = RowSums({1: 2 * WIDTH, 2: 20}, LAYERS, WIDTH, product="fast")
    sums.open(len(chunk))
    for layer in range(1, LAYERS):
        if layer in x:
            sums.put_x(layer, x[layer])
        sums.put_y(layer, chunk[:, layer])
    assert sums.close()
    for split, rows in x.items():
        found = sums.moments(split)
        centred = rows.double() - rows.double().mean(0)
        late = chunk.double() - chunk.double().mean(0)
        for layer in range(split, LAYERS):
            true = centred.T @ late[:, layer]
            assert (found.sxy[layer - split] - true).abs().max() < 1e-6 * true.abs().max()
        true = centred.T @ centred
        assert (found.sxx - true).abs().max() < 1e-6 * true.abs().max()
