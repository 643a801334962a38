"""The bundled draft drafts: what its training promised, on text that neither model was trained on."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgefit.evaluate.acceptance import evaluate_acceptance
from ridgefit.recipe import AcceptanceSettings


@pytest.mark.slow  # half a minute of two trained models
def test_the_bundled_draft_is_worth_three_tokens_a_round(tmp_path: Path) -> None:
    settings = AcceptanceSettings(
        data=("bundled:development",), draft="bundled:draft", prompt=(512,), new_tokens=128,
        policies=("rift-stat", "random"), reference="random", budget=64, observe=32,
    )  # fmt: skip
    target = {"ref": "bundled:llama", "dtype": "float32", "device": "cpu"}
    found = evaluate_acceptance(target, settings, tmp_path / "out", resamples=200)
    assert found.documents == 17
    assert found.policy("full").al_macro >= 3
    assert found.policy("full").al_macro > found.policy("rift-stat").al_macro
    assert found.policy("rift-stat").al_macro > found.policy("random").al_macro
