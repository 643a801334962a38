"""From a recipe to a report on tiny models: stages kept and redone, the maps against scikit-learn."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from ridgefit.capture import load_capture
from ridgefit.capture.reader import Reader
from ridgefit.errors import BadInput, Interrupted
from ridgefit.maps import load_maps
from ridgefit.models import load_model
from ridgefit.pipeline.run import run
from ridgefit.recipe import RunRecipe

WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "and",
    "dogs",
    "ran",
    "by",
    "logs",
    "of",
    "wood",
    "near",
    "ponds",
    "12",
    "34",
    "567",
]


def texts(folder: Path) -> Path:
    """Twelve documents of about 150 words."""
    rng = random.Random(5)
    path = folder / "texts.jsonl"
    rows = [
        {"text": " ".join(rng.choices(WORDS, k=150)) + f" {number}.", "domain": "ab"[number % 2]}
        for number in range(12)
    ]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return path


@pytest.fixture
def recipe(tmp_path: Path, tiny_folder: Callable[..., Path]) -> RunRecipe:
    data = str(texts(tmp_path))
    return RunRecipe.model_validate(
        {
            "name": "tiny",
            "work": tmp_path / "work",
            "model": {"model": str(tiny_folder("llama")), "dtype": "float32", "device": "cpu"},
            "data": {"data": [data], "window": 96, "held_out": 0.25},
            "capture": {"split": [2, 4], "precision": "fp64"},
            "solve": {"alphas": [0.001, 0.1], "drop_lead": True},
            "quantize": False,
            "evaluate": {
                "arms": [{"kind": "identity", "split": 2}, {"kind": "ridge", "split": 2}],
                "tasks": [{"task": "nll", "data": [data], "prompt": 64, "tail": 16, "scored": 16}],
                "resamples": 200,
            },
        }
    )


def changed(recipe: RunRecipe, **sections: Any) -> RunRecipe:
    return RunRecipe.model_validate({**recipe.model_dump(), **sections})


def test_a_run_keeps_what_is_done(recipe: RunRecipe) -> None:
    first = run(recipe)
    assert first.stages == {"capture": "done", "maps": "done", "eval": "done"}
    assert first.checks.ok
    assert Path(first.report).read_text().count("ridge s2") > 0
    assert set(first.splits) == {2, 4}
    before = (recipe.work / "maps" / "ridgefit.json").read_bytes()

    again = run(recipe)
    assert again.stages == {"capture": "kept", "maps": "kept", "eval": "kept"}
    assert again.evaluation == first.evaluation
    assert (recipe.work / "maps" / "ridgefit.json").read_bytes() == before

    other = run(changed(recipe, solve={**recipe.solve.model_dump(), "alphas": (0.5,)}))
    assert other.stages == {"capture": "kept", "maps": "done", "eval": "done"}
    assert other.splits[2]["alphas"] == [0.5]


def test_a_changed_capture_is_refused_not_replaced(recipe: RunRecipe) -> None:
    run(recipe)
    held = {path: path.read_bytes() for path in (recipe.work / "capture").glob("moments.*")}
    with pytest.raises(BadInput, match=r"capture.*lead 4.*2"):
        run(changed(recipe, capture={**recipe.capture.model_dump(), "lead": 2}))
    assert held == {path: path.read_bytes() for path in (recipe.work / "capture").glob("moments.*")}


def test_foreign_folders_are_left_alone(recipe: RunRecipe) -> None:
    mine = recipe.work / "maps" / "thesis.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("years of work")
    with pytest.raises(BadInput, match="no run in"):
        run(recipe)
    assert mine.read_text() == "years of work"


def test_maps_equal_scikit_learn(recipe: RunRecipe) -> None:
    """The written bf16 maps are ridge regressions on the activations of the fit windows, lead dropped."""
    run(recipe)
    captured = load_capture(recipe.work / "capture")
    store = captured.store()
    loaded = load_model(recipe.model.model, dtype="float32", device="cpu")
    rows: dict[int, list[torch.Tensor]] = {2: [], 5: []}
    for window in store.manifest.fit_windows:
        ids = store.window(window)[None]
        states = loaded.model.model(ids, output_hidden_states=True).hidden_states
        for layer, kept in rows.items():  # entry l is the input of layer l
            kept.append(states[layer][0, captured.lead :])
    x, y = (torch.cat(rows[layer]).double().numpy() for layer in (2, 5))
    maps = load_maps(recipe.work / "maps", 2)
    alpha = json.loads((recipe.work / "maps" / "ridgefit.json").read_text())["splits"]["2"]["alphas"][0]
    centred = x - x.mean(0)
    oracle = Ridge(alpha=alpha * float(np.square(centred).sum()) / x.shape[1]).fit(x, y)
    weight = maps.layer(5).weight.double().numpy()
    assert np.abs(weight - oracle.coef_).max() <= np.abs(oracle.coef_).max() * 2**-8
    predicted = x @ weight.T + maps.layer(5).bias.double().numpy()
    assert np.abs(predicted - oracle.predict(x)).max() <= 0.02 * np.abs(y).max()


def _judged(recipe: RunRecipe, data: list[str] | None = None, **arm: Any) -> dict[str, Any]:
    task = recipe.evaluate.tasks[0].model_dump() | ({"data": data} if data else {})
    return recipe.evaluate.model_dump() | {"tasks": [task], **({"arms": [arm]} if arm else {})}


def test_bad_plans_stop_before_any_work(recipe: RunRecipe) -> None:
    for sections, words in (
        ({"capture": {"split": [9]}}, "split 9 is outside this model"),
        ({"data": {**recipe.data.model_dump(), "window": 4096}}, "pass the 512 positions"),
        ({"data": {"data": ["nowhere.jsonl"], "window": 96}}, "nowhere.jsonl"),
        ({"evaluate": _judged(recipe, data=["elsewhere.jsonl"])}, "elsewhere.jsonl"),
        ({"evaluate": _judged(recipe, kind="identity", split=6)}, "splits at layer 6"),
    ):
        with pytest.raises(BadInput, match=words):
            run(changed(recipe, **{"evaluate": _judged(recipe, kind="identity", split=2), **sections}))
    assert not recipe.work.exists() or not list(recipe.work.rglob("*.safetensors"))


def test_a_stopped_run_is_told_to_go_on_by_the_same_command(
    recipe: RunRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = Reader.add
    calls = iter(range(1000))

    def add_and_stop(self: Reader, windows: Any) -> None:
        add(self, windows)
        if next(calls) == 1:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Reader, "add", add_and_stop)
    with pytest.raises(Interrupted, match="run the same command again to go on") as caught:
        run(recipe)
    assert "--resume" not in str(caught.value)  # which `ridgefit run` has no option for
    assert run(recipe).checks.ok
