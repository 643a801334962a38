"""Samples scored together get the scores that each would get alone."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import ridgefit
from ridgefit.errors import BadInput, Interrupted
from ridgefit.evaluate import needle_text
from ridgefit.evaluate.journal import RESULTS
from ridgefit.evaluate.needle import NeedleTask
from ridgefit.evaluate.result import EVALUATION
from ridgefit.evaluate.run import evaluate
from ridgefit.evaluate.samples import Reach
from ridgefit.maps import LayerMap, MapSet, write_source
from ridgefit.models import LoadedModel, load_model, port_of
from ridgefit.recipe import (
    AgreementSettings,
    ArmSettings,
    CopyingSettings,
    EvalSettings,
    NeedleSettings,
    NllSettings,
)

BUNDLED = Path(ridgefit.__file__).parent / "bundled"
SPLIT = 3
ARMS = (
    ArmSettings(kind="identity", split=SPLIT),
    ArmSettings(kind="identity", split=SPLIT, sink_rows=4),
    ArmSettings(kind="none", split=SPLIT),
    ArmSettings(kind="none", split=SPLIT, sink_rows=4),
    ArmSettings(kind="pop"),
)


def settings(documents: Path, **more: Any) -> EvalSettings:
    data = (str(documents),)
    tasks = (
        NllSettings(data=data, prompt=120, tail=40, scored=30),
        NeedleSettings(prompt=420, tail=150, samples=5, new_tokens=12),
        AgreementSettings(data=data, prompt=100, tail=30, new_tokens=4),
        CopyingSettings(prompt=700, tail=60, samples=3, length=16, cue=4, asked=2),
    )
    return EvalSettings(**{"arms": ARMS, "tasks": tasks, "resamples": 200, **more})


def records(folder: Path) -> dict[tuple[str, str, str], dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / RESULTS).read_text().splitlines()]
    return {(line["task"], line["sample"], line["arm"]): line for line in lines if line["kind"] == "sample"}


def assert_same_scores(there: Path, here: Path, tolerance: float) -> None:
    """Same answers and decisions, losses within `tolerance`, whatever was scored beside them."""
    alone, together = records(there), records(here)
    assert set(alone) == set(together)
    for key, one in alone.items():
        other = together[key]
        for name in ("answer", "key", "novel", "same", "continuation", "right", "counts", "group"):
            assert one.get(name) == other.get(name), key
        assert one["scores"].keys() == other["scores"].keys()
        for name, score in one["scores"].items():
            assert other["scores"][name] == pytest.approx(score, abs=tolerance), (key, name)


@pytest.fixture(scope="module")
def alone(tiny: LoadedModel, documents: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("alone")
    evaluate(tiny, settings(documents), None, out)
    return out


def test_needle_prompts_differ_in_length(tiny: LoadedModel) -> None:
    """Else the batches below would have no padding."""
    task = NeedleTask(NeedleSettings(prompt=420, tail=150, samples=5))
    samples = task.samples(tiny, Reach(tail=150, sink_rows=4), 0).samples
    assert len({sample.prompt.numel() for sample in samples[:2]}) > 1


@pytest.mark.parametrize("batch", [2, 5])
def test_a_batch_scores_each_sample_as_if_alone(
    tiny: LoadedModel, documents: Path, alone: Path, tmp_path: Path, batch: int
) -> None:
    evaluate(tiny, settings(documents, batch=batch), None, tmp_path)
    assert_same_scores(alone, tmp_path, 1e-5)


def test_maps_score_a_batch_as_if_alone(tiny: LoadedModel, documents: Path, tmp_path: Path) -> None:
    path = tmp_path / "s3.safetensors"
    generator = torch.Generator().manual_seed(0)
    maps = {
        layer: LayerMap(torch.randn(32, 32, generator=generator) / 5, torch.randn(32, generator=generator))
        for layer in range(SPLIT, 6)
    }
    write_source(path, MapSet.of(maps))
    arms = (ArmSettings(kind="ridge"), ArmSettings(kind="ridge", name="short", sink_rows=4, tail=20))
    evaluate(tiny, settings(documents, arms=arms), path, tmp_path / "alone")
    evaluate(tiny, settings(documents, arms=arms, batch=4), path, tmp_path / "together")
    assert_same_scores(tmp_path / "alone", tmp_path / "together", 1e-5)


@pytest.mark.parametrize("name", ["qwen3", "gemma3", "mistral-sliding"])
def test_other_families_score_a_batch_as_if_alone(
    tiny: LoadedModel, tiny_model: Any, tmp_path: Path, name: str
) -> None:
    """Windowed layers, QK-norm; the tokenizer is `tiny`'s, whose bytes fit into any tiny vocabulary."""
    model = tiny_model(name, max_position_embeddings=1024)
    loaded = LoadedModel(model, tiny.tokenizer, port_of(model), name, None)
    task = NeedleSettings(prompt=420, tail=150, samples=3, new_tokens=6)
    arms = (ARMS[1], ARMS[3])
    wanted = EvalSettings(arms=arms, tasks=(task,), resamples=100)
    evaluate(loaded, wanted, None, tmp_path / "alone")
    evaluate(loaded, wanted.model_copy(update={"batch": 3}), None, tmp_path / "together")
    assert_same_scores(tmp_path / "alone", tmp_path / "together", 1e-5)


