"""A whole evaluation on a tiny random model: equalities, resuming, refusals."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ridgefit.errors import BadInput, CheckFailed, Interrupted
from ridgefit.evaluate.agreement import steps_along
from ridgefit.evaluate.arms import arm_context, resolve_arms
from ridgefit.evaluate.journal import RESULTS
from ridgefit.evaluate.needle import NeedleTask, Prompts
from ridgefit.evaluate.novel import novel_tokens
from ridgefit.evaluate.result import EVALUATION
from ridgefit.evaluate.run import evaluate
from ridgefit.evaluate.samples import Reach
from ridgefit.files import folder_lock
from ridgefit.maps import LayerMap, MapSet, write_source
from ridgefit.models import LoadedModel
from ridgefit.recipe import AgreementSettings, ArmSettings, EvalSettings, NeedleSettings, NllSettings
from ridgefit.runtime import RidgeFill

LAYERS, HIDDEN, SPLIT = 6, 32, 3
IDENTITY = ArmSettings(kind="identity", split=SPLIT)
RIDGE = ArmSettings(kind="ridge")
NONE = ArmSettings(kind="none", split=SPLIT)


@pytest.fixture(scope="module")
def identity_maps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A = I, b = 0: the ridge arm must then be the identity arm."""
    path = tmp_path_factory.mktemp("maps") / "s3.safetensors"
    maps = {layer: LayerMap(torch.eye(HIDDEN), torch.zeros(HIDDEN)) for layer in range(SPLIT, LAYERS)}
    write_source(path, MapSet.of(maps))
    return path


def settings(documents: Path, *arms: ArmSettings, **more: Any) -> EvalSettings:
    data = (str(documents),)
    tasks = (
        NllSettings(data=data, prompt=120, tail=40, scored=30),
        NeedleSettings(prompt=420, tail=150, samples=3, new_tokens=8),
        AgreementSettings(data=data, prompt=100, tail=30, new_tokens=6, documents=3),
    )
    return EvalSettings(**{"arms": arms, "tasks": tasks, "resamples": 200, "sink_effect": False, **more})


def records(folder: Path) -> list[dict]:
    lines = [json.loads(line) for line in (folder / RESULTS).read_text().splitlines()]
    return [line for line in lines if line["kind"] == "sample"]


@pytest.mark.filterwarnings("error::UserWarning")
def test_identity_is_ridge_with_the_unit_map_and_exact_is_itself(
    tiny: LoadedModel, documents: Path, identity_maps: Path, tmp_path: Path
) -> None:
    pop = ArmSettings(kind="pop")
    result = evaluate(tiny, settings(documents, IDENTITY, RIDGE, NONE, pop), identity_maps, tmp_path)
    assert [arm.label for arm in result.arms] == ["exact", "identity s3", "ridge", "none s3", "pop"]
    assert [(arm.split, arm.tail) for arm in result.arms[3:]] == [(3, None), (4, 1)]
    assert "name no base model" in result.warnings[0]
    names = {task.name: {m.name for m in task.measures} for task in result.tasks}
    assert names["needle 420/150"] == {"strict", "digits", "value_nll"}
    for task in result.tasks:
        for measure in task.measures:
            assert measure.arm("identity s3") == measure.arm("ridge").model_copy(
                update={"arm": "identity s3"}
            )
            assert {(c.arm, c.against) for c in measure.contrasts} >= {("ridge", "pop")}
    loss = result.tasks[0].measure("novel_nll")
    assert abs(loss.arm("none s3").difference.mean) > 1e-3  # arms do something at all
    assert loss.arm("identity s3").difference.mean != loss.arm("none s3").difference.mean
    agreement = result.tasks[2]
    assert agreement.measure("agreement").arm("exact").mean == 1
    assert agreement.measure("kl").arm("exact").mean == 0
    assert agreement.measure("kl").arm("none s3").mean > 1e-4
    assert [(s.sample, s.reason) for s in result.tasks[0].skipped] == [
        ("document 00003", "40 tokens, 150 needed")
    ]
    assert any("1 documents were too short" in warning for warning in result.warnings)


