"""A real model with massive activations: the fast mode changes neither sums nor what is chosen from them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

import ridgefit
from ridgefit.capture import HeldRows, capture, load_capture
from ridgefit.capture.reader import padded
from ridgefit.capture.watch import Watch
from ridgefit.corpus import build_store, read_documents
from ridgefit.models import load_model
from ridgefit.recipe import CaptureSettings, SolveSettings
from ridgefit.ridge import RidgeFit, choose

FOLDER = os.environ.get("RIDGEFIT_SMOLLM2", "")
SPLIT = 15

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER, reason="RIDGEFIT_SMOLLM2 names no folder of SmolLM2-135M"),
]


@pytest.mark.parametrize("drop_lead", [False, True])
def test_both_precisions_on_smollm2(drop_lead: bool, tmp_path: Path) -> None:
    """Moments within 1e-6, the same penalty, scores within 1e-4; maps those of scikit-learn."""
    loaded = load_model(FOLDER, device="cpu")
    source = Path(ridgefit.__file__).parent / "bundled" / "calibration.jsonl"
    store = build_store(
        read_documents([str(source)]), loaded.tokenizer, window=512, min_tokens=64, max_windows=24
    )
    alphas = SolveSettings().alphas
    held = HeldRows.read(loaded, store, [SPLIT], rows=1024, drop_lead=4)
    rows, choices = {}, {}
    for precision in ("fp64", "fast"):
        settings = CaptureSettings(split=(SPLIT,), precision=precision)
        capture(loaded, store, settings, tmp_path / precision)
        rows[precision] = load_capture(tmp_path / precision).rows(SPLIT, drop_lead=drop_lead)
        scores = held.score(SPLIT, RidgeFit(rows[precision]).candidates(alphas))
        choices[precision] = choose(scores.keys, scores.values)

    exact, fast = rows["fp64"], rows["fast"]
    x, y = exact.sxx.diagonal().sqrt(), exact.syy.sqrt()
    assert ((fast.sxx - exact.sxx).abs() / x[:, None] / x).max() < 1e-6
    assert ((fast.sxy - exact.sxy).abs() / x[None, :, None] / y[:, None]).max() < 1e-6
    assert choices["fast"].alphas == choices["fp64"].alphas
    for one, other in zip(choices["fast"].grid, choices["fp64"].grid, strict=True):
        assert abs(one.mean - other.mean) < 1e-4

    states: dict[int, list[torch.Tensor]] = {SPLIT: [], 29: []}
    skip = 4 if drop_lead else 0
    with Watch(
        loaded.port, SPLIT, lambda layer, s: states.get(layer, []).append(s[0, skip:].double())
    ) as watch:
        for window in store.manifest.fit_windows:
            watch.run(*padded(store, [window]))
    inputs, outputs = (torch.cat(states[layer]).numpy() for layer in (SPLIT, 29))
    assert len(inputs) == exact.n
    fit = RidgeFit(exact)
    for alpha in alphas[::3]:
        theirs = Ridge(alpha=fit.spectrum.absolute(alpha), solver="cholesky").fit(inputs, outputs)
        weight, bias = fit.map(29 - SPLIT, alpha)
        assert np.abs(weight.numpy() - theirs.coef_).max() < 1e-8 * np.abs(theirs.coef_).max()
        assert np.abs(bias.numpy() - theirs.intercept_).max() < 1e-8 * np.abs(theirs.intercept_).max()
