"""Numbers that a target looks for by itself with a small cache."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ridgefit.errors import BadInput
from ridgefit.evaluate.acceptance import evaluate_acceptance
from ridgefit.evaluate.acceptance_needles import hidden_prompts, needle_scores, score_hidden
from ridgefit.evaluate.acceptance_page import acceptance_report
from ridgefit.models.load import load_decoder
from ridgefit.recipe import AcceptanceSettings
from ridgefit.runtime.draft import POLICIES, CacheSettings
from ridgefit.runtime.speculative import Draft

Folder = Callable[..., Path]


def test_scores_equal_a_count_by_hand() -> None:
    answers = {"full": [1, 1, 1, 0], "swa": [0, 1, 0, 0]}
    records = [
        {"prompt": f"n{at}", "policy": policy, "found": bool(hit), "digits": 0.5 + hit / 2}
        for policy, hits in answers.items()
        for at, hit in enumerate(hits)
    ]
    full, swa = needle_scores(records, ("full", "swa"), resamples=200, seed=0)
    assert (full.found, full.digits, full.minus_full, full.low, full.high) == (0.75, 0.875, 0, 0, 0)
    assert (swa.found, swa.digits, swa.minus_full, swa.n) == (0.25, 0.625, -0.5, 4)
    assert -1 <= (swa.low or 0) < -0.5 < (swa.high or 0) <= 0


def test_numbers_lie_outside_the_newest_columns(tiny_folder: Folder) -> None:
    target = load_decoder(str(tiny_folder("llama", num_hidden_layers=1)), dtype="float32", device="cpu")
    own = AcceptanceSettings(data=("x",), prompt=(300, 400), needles=4, budget=60)
    found = hidden_prompts(target, own, CacheSettings(budget=60), seed=1)
    assert len({hidden.value for hidden in found}) == 4
    for hidden in found:
        assert len(hidden.tokens) <= 400
        text = target.tokenizer.decode(hidden.tokens)
        assert len(re.findall(hidden.value, text)) == 1
        assert hidden.value not in target.tokenizer.decode(hidden.tokens[-60:])
    assert found == hidden_prompts(target, own, CacheSettings(budget=60), seed=1)
    assert found != hidden_prompts(target, own, CacheSettings(budget=60), seed=2)
    with pytest.raises(BadInput, match=r"do not fit into .* 400 tokens: raise prompt=, lower the budget"):
        hidden_prompts(target, own, CacheSettings(budget=399), seed=1)


def test_an_evaluation_with_needles(tiny_folder: Folder, tmp_path: Path) -> None:
    texts = tmp_path / "texts.jsonl"
    rows = [{"text": f"the cat sat on the mat and the dog sat on the log; {n} " * 40} for n in (12, 34)]
    texts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = {"ref": str(tiny_folder("llama", num_hidden_layers=1)), "dtype": "float32", "device": "cpu"}
    own = AcceptanceSettings(
        data=(str(texts),), prompt=(400,), budget=40, observe=4, new_tokens=8, drafted=3,
        policies=("swa", "rift-dyn"), needles=3,
    )  # fmt: skip
    out = tmp_path / "out"
    found = evaluate_acceptance(folder, own, out, resamples=100)
    assert [(score.policy, score.n) for score in found.needles] == [
        (name, 3) for name in ("full", "swa", "rift-dyn")
    ]
    records = [json.loads(line) for line in (out / "needles.jsonl").read_text().splitlines()]
    assert len(records) == 9
    for record in records:
        assert record["found"] == (record["value"] in record["answer"])
    page = acceptance_report(out).read_text()
    assert "| standalone | found of 3 | digits right | minus full, points |" in page
    lines = (out / "needles.jsonl").read_text()
    assert evaluate_acceptance(folder, own, out, resamples=100) == found
    assert (out / "needles.jsonl").read_text() == lines  # nothing was run again
    with pytest.raises(BadInput, match=r"needle 0000\d needs"):
        evaluate_acceptance(folder, own.model_copy(update={"prompt": (500,)}), tmp_path / "long")


@pytest.mark.slow  # a trained model reads ten prompts under four policies
def test_what_a_window_cannot_see_it_does_not_find() -> None:
    target: Any = load_decoder("bundled:llama", dtype="float32", device="cpu")
    cache = CacheSettings(budget=128, observe=32)
    own = AcceptanceSettings(data=("x",), prompt=(1024,), needles=10, budget=128)
    names = ("full", "rift-stat", "swa")
    drafts = {name: Draft(target.model, POLICIES[name], cache) for name in names}
    records = [
        record
        for hidden in hidden_prompts(target, own, cache, seed=0)
        for record in score_hidden(target, hidden, drafts)
    ]
    full, stat, window = needle_scores(records, names, resamples=200, seed=0)
    assert full.found == 1.0  # as `ridgefit doctor bundled:llama` finds
    assert window.found == 0.0
    assert stat.found > window.found
