"""Several stretches of one document: cut by hand, averaged by hand, resampled as documents."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from tokenizers.processors import TemplateProcessing

from ridgefit.errors import Interrupted
from ridgefit.evaluate.arms import Arm
from ridgefit.evaluate.documents import document_samples
from ridgefit.evaluate.journal import RESULTS
from ridgefit.evaluate.novel import novel_tokens
from ridgefit.evaluate.page import sentences
from ridgefit.evaluate.result import EVALUATION
from ridgefit.evaluate.run import evaluate
from ridgefit.evaluate.samples import Measure, Sample, SampleSet
from ridgefit.evaluate.summary import TaskRun, summarise_task, warnings_of
from ridgefit.evaluate.tables import task_title
from ridgefit.evaluate.tasks import task_names
from ridgefit.models import LoadedModel
from ridgefit.recipe import ArmSettings, EvalSettings, NllSettings

LOSS = Measure("novel_nll", "NLL, novel tokens", "nats", "lower")
ARMS = tuple(Arm(kind, kind, None if kind == "exact" else 6) for kind in ("exact", "identity", "ridge"))
IDENTITY = ArmSettings(kind="identity", split=3)


# --- cutting ---------------------------------------------------------------------------------------


def texts(documents: Path) -> list[str]:
    return [json.loads(line)["text"] for line in documents.read_text().splitlines()]


def cut(loaded: LoadedModel, documents: Path, stretches: int) -> SampleSet:
    return document_samples(
        loaded, (str(documents),), "text", None, prompt=100, target=30, stretches=stretches
    )


def test_stretches_follow_each_other(tiny: LoadedModel, documents: Path) -> None:
    """400 bytes are 3 stretches of 130; the document of 40 bytes has none and is named."""
    found = cut(tiny, documents, 5)
    assert [label for label, _ in found.skipped] == ["document 00003"]
    expected = [
        (f"document {number:05d}", text[start : start + 130])
        for number, text in enumerate(texts(documents))
        for start in (0, 130, 260)
        if len(text) == 400
    ]
    assert [
        (s.unit, tiny.tokenizer.decode(torch.cat([s.prompt, s.target]))) for s in found.samples
    ] == expected
    assert {(s.prompt.numel(), s.target.numel()) for s in found.samples} == {(100, 30)}
    assert len({s.id for s in found.samples}) == 15
    assert len(cut(tiny, documents, 2).samples) == 10


def test_one_stretch_is_the_sample_of_before(tiny: LoadedModel, documents: Path) -> None:
    one, several = cut(tiny, documents, 1), cut(tiny, documents, 3)
    assert [s.id for s in one.samples] == [f"document {i:05d}" for i in (0, 1, 2, 4, 5)]
    assert all(s.unit == s.id for s in one.samples)
    assert [s.prompt_sha256 for s in one.samples] == [s.prompt_sha256 for s in several.samples[::3]]


@pytest.mark.parametrize(("size", "stretches"), [(387, 2), (388, 3), (389, 3)])
def test_every_stretch_starts_with_bos(tiny: LoadedModel, tmp_path: Path, size: int, stretches: int) -> None:
    """The third stretch is BOS and the 129 ids from 260 on, so 389 ids (388 bytes and BOS) hold it."""
    tokenizer = copy.deepcopy(tiny.tokenizer)
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    bos = tokenizer.bos_token_id
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", bos)]
    )
    rng = random.Random(4)
    text = "".join(rng.choice("abcdefgh \n") for _ in range(size))
    path = tmp_path / "text.jsonl"
    path.write_text(json.dumps({"text": text}) + "\n")
    loaded = dataclasses.replace(tiny, tokenizer=tokenizer)
    found = [torch.cat([s.prompt, s.target]).tolist() for s in cut(loaded, path, 3).samples]
    ids = tokenizer(text)["input_ids"]
    assert ids[0] == bos and len(ids) == size + 1
    expected = [ids[:130], [bos, *ids[130:259]], [bos, *ids[260:389]]]
    assert found == expected[:stretches]
    assert all(len(row) == 130 for row in found)


# --- averaging and resampling ----------------------------------------------------------------------

Scores = dict[str, float | None]


def summarised(stretches: list[tuple[str, str, Scores]]) -> Any:
    """A task result from (document, domain, score by arm) of each stretch."""
    empty = torch.zeros(0, dtype=torch.long)
    samples = tuple(
        Sample(f"{unit} stretch {i}", group, torch.tensor([i]), empty, part_of=unit)
        for i, (unit, group, _) in enumerate(stretches)
    )
    records = {
        (sample.id, label): {"session": 0, "scores": {"novel_nll": score}}
        for sample, (_, _, scores) in zip(samples, stretches, strict=True)
        for label, score in scores.items()
    }
    run = TaskRun("nll", "sha", {"task": "nll"}, (LOSS,), samples, ())
    return summarise_task(run, ARMS, records, resamples=5000, seed=7)


def uneven(domains: tuple[str, ...]) -> list[tuple[str, str, Scores]]:
    """24 documents of one to four stretches whose text, more than its stretch, decides the difference."""
    rng = random.Random(8)
    found: list[tuple[str, str, Scores]] = []
    for number in range(24):
        group = domains[number % len(domains)]
        level = rng.gauss(0.2, 1) + 20 * domains.index(group)
        for place in range(1 + number % 4):
            base = rng.uniform(1, 3)
            scores: Scores = {
                "exact": base,
                "identity": base + level + rng.gauss(0, 0.3),
                "ridge": base + level / 2 + rng.gauss(0, 0.3),
            }
            # Some stretches have nothing to score, and all stretches of document 4 have nothing.
            silent = number == 4 or (number % 3 == 0 and place == 1)
            found.append((f"document {number}", group, dict.fromkeys(scores) if silent else scores))
    return found


def by_document(
    stretches: list[tuple[str, str, Scores]], arm: str, other: str | None
) -> dict[str, tuple[str, float]]:
    """Document -> (domain, mean over its stretches of the score, or of the difference to another arm)."""
    sums: dict[str, tuple[str, float, int]] = {}
    for unit, group, scores in stretches:
        score = scores[arm]
        if score is None:
            continue
        value = score if other is None else score - scores[other]
        _, total, count = sums.get(unit, (group, 0.0, 0))
        sums[unit] = (group, total + value, count + 1)
    return {unit: (group, total / count) for unit, (group, total, count) in sums.items()}


def test_documents_weigh_alike_and_are_what_scipy_resamples() -> None:
    """One domain: same generator and draws as scipy over document means, so equal but for rounding."""
    stretches = uneven(("prose",))
    task = summarised(stretches)
    measure = task.measure("novel_nll")
    assert (task.samples, task.units, task.groups) == (len(stretches), 24, {"prose": 24})
    assert len(stretches) == 60
    for score in measure.arms:
        levels = [value for _, value in by_document(stretches, score.arm, None).values()]
        assert score.n == len(levels) == 23
        assert score.mean == pytest.approx(sum(levels) / 23, rel=1e-12)
    pairs = [
        (measure.arm("ridge").difference, "ridge", "exact"),
        (measure.arm("identity").difference, "identity", "exact"),
        *((contrast.difference, contrast.arm, contrast.against) for contrast in measure.contrasts),
    ]
    assert len(pairs) == 3
    for found, arm, other in pairs:
        values = [value for _, value in by_document(stretches, arm, other).values()]
        ends = stats.bootstrap(
            (values,), np.mean, n_resamples=5000, method="BCa", rng=np.random.default_rng(7)
        ).confidence_interval
        assert found.n == 23
        assert found.mean == pytest.approx(sum(values) / 23, rel=1e-12)
        np.testing.assert_allclose([found.low, found.high], [ends.low, ends.high], rtol=1e-9)
    # What is averaged matters here: stretches weighing alike would give another mean.
    flat = [s["ridge"] - s["exact"] for _, _, s in stretches if s["ridge"] is not None]
    assert abs(measure.arm("ridge").difference.mean - sum(flat) / len(flat)) > 0.01


def test_documents_are_resampled_within_their_domain() -> None:
    """Domains 20 nats apart; each keeps its share of documents, not of stretches, in every resample."""
    stretches = uneven(("code", "prose", "chat"))
    task = summarised(stretches)
    assert task.groups == {"chat": 8, "code": 8, "prose": 8}
    found = task.measure("novel_nll").arm("ridge").difference
    means = by_document(stretches, "ridge", "exact")
    parts = [
        np.array([value for group, value in means.values() if group == domain])
        for domain in ("code", "prose", "chat")
    ]

    def mean(*groups: np.ndarray, axis: int) -> np.ndarray:
        return sum(len(p) / len(means) * g.mean(axis=axis) for p, g in zip(parts, groups, strict=True))

    oracle = stats.bootstrap(parts, mean, n_resamples=20000, method="BCa", rng=1).confidence_interval
    width = oracle.high - oracle.low
    assert width < 2
    assert found.low == pytest.approx(oracle.low, abs=0.1 * width)
    assert found.high == pytest.approx(oracle.high, abs=0.1 * width)


def test_more_of_the_same_text_is_no_more_evidence() -> None:
    """Four stretches that all say what their document says: the interval is that of the documents."""
    rng = random.Random(1)
    documents = []
    for number in range(16):
        base, added = rng.uniform(1, 3), rng.gauss(0.1, 1)
        scores: Scores = {"exact": base, "identity": base + 2 * added, "ridge": base + added}
        documents.append((f"document {number}", "code" if number % 2 else "prose", scores))
    copies = [(unit, group, dict(scores)) for unit, group, scores in documents for _ in range(4)]
    once, again = summarised(documents), summarised(copies)
    assert (once.samples, again.samples, again.units) == (16, 64, 16)
    assert again.measures == once.measures
    # Were the 64 taken for independent, the interval would be half as wide.
    wrong = summarised([(f"{unit} {i}", group, scores) for i, (unit, group, scores) in enumerate(copies)])
    right, narrow = (task.measure("novel_nll").arm("ridge").difference for task in (again, wrong))
    assert narrow.high - narrow.low < 0.6 * (right.high - right.low)


def test_words_count_units() -> None:
    stretches = [s for s in uneven(("prose",)) if s[0] in {"document 1", "document 2", "document 3"}]
    task = summarised(stretches)
    assert task_title(task) == "nll: 9 samples in 3 units (prose 3)"
    assert any("nll: 3 units only" in line for line in warnings_of([task], "exact"))
    alone = summarised([s for s in stretches if s[0] == "document 1"])
    assert any("from one unit: no interval" in line for line in sentences(alone))
    same = [(unit, group, dict.fromkeys(scores, 1.0)) for unit, group, scores in stretches]
    assert any("no unit differs from exact (n = 3)" in line for line in sentences(summarised(same)))


# --- whole evaluations -----------------------------------------------------------------------------


def nll(documents: Path, **more: Any) -> NllSettings:
    return NllSettings(**{"data": (str(documents),), "prompt": 100, "tail": 40, "scored": 30, **more})


def wanted(task: NllSettings, **more: Any) -> EvalSettings:
    return EvalSettings(arms=(IDENTITY,), tasks=(task,), resamples=200, **more)


def records(folder: Path) -> list[dict]:
    lines = [json.loads(line) for line in (folder / RESULTS).read_text().splitlines()]
    return [line for line in lines if line["kind"] == "sample"]


def own_losses(loaded: LoadedModel, ids: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        logits = loaded.model(input_ids=ids[None], use_cache=False).logits[0].double()
    return -torch.log_softmax(logits, 1)[99:-1].gather(1, ids[100:, None])[:, 0].numpy()


def test_two_stretches_are_the_mean_of_both(tiny: LoadedModel, documents: Path, tmp_path: Path) -> None:
    """Exact against transformers' forward over each stretch alone; the arm against its own lines."""
    task = evaluate(tiny, wanted(nll(documents, stretches=2)), None, tmp_path).tasks[0]
    by_hand: dict[str, list[tuple[float, float]]] = {"nll": [], "novel_nll": []}
    for text in texts(documents):
        if len(text) < 130:
            continue
        pair = []
        for start in (0, 130):
            ids = torch.tensor(list(tiny.tokenizer(text[start : start + 130])["input_ids"]))
            novel = novel_tokens(ids, 100).numpy()
            found = own_losses(tiny, ids)
            assert novel.any()
            pair.append((found.mean(), found[novel].mean()))
        by_hand["nll"].append((pair[0][0] + pair[1][0]) / 2)
        by_hand["novel_nll"].append((pair[0][1] + pair[1][1]) / 2)
    assert (task.name, task.samples, task.units) == ("nll 100/40 2 stretches", 10, 5)
    assert task.counts["scored_tokens"] == 10 * 30
    for name, means in by_hand.items():
        exact = task.measure(name).arm("exact")
        assert (exact.n, exact.mean) == (5, pytest.approx(np.mean(means), abs=1e-4))
    lines = records(tmp_path)
    assert len(lines) == 20  # one per stretch and arm
    arms: dict[str, dict[str, list[float]]] = {}
    for line in lines:
        arms.setdefault(line["unit"], {}).setdefault(line["arm"], []).append(line["scores"]["nll"])
    differences = [sum(a["identity s3"]) / 2 - sum(a["exact"]) / 2 for a in arms.values()]
    found = task.measure("nll").arm("identity s3").difference
    assert (found.n, found.mean) == (5, pytest.approx(np.mean(differences), abs=1e-9))
    # Key tokens are rare here: a stretch without one does not count as zero.
    keys: dict[str, list[float]] = {}
    for line in lines:
        if line["arm"] == "exact" and line["scores"]["key_nll"] is not None:
            keys.setdefault(line["unit"], []).append(line["scores"]["key_nll"])
    assert any(len(values) == 1 for values in keys.values())  # else the last assertion shows nothing
    exact = task.measure("key_nll").arm("exact")
    assert exact.n == len(keys)
    assert exact.mean == pytest.approx(np.mean([np.mean(values) for values in keys.values()]), abs=1e-9)


