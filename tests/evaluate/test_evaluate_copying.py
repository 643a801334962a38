"""The copying task: where strings lie, and scores against one plain forward of the whole text."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from pydantic import ValidationError

from ridgefit.errors import BadInput
from ridgefit.evaluate.copying import CopyingTask
from ridgefit.evaluate.samples import Reach, Sample
from ridgefit.evaluate.tasks import TASKS
from ridgefit.models import LoadedModel, load_model
from ridgefit.recipe import CopyingSettings
from ridgefit.runtime import RidgeFill

REACH = Reach(tail=120, sink_rows=4)


def task(**settings: object) -> CopyingTask:
    return CopyingTask(CopyingSettings.model_validate({"prompt": 400, "tail": 100, "samples": 3, **settings}))


def occurrences(sample: Sample, run: list[int]) -> list[int]:
    """Places of a run of ids in the prompt."""
    ids = sample.prompt.tolist()
    return [at for at in range(len(ids) - len(run) + 1) if ids[at : at + len(run)] == run]


@pytest.mark.parametrize("strings", ["words", "tokens"])
def test_strings_come_again_from_the_filled_region(tiny: LoadedModel, strings: str) -> None:
    made = task(strings=strings, length=20, cue=6).samples(tiny, REACH, 1).samples
    assert [sample.group for sample in made] == [strings] * 3
    for sample in made:
        assert sample.prompt.numel() == 400
        again = [int(sample.prompt[-1]), *sample.target.tolist()]
        assert len(again) == 4 * 20
        assert sample.facts["scored"] == [at - 1 for at in range(80) if at % 20 >= 6]
        for start in range(0, 80, 20):
            (place,) = occurrences(sample, again[start : start + 20])
            assert 4 <= place <= 400 - 120 - 20


def test_numbers_are_asked_for_as_needles_are(tiny: LoadedModel) -> None:
    settings = {"strings": "numbers", "prompt": 2000, "asked": 2}
    for sample in task(**settings).samples(tiny, REACH, 1).samples:
        prompt = tiny.tokenizer.decode(sample.prompt)
        asked = tiny.tokenizer.decode(sample.target)
        scored = tiny.tokenizer.decode(sample.target[sample.facts["scored"]])
        values = [scored[:7], scored[7:]]
        assert all(len(value) == 7 and value.isdigit() for value in values)
        assert prompt.count("One of the special magic numbers") == 8
        for value in values:
            assert prompt.count(value) == asked.count(f"is {value}") == 1
            assert prompt.index(value) < 2000 - 120
            key = prompt[: prompt.index(f" is: {value}")].rsplit(" ", 1)[1]
            assert f"number for {key} mentioned in the provided text is {value}" in asked


def test_mixed_takes_turns_and_samples_do_not_depend_on_their_number(tiny: LoadedModel) -> None:
    settings = {"prompt": 2000, "asked": 2, "length": 16}
    few = task(**settings, samples=2).samples(tiny, REACH, 5).samples
    many = task(**settings, samples=4).samples(tiny, REACH, 5).samples
    assert [sample.group for sample in many] == ["words", "numbers"] * 2
    assert [sample.prompt_sha256 for sample in few] == [sample.prompt_sha256 for sample in many[:2]]
    assert len({sample.prompt_sha256 for sample in many}) == 4
    other = task(**settings, samples=2).samples(tiny, REACH, 6).samples
    assert other[0].prompt_sha256 != few[0].prompt_sha256


def test_scores_are_those_of_one_plain_forward(tiny: LoadedModel) -> None:
    copying = task(strings="words", length=20, cue=6)
    sample = copying.samples(tiny, REACH, 3).samples[0]
    (exact,) = copying.score(tiny, [sample], nullcontext, None)
    whole = torch.cat([sample.prompt, sample.target])
    with torch.no_grad():
        logits = tiny.model(whole[None]).logits[0].double()
    found, losses = [], []
    for place in sample.facts["scored"]:
        before, token = logits[len(sample.prompt) + place - 1], int(whole[len(sample.prompt) + place])
        found.append(int(before.argmax()) == token)
        losses.append(-float(before.log_softmax(0)[token]))
    assert exact.detail["right"] == "".join("01"[right] for right in found)
    assert exact.scores["recalled"] == pytest.approx(sum(found) / len(found))
    assert exact.scores["copy_nll"] == pytest.approx(sum(losses) / len(losses), abs=1e-4)
    assert exact.detail["counts"] == {"repeated_tokens": 56, "copied_by_exact": sum(found)}
    assert exact.scores["copied"] is None, "a random model does not copy, so it is no ruler"


def test_copied_counts_only_what_the_exact_model_copies(tiny: LoadedModel) -> None:
    """The exact model's predictions are made up here, so that it copies all but the first token."""
    copying = task(strings="words", length=20, cue=6)
    sample = copying.samples(tiny, REACH, 3).samples[0]
    truth = sample.target[sample.facts["scored"]].clone()
    truth[0] += 1
    (scored,) = copying.score(tiny, [sample], nullcontext, [truth])
    right = [mark == "1" for mark in scored.detail["right"]]
    assert scored.scores["copied"] == pytest.approx(sum(right[1:]) / 55)
    assert "counts" not in scored.detail
    assert torch.equal(scored.carry, truth)


def test_a_trained_model_copies_numbers_and_the_identity_fill_does_not() -> None:
    loaded = load_model("bundled:llama", dtype="float32")
    copying = CopyingTask(CopyingSettings(prompt=700, tail=128, samples=2, strings="numbers"))
    fill = RidgeFill.identity(6)
    samples = copying.samples(loaded, Reach(128, 0), 0).samples
    found = copying.score(loaded, samples, nullcontext, None)
    fills = copying.score(
        loaded,
        samples,
        lambda: fill.applied(loaded.model, tail=128, sink_rows=0),
        [exact.carry for exact in found],
    )
    for exact, filled in zip(found, fills, strict=True):
        assert exact.scores["copied"] == 1.0
        assert exact.scores["recalled"] is not None
        assert exact.scores["recalled"] > 0.9
        assert filled.scores["copied"] is not None
        assert filled.scores["copied"] < 0.8


@pytest.mark.parametrize(
    "settings", [{"prompt": 180}, {"strings": "numbers", "prompt": 400}, {"length": 100}]
)
def test_no_room_is_said(tiny: LoadedModel, settings: dict[str, object]) -> None:
    with pytest.raises(BadInput, match="has room for"):
        task(**{"strings": "words", **settings}).samples(tiny, REACH, 0)


def test_the_registry_and_the_settings_know_it() -> None:
    assert TASKS["copying"] is CopyingTask
    with pytest.raises(ValidationError, match="longer than its cue"):
        CopyingSettings(length=8, cue=8)
