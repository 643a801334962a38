"""Arms with maps of their own: several artefacts side by side in one evaluation."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from ridgefit.errors import BadInput
from ridgefit.evaluate.arms import resolve_arms
from ridgefit.evaluate.run import evaluate
from ridgefit.maps import LayerMap, MapSet, SplitMaps, write_maps, write_source
from ridgefit.models import LoadedModel
from ridgefit.recipe import ArmSettings, EvalSettings, NllSettings

SPLIT, LAYERS, HIDDEN = 3, 6, 32
PLAIN = ArmSettings(kind="ridge", split=SPLIT)
WINDOW = ArmSettings(kind="ridge", split=SPLIT, maps="window-r32")
OWN = ArmSettings(kind="ridge", split=SPLIT, maps="PATH", name="own")


def scaled(factor: float) -> MapSet:
    layer = LayerMap(factor * torch.eye(HIDDEN), torch.zeros(HIDDEN))
    return MapSet.of(dict.fromkeys(range(SPLIT, LAYERS), layer))


@pytest.fixture
def solved(tmp_path: Path) -> Path:
    """Plain maps with one kept candidate beside them, and a third artefact elsewhere."""
    folder = tmp_path / "maps"
    write_maps(folder, [SplitMaps(maps=scaled(1.0))])
    write_maps(folder / "candidates" / "window-r32", [SplitMaps(maps=scaled(0.5))])
    write_source(tmp_path / "own.safetensors", scaled(2.0))
    return folder


def settings(documents: Path, *arms: ArmSettings) -> EvalSettings:
    task = NllSettings(data=(str(documents),), prompt=120, tail=40, scored=30, documents=2)
    return EvalSettings(arms=arms, tasks=(task,), resamples=100, sink_effect=False)


def test_each_arm_reads_its_own_maps(
    tiny: LoadedModel, documents: Path, solved: Path, tmp_path: Path
) -> None:
    own = OWN.model_copy(update={"maps": str(tmp_path / "own.safetensors")})
    identity = ArmSettings(kind="identity", split=SPLIT)
    result = evaluate(tiny, settings(documents, PLAIN, WINDOW, own, identity), solved, tmp_path / "out")
    labels = ["exact", "ridge s3", "ridge s3 window-r32", "own", "identity s3"]
    assert [arm.label for arm in result.arms] == labels
    assert [arm.maps for arm in result.arms] == [None, None, "window-r32", own.maps, None]
    loss = result.tasks[0].measure("nll")
    assert loss is not None
    means = [loss.arm(label).mean for label in labels]
    assert means[1] == means[4]  # A = I is the identity fill
    assert len(set(means)) == 4
    for label, maps in (
        ("ridge s3 window-r32", solved / "candidates" / "window-r32"),
        ("own", tmp_path / "own.safetensors"),
    ):
        alone = evaluate(tiny, settings(documents, PLAIN), maps, tmp_path / f"alone {label}")
        assert alone.tasks[0].measure("nll").arm("ridge s3").mean == loss.arm(label).mean
    found = {(contrast.arm, contrast.against): contrast.difference for contrast in loss.contrasts}
    assert found["own", "ridge s3"].mean == pytest.approx(means[3] - means[1])
    assert ("ridge s3 window-r32", "identity s3") in found
    assert ("ridge s3", "own") not in found
    assert set(result.identity["arm_maps"]) == {"ridge s3 window-r32", "own"}


def test_changed_maps_of_an_arm_are_refused(
    tiny: LoadedModel, documents: Path, solved: Path, tmp_path: Path
) -> None:
    wanted = settings(documents, PLAIN, WINDOW)
    evaluate(tiny, wanted, solved, tmp_path / "out")
    shutil.rmtree(solved / "candidates" / "window-r32")
    write_maps(solved / "candidates" / "window-r32", [SplitMaps(maps=scaled(0.25))])
    with pytest.raises(BadInput, match=r"another arm_maps\.ridge s3 window-r32"):
        evaluate(tiny, wanted, solved, tmp_path / "out")
    # Candidates that no arm reads change nothing.
    evaluate(tiny, settings(documents, PLAIN), solved, tmp_path / "plain")
    shutil.rmtree(solved / "candidates")
    evaluate(tiny, settings(documents, PLAIN), solved, tmp_path / "plain")


def test_a_candidate_that_was_not_kept_is_one_sentence(solved: Path, tmp_path: Path) -> None:
    arm = WINDOW.model_copy(update={"maps": "window-r64"})
    with pytest.raises(BadInput, match="candidate 'window-r64'") as refused:
        resolve_arms([arm], solved, LAYERS)
    assert "kept there: window-r32" in str(refused.value)
    with pytest.raises(BadInput, match="--keep-candidates"):
        resolve_arms([arm], tmp_path / "own.safetensors", LAYERS)
    with pytest.raises(BadInput, match="needs ridge maps"):
        resolve_arms([arm], None, LAYERS)


def test_only_ridge_arms_read_maps() -> None:
    with pytest.raises(BadInput, match="of kind identity reads no maps"):
        resolve_arms([ArmSettings(kind="identity", split=SPLIT, maps="window-r32")], None, LAYERS)