def test_an_exact_arm_spelled_as_ridge_with_every_row_exact_differs_by_nothing(
    tiny: LoadedModel, documents: Path, tmp_path: Path
) -> None:
    """All but one row exact through the hooks: next to no difference. The exact arm: none at all."""
    task = NllSettings(data=(str(documents),), prompt=120, tail=40, scored=30)
    nearly = ArmSettings(kind="identity", split=SPLIT, sink_rows=79)
    twin = ArmSettings(kind="exact", name="exact again")
    wanted = EvalSettings(arms=(ArmSettings(kind="exact"), nearly, twin), tasks=(task,))
    result = evaluate(tiny, wanted, None, tmp_path)
    loss = result.tasks[0].measure("nll")
    assert evaluate(tiny, wanted, None, tmp_path) == result
    same = loss.arm("exact again").difference
    assert (same.mean, same.low, same.high) == (0, 0, 0)
    far = (
        evaluate(tiny, EvalSettings(arms=(IDENTITY,), tasks=(task,)), None, tmp_path / "far")
        .tasks[0]
        .measure("nll")
    )
    assert loss.arm("exact").mean == far.arm("exact").mean
    assert abs(loss.arms[1].difference.mean) < abs(far.arms[1].difference.mean)


def test_records_hold_what_the_definitions_say(tiny: LoadedModel, documents: Path, tmp_path: Path) -> None:
    """Losses, novel and key tokens recomputed from transformers' forward over whole texts."""
    task = NllSettings(data=(str(documents),), prompt=120, tail=40, scored=30)
    evaluate(tiny, EvalSettings(arms=(IDENTITY,), tasks=(task,)), None, tmp_path)
    texts = [json.loads(line)["text"] for line in documents.read_text().splitlines()]
    found = {(r["sample"], r["arm"]): r for r in records(tmp_path)}
    for number, text in enumerate(texts):
        if number == 3:
            continue
        ids = torch.tensor(tiny.tokenizer(text)["input_ids"][:150])
        whole, cut = own_losses(tiny, ids, 120), own_losses(tiny, ids[80:], 40)
        record = found[f"document {number:05d}", "exact"]
        np.testing.assert_allclose(record["losses"], whole, atol=5e-5)
        np.testing.assert_allclose(record["losses_without_prefix"], cut, atol=5e-5)
        key = [i for i in range(30) if cut[i] - whole[i] > 2]
        novel = novel_tokens(ids, 120).nonzero().flatten().tolist()
        assert (record["key"], record["novel"]) == (key, novel)
        for label in ("exact", "identity s3"):
            line = found[f"document {number:05d}", label]
            scores, losses = line["scores"], line["losses"]
            assert scores["novel_nll"] == pytest.approx(np.mean([losses[i] for i in novel]), abs=1e-5)
            assert scores["nll"] == pytest.approx(np.mean(losses), abs=1e-5)
            assert (scores["key_nll"] is None) == (not key)
            if key:
                assert scores["key_nll"] == pytest.approx(np.mean([losses[i] for i in key]), abs=1e-5)
    assert any(r["key"] for r in found.values() if r["arm"] == "exact")  # else the test shows nothing


def own_losses(loaded: LoadedModel, ids: torch.Tensor, start: int) -> np.ndarray:
    with torch.no_grad():
        logits = loaded.model(input_ids=ids[None], use_cache=False).logits[0].double()
    return -torch.log_softmax(logits, 1)[start - 1 : -1].gather(1, ids[start:, None])[:, 0].numpy()


def test_fraction_takes_the_first_share(tiny: LoadedModel, documents: Path, tmp_path: Path) -> None:
    whole = evaluate(tiny, settings(documents, IDENTITY), None, tmp_path / "whole")
    part = evaluate(tiny, settings(documents, IDENTITY, fraction=0.4), None, tmp_path / "part")
    assert [task.samples for task in whole.tasks] == [5, 3, 3]
    assert [task.samples for task in part.tasks] == [2, 2, 2]
    everything = {(r["task"], r["sample"], r["arm"]): r for r in records(tmp_path / "whole")}
    for record in records(tmp_path / "part"):
        twin = everything[record["task"], record["sample"], record["arm"]]
        assert record["scores"] == twin["scores"] and record["prompt_sha256"] == twin["prompt_sha256"]


def interrupted_after(count: int) -> Callable[[int, int, str], None]:
    def progress(done: int, total: int, what: str) -> None:
        if done == count:
            os.kill(os.getpid(), signal.SIGTERM)

    return progress


