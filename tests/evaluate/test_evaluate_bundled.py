"""The bundled model can do what it is judged by."""

from __future__ import annotations

from pathlib import Path

import pytest

import ridgefit
from ridgefit.evaluate import evaluate
from ridgefit.models import load_model
from ridgefit.recipe import ArmSettings, EvalSettings, NeedleSettings

BUNDLED = Path(ridgefit.__file__).parent / "bundled"


@pytest.mark.skipif(not (BUNDLED / "llama" / "model.safetensors").is_file(), reason="no bundled model")
def test_the_exact_bundled_model_finds_needles(tmp_path: Path) -> None:
    loaded = load_model("bundled:llama", dtype="float32", device="cpu")
    task = NeedleSettings(prompt=1024, tail=256, samples=10, new_tokens=16)
    arms = (ArmSettings(kind="none", split=loaded.port.n_layers // 2),)
    result = evaluate(loaded, EvalSettings(arms=arms, tasks=(task,), batch=5), None, tmp_path)
    strict, value = result.tasks[0].measure("strict"), result.tasks[0].measure("value_nll")
    assert strict.arm("exact").mean >= 0.9
    assert value.arm("exact").mean < 0.2
    # Without a fill nothing of the filled region can be read: the needles do lie there.
    assert strict.arms[1].mean == 0
    assert value.arms[1].mean > 2
