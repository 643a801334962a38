"""What recall policies are for, on the bundled model that looks needles up in its latent cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ridgefit.calibrate.recall import calibrate_recall
from ridgefit.evaluate.recall.run import evaluate_recall
from ridgefit.maps.fingerprint import Fingerprint
from ridgefit.maps.recall import PolicyManifest, RecallPolicy, RecallSettings
from ridgefit.models.load import LoadedLatent, load_latent
from ridgefit.recipe import CalibrateRecallSettings, RecallEvalSettings


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def loaded() -> LoadedLatent:
    return load_latent("bundled:kimi_linear", dtype="float32", device="cpu")


def test_selection_before_the_question_needs_no_query(loaded: LoadedLatent, tmp_path: Path) -> None:
    """A row's branch tells that it will matter; attention paid to it so far does not (VestigeKV, table 4)."""
    settings = RecallSettings(ratio=16, window="prefix", block=512, rank=16)
    manifest = PolicyManifest(settings=settings, fingerprint=Fingerprint.of(loaded.identity()))
    RecallPolicy(
        manifest.model_copy(update={"settings": settings.model_copy(update={"recall": False})})
    ).save(tmp_path / "policy")
    wanted = RecallEvalSettings(
        policy=(tmp_path / "policy",),
        selectors=("branch", "streaming", "h2o"),
        recall_selectors=("streaming",),
        trials=2,
        needle_tokens=512,
    )
    result = evaluate_recall(loaded, wanted, tmp_path / "out")
    assert result.passed, result.gates
    found = {arm.arm: arm.intact.mean for arm in result.arms}
    assert found["branch 16x"] == 1.0
    assert found["streaming 16x"] == found["h2o 16x"] == 0.0
    assert found["streaming 16x + recall"] == 1.0  # what recall brings back, it also hides


@pytest.mark.slow
def test_a_frozen_policy_meets_its_target_on_documents_kept_back(
    loaded: LoadedLatent, tmp_path: Path
) -> None:
    settings = CalibrateRecallSettings(
        data=("bundled:calibration",),
        tokens=1024,
        queries=64,
        contexts=12,
        window="prefix",
        block=1024,
        rank=16,
        ratio=32.0,
        target=0.90,
    )
    policy = calibrate_recall(loaded, settings, tmp_path / "policy")
    for layer in policy.manifest.layers.values():
        assert layer.held_out_hard > 500
        assert layer.recall >= 0.90
        assert layer.rows_per_step < layer.archive / 4