def test_sigterm_keeps_what_was_scored_and_resuming_gives_the_same_bytes(
    tiny: LoadedModel, documents: Path, tmp_path: Path
) -> None:
    wanted = settings(documents, IDENTITY, NONE)
    evaluate(tiny, wanted, None, tmp_path / "whole")
    expected = (tmp_path / "whole" / EVALUATION).read_bytes()
    out = tmp_path / "stopped"
    before = signal.getsignal(signal.SIGTERM)
    for count in (2, 9, 21):  # in the middle of a sample, at the end of one, in another task
        with pytest.raises(Interrupted, match="stopped"):
            evaluate(tiny, wanted, None, out, progress=interrupted_after(count))
        assert signal.getsignal(signal.SIGTERM) is before
        assert not (out / EVALUATION).exists()
    scored: list[str] = []
    evaluate(tiny, wanted, None, out, progress=lambda done, total, what: scored.append(what))
    assert (out / EVALUATION).read_bytes() == expected
    assert sum(what.endswith("done before") for what in scored) == 7
    assert len({r["session"] for r in records(out)}) == 4


def killed(loaded: LoadedModel, wanted: EvalSettings, out: Path, count: int) -> None:
    def progress(done: int, total: int, what: str) -> None:
        if done == count:
            with (out / RESULTS).open("ab") as stream:  # what a kill in the middle of a write leaves
                stream.write(b'{"kind": "sample", "arm": "no')
            os.kill(os.getpid(), signal.SIGKILL)

    torch.set_num_threads(1)
    evaluate(loaded, wanted, None, out, progress=progress)


def test_sigkill_and_a_torn_line_give_the_same_bytes(
    tiny: LoadedModel, documents: Path, tmp_path: Path
) -> None:
    wanted = settings(documents, IDENTITY)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        evaluate(tiny, wanted, None, tmp_path / "whole")
        out = tmp_path / "killed"
        child = multiprocessing.get_context("fork").Process(target=killed, args=(tiny, wanted, out, 7))
        child.start()
        child.join(120)
        assert child.exitcode == -signal.SIGKILL
        evaluate(tiny, wanted, None, out)
    finally:
        torch.set_num_threads(threads)
    assert (out / EVALUATION).read_bytes() == (tmp_path / "whole" / EVALUATION).read_bytes()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"seed": 1}, "settings.seed"),
        ({"arms": (NONE,)}, "settings.arms"),
        ({"fraction": 0.5}, "settings.fraction"),
    ],
)
def test_other_settings_are_refused(
    tiny: LoadedModel, documents: Path, tmp_path: Path, change: dict, field: str
) -> None:
    evaluate(tiny, settings(documents, IDENTITY), None, tmp_path)
    with pytest.raises(BadInput, match=f"another {field}"):
        evaluate(tiny, settings(documents, IDENTITY).model_copy(update=change), None, tmp_path)


def test_other_maps_and_another_model_are_refused(
    tiny: LoadedModel, documents: Path, identity_maps: Path, tmp_path: Path
) -> None:
    wanted = settings(documents, RIDGE)
    evaluate(tiny, wanted, identity_maps, tmp_path / "out")
    other = tmp_path / identity_maps.name
    maps = {layer: LayerMap(2 * torch.eye(HIDDEN), torch.zeros(HIDDEN)) for layer in range(SPLIT, LAYERS)}
    write_source(other, MapSet.of(maps))
    with pytest.raises(BadInput, match=r"another maps.s3.safetensors"):
        evaluate(tiny, wanted, other, tmp_path / "out")
    norm = tiny.model.model.norm.weight
    with torch.no_grad():
        norm.mul_(2)
    try:
        with pytest.raises(BadInput, match=r"another model.weights_sample_sha256"):
            evaluate(tiny, wanted, identity_maps, tmp_path / "out")
    finally:
        with torch.no_grad():
            norm.div_(2)
    evaluate(tiny, wanted, identity_maps, tmp_path / "out")


def test_changed_text_is_refused(tiny: LoadedModel, documents: Path, tmp_path: Path) -> None:
    copy = tmp_path / "text.jsonl"
    copy.write_bytes(documents.read_bytes())
    evaluate(tiny, settings(copy, IDENTITY), None, tmp_path / "out")
    copy.write_bytes(documents.read_bytes().replace(b"a", b"b"))
    with pytest.raises(BadInput, match="another prompts"):
        evaluate(tiny, settings(copy, IDENTITY), None, tmp_path / "out")