def test_resuming_within_a_document_gives_the_same_bytes(
    tiny: LoadedModel, documents: Path, tmp_path: Path
) -> None:
    settings = wanted(nll(documents, stretches=3))
    evaluate(tiny, settings, None, tmp_path / "whole")

    def stop(done: int, total: int, what: str) -> None:
        if done == 9:  # in the middle of the second stretch of the second document
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        evaluate(tiny, settings, None, tmp_path / "stopped", progress=stop)
    assert len(records(tmp_path / "stopped")) == 9
    again: list[str] = []
    evaluate(
        tiny, settings, None, tmp_path / "stopped", progress=lambda done, total, what: again.append(what)
    )
    assert sum(what.endswith("done before") for what in again) == 4
    whole, stopped = (tmp_path / name / EVALUATION for name in ("whole", "stopped"))
    assert whole.read_bytes() == stopped.read_bytes()


def test_fraction_keeps_documents_whole(tiny: LoadedModel, documents: Path, tmp_path: Path) -> None:
    """0.3 of 5 documents with 3 stretches each are 2 documents, not 5 stretches."""
    task = evaluate(tiny, wanted(nll(documents, stretches=3), fraction=0.3), None, tmp_path).tasks[0]
    assert (task.units, task.samples) == (2, 6)


def test_one_stretch_leaves_results_as_they_were(tiny: LoadedModel, documents: Path, tmp_path: Path) -> None:
    """Settings are hashed into every line, so the setting must not show where it changes nothing."""
    plain = nll(documents).model_dump(mode="json")
    assert "stretches" not in plain
    assert nll(documents, stretches=2).model_dump(mode="json") == {**plain, "stretches": 2}
    assert NllSettings(**plain) == nll(documents, stretches=1)
    assert task_names([nll(documents)]) == ("nll 100/40",)
    task = evaluate(tiny, wanted(nll(documents)), None, tmp_path).tasks[0]
    assert (task.samples, task.units, task.counted) == (5, 5, "sample")
    assert not any("unit" in line for line in records(tmp_path))
    assert "stretches" not in (tmp_path / RESULTS).read_text()