@pytest.mark.slow  # a trained model, two times over
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_the_bundled_models_score_a_batch_as_if_alone(tmp_path: Path, name: str) -> None:
    if not (BUNDLED / name / "model.safetensors").is_file():
        pytest.skip("no bundled model")
    loaded = load_model(f"bundled:{name}", dtype="float32", device="cpu")
    arms = tuple(arm.model_copy(update={"split": 6}) for arm in ARMS[1:4:2])
    tasks = (
        NeedleSettings(prompt=400, tail=100, samples=3, needles=4, new_tokens=20),
        NllSettings(data=("bundled:development",), prompt=300, tail=100, scored=100, documents=3),
    )
    wanted = EvalSettings(arms=arms, tasks=tasks, resamples=100)
    evaluate(loaded, wanted, None, tmp_path / "alone")
    evaluate(loaded, wanted.model_copy(update={"batch": 3}), None, tmp_path / "together")
    assert_same_scores(tmp_path / "alone", tmp_path / "together", 1e-5)


def test_a_stopped_batch_runs_again_whole(tiny: LoadedModel, documents: Path, tmp_path: Path) -> None:
    wanted = settings(documents, batch=2, arms=ARMS[:2])
    evaluate(tiny, wanted, None, tmp_path / "whole")
    out = tmp_path / "stopped"

    def stop(done: int, total: int, what: str) -> None:
        del total, what
        if done == 10:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        evaluate(tiny, wanted, None, out, progress=stop)
    assert not (out / EVALUATION).exists()
    said: list[str] = []
    evaluate(tiny, wanted, None, out, progress=lambda done, total, what: said.append(what))
    assert (out / EVALUATION).read_bytes() == (tmp_path / "whole" / EVALUATION).read_bytes()
    assert sum(line.endswith("done before") for line in said) == 1  # 2 samples x 3 arms of the 10 scored
    lines = [json.loads(line) for line in (out / RESULTS).read_text().splitlines()]
    sessions: dict[tuple[str, str], set[int]] = {}
    kept = {(r["task"], r["sample"], r["arm"]): r for r in lines if r["kind"] == "sample"}
    for (task, sample, _), record in kept.items():
        sessions.setdefault((task, sample), set()).add(record["session"])
    assert all(len(found) == 1 for found in sessions.values())


def test_another_batch_is_refused(tiny: LoadedModel, documents: Path, alone: Path) -> None:
    with pytest.raises(BadInput, match=r"another settings.batch \(1 there, 2 now\)"):
        evaluate(tiny, settings(documents, batch=2), None, alone)


def test_too_large_a_batch_is_one_sentence(
    tiny: LoadedModel, documents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **kwargs: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(tiny.model, "forward", full)
    with pytest.raises(BadInput, match="document 00000 to document 00002 needs more memory"):
        evaluate(tiny, settings(documents, batch=3), None, tmp_path)


def test_an_answer_ends_once_its_scores_are_final(
    tiny: LoadedModel, documents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a longer answer says behind the number changes neither strict nor digits."""
    task = NeedleSettings(prompt=420, tail=150, samples=2, new_tokens=40)
    wanted = EvalSettings(arms=ARMS[:1], tasks=(task,), resamples=100)
    evaluate(tiny, wanted, None, tmp_path / "long")
    assert {len(r["answer"]) for r in records(tmp_path / "long").values()} == {40}
    # A number that the answer is known to hold in its middle.
    found = records(tmp_path / "long")["needle 420/150", "needle 00000", "exact"]["answer"]
    original = needle_text.strict
    monkeypatch.setattr(needle_text, "strict", lambda answer, value: original(answer, found[5:12]))
    evaluate(tiny, wanted, None, tmp_path / "short")
    short = records(tmp_path / "short")["needle 420/150", "needle 00000", "exact"]
    end = found.index(found[5:12]) + 7
    assert short["answer"] == found[:end] and short["scores"]["strict"] == 1