def test_an_arm_that_fills_nothing_is_an_error(
    tiny: LoadedModel, documents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def idle(self: RidgeFill, model: object, **more: object):
        from ridgefit.runtime import FillReport

        yield FillReport()

    monkeypatch.setattr(RidgeFill, "applied", idle)
    with pytest.raises(CheckFailed, match="arm 'identity s3' filled no prefill on document 00000"):
        evaluate(tiny, settings(documents, IDENTITY), None, tmp_path)
    assert not (tmp_path / EVALUATION).exists()


def test_scores_that_are_not_finite_are_an_error(tiny: LoadedModel, documents: Path, tmp_path: Path) -> None:
    path = tmp_path / "s3.safetensors"
    maps = {layer: LayerMap(3e38 * torch.eye(HIDDEN), torch.zeros(HIDDEN)) for layer in range(SPLIT, LAYERS)}
    write_source(path, MapSet.of(maps))
    with pytest.raises(CheckFailed, match=r"arm 'ridge' gives .* = nan on document 00000"):
        evaluate(tiny, settings(documents, RIDGE), path, tmp_path / "out")


@pytest.mark.parametrize(
    ("arms", "match"),
    [
        ((RIDGE,), "arm 'ridge' needs ridge maps"),
        ((ArmSettings(kind="identity"),), "arm 'identity' has no split"),
        ((ArmSettings(kind="identity", split=6),), "splits at layer 6, and the model has layers 0 to 5"),
        ((IDENTITY, ArmSettings(kind="none", split=2, name="identity s3")), "two arms are called"),
        ((ArmSettings(kind="none", split=3, tail=120),), "would leave nothing to fill"),
        ((ArmSettings(kind="none", split=3, sink_rows=80),), "80 sink rows would leave nothing"),
    ],
)
def test_arms_that_cannot_run_are_one_sentence(
    tiny: LoadedModel, documents: Path, tmp_path: Path, arms: tuple[ArmSettings, ...], match: str
) -> None:
    with pytest.raises(BadInput, match=match):
        evaluate(tiny, settings(documents, *arms), None, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_foreign_folder_stays_as_it_was(
    tiny: LoadedModel, documents: Path, tmp_path: Path, kind: str
) -> None:
    out = tmp_path / "thesis"
    (out / "chapter.txt" if kind == "folder" else out).parent.mkdir(exist_ok=True)
    (out / "chapter.txt" if kind == "folder" else out).write_text("dear")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BadInput, match="not empty"):
        evaluate(tiny, settings(documents, IDENTITY), None, out)
    assert sorted(tmp_path.rglob("*")) == before


def test_two_processes_cannot_write_one_folder(tiny: LoadedModel, documents: Path, tmp_path: Path) -> None:
    with folder_lock(tmp_path), pytest.raises(BadInput, match="in use by another"):
        evaluate(tiny, settings(documents, IDENTITY), None, tmp_path)


def test_texts_that_cannot_be_scored_are_one_sentence(
    tiny: LoadedModel, documents: Path, tmp_path: Path
) -> None:
    def run(**change: Any) -> None:
        task = NllSettings(**{"data": (str(documents),), "prompt": 120, "tail": 40, "scored": 30, **change})
        evaluate(tiny, EvalSettings(arms=(IDENTITY,), tasks=(task,)), None, tmp_path / "out")

    with pytest.raises(BadInput, match=r"none of 6 documents .* has 530 tokens \(the longest has 400\)"):
        run(prompt=500)
    with pytest.raises(BadInput, match="needs 2100 positions and the model has 2048"):
        run(prompt=2070)
    with pytest.raises(BadInput, match="does not exist"):
        run(data=(str(tmp_path / "nowhere.jsonl"),))


def test_splits_come_from_the_maps(tiny: LoadedModel, identity_maps: Path) -> None:
    arms = resolve_arms(
        [ArmSettings(kind="none"), RIDGE, ArmSettings(kind="exact", name="stock")], identity_maps, 6
    )
    assert [(a.label, a.split) for a in arms] == [("stock", None), ("none", 3), ("ridge", 3)]
    with pytest.raises(BadInput):
        resolve_arms([ArmSettings(kind="ridge", split=4)], identity_maps, 6)


def test_arm_context_fills_and_leaves_nothing(tiny: LoadedModel) -> None:
    ids = torch.randint(0, 256, (1, 60), generator=torch.Generator().manual_seed(0))
    stock = tiny.model(input_ids=ids, logits_to_keep=1).logits
    with arm_context(tiny.model, IDENTITY, None, n_layers=LAYERS, tail=10) as report:
        assert not torch.equal(tiny.model(input_ids=ids, logits_to_keep=1).logits, stock)
    assert report.filled == 1
    with arm_context(tiny.model, ArmSettings(kind="exact"), None, n_layers=LAYERS, tail=10) as nothing:
        assert torch.equal(tiny.model(input_ids=ids, logits_to_keep=1).logits, stock)
    assert nothing is None
    assert torch.equal(tiny.model(input_ids=ids, logits_to_keep=1).logits, stock)


@pytest.mark.parametrize("arm", [IDENTITY, NONE, ArmSettings(kind="none", split=SPLIT, sink_rows=4)])
def test_behind_a_fill_one_call_equals_one_token_at_a_time(tiny: LoadedModel, arm: ArmSettings) -> None:
    ids = torch.randint(0, 256, (90,), generator=torch.Generator().manual_seed(3))
    prompt, continuation = ids[:70], ids[70:]

    def apply() -> Any:
        return arm_context(tiny.model, arm, None, n_layers=LAYERS, tail=20)

    def logits(arm: Any, **more: Any) -> torch.Tensor:
        return steps_along(tiny.model, [prompt], arm, continuation[None], **more)

    whole = logits(apply)
    torch.testing.assert_close(logits(apply, piece=1), whole, atol=2e-3, rtol=1e-4)
    exact = logits(nullcontext)
    assert (whole - exact).abs().max() > 0.1


TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>\n{{ m['content'] }}</>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n{% endif %}"
)


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("needles", [1, 4])
def test_every_needle_lies_between_sink_rows_and_tail(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch, chat: bool, needles: int
) -> None:
    monkeypatch.setattr(tiny.tokenizer, "chat_template", TEMPLATE if chat else None)
    task = NeedleTask(NeedleSettings(prompt=900, tail=250, samples=12, needles=needles))
    samples = task.samples(tiny, Reach(tail=250, sink_rows=4), 0).samples
    for sample in samples:
        text = tiny.tokenizer.decode(sample.prompt)
        assert 800 < sample.prompt.numel() <= 900  # a unit of filler has 80 bytes
        # The byte tokenizer makes positions in the text positions in the prompt.
        hidden = [at for at in range(len(text)) if text.startswith("is: ", at)]
        assert len(hidden) == needles
        assert all(at >= 4 and at + 4 + 7 + 1 <= sample.prompt.numel() - 250 for at in hidden)
        assert tiny.tokenizer.decode(sample.target) == f" {sample.facts['value']}"
        assert text.endswith("mentioned in the provided text is")
        assert ("<assistant>\nThe special" in text) == chat
    assert len({sample.facts["value"] for sample in samples}) == 12
    fewer = NeedleTask(NeedleSettings(prompt=900, tail=250, samples=3, needles=needles))
    again = fewer.samples(tiny, Reach(tail=250, sink_rows=4), 0).samples
    assert [s.prompt_sha256 for s in again] == [s.prompt_sha256 for s in samples[:3]]
    other = fewer.samples(tiny, Reach(tail=250, sink_rows=4), 1).samples
    assert again[0].prompt_sha256 != other[0].prompt_sha256


def test_sink_rows_that_reach_the_needles_are_refused(tiny: LoadedModel) -> None:
    task = NeedleTask(NeedleSettings(prompt=500, tail=150, samples=1))
    with pytest.raises(BadInput, match="needle of sample 0 lies within the 340 sink rows"):
        task.samples(tiny, Reach(tail=150, sink_rows=340), 0)


def test_chat_is_the_templates_business(tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="no chat template"):
        Prompts(tiny.tokenizer, True)
    monkeypatch.setattr(tiny.tokenizer, "chat_template", TEMPLATE)
    assert Prompts(tiny.tokenizer, None).render("hi", " The") == "<user>\nhi</>\n<assistant>\nThe"
    assert Prompts(tiny.tokenizer, False).render("hi", " The") == "hi The"
