"""`calibrate refresh` from end to end on tiny models: splits, freezing, the one test, and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ridgefit.calibrate.refresh import calibrate_refresh
from ridgefit.calibrate.refresh.calibrate import _Work
from ridgefit.calibrate.refresh.closed import ClosedJob, Schedule, run_schedules
from ridgefit.calibrate.refresh.traces import TraceJob, continuation, trace
from ridgefit.cli.app import main
from ridgefit.corpus.prompts import Prompt, cut_prompts, split_documents
from ridgefit.errors import BadInput
from ridgefit.evaluate.acceptance import evaluate_acceptance
from ridgefit.evaluate.acceptance_page import cautions
from ridgefit.maps.refresh import load_controller
from ridgefit.recipe import AcceptanceSettings, CalibrateRefreshSettings
from ridgefit.runtime.draft import CacheSettings, Drafter, policy_of
from ridgefit.runtime.draft.controllers import Pace
from ridgefit.runtime.draft.frozen import controller_from
from ridgefit.runtime.speculative import Speculation
from ridgefit.runtime.speculative.pair import PairPool, load_pair
from ridgefit.runtime.speculative.verify import StoredVerifier

Folder = Callable[..., Path]
WORDS = ["cat", "dog", "mat", "log", "sat", "on", "the", "and", "12", "34", "a", "to"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    draw = torch.Generator().manual_seed(5)
    rows = []
    for number in range(5):
        words = [WORDS[int(i)] for i in torch.randint(0, len(WORDS), (60,), generator=draw)]
        rows.append(json.dumps({"text": " ".join(words), "source": str(number)}))
    path.write_text("\n".join(rows) + "\n")
    return path


def settings(texts: Path, **changes: Any) -> CalibrateRefreshSettings:
    base: dict[str, Any] = {
        "data": (str(texts),),
        "prompt": (40,),
        "budget": 12,
        "observe": 4,
        "every": 8,
        "new_tokens": 24,
        "forced": True,
        "drafted": 3,
        "interval": 4,
        "horizon": 8,
        "candidates_kept": 3,
        "resamples": 100,
        "tolerance": 0.5,
    }
    return CalibrateRefreshSettings(**{**base, **changes})


def options(folder: Path) -> dict[str, Any]:
    return {"ref": str(folder), "dtype": "float32", "device": "cpu"}


def test_calibrate_freeze_test_and_use(tiny_folder: Folder, texts: Path, tmp_path: Path) -> None:
    folder = tiny_folder("llama", num_hidden_layers=1)
    out = tmp_path / "controller"
    made = calibrate_refresh(options(folder), settings(texts), out)
    loaded = load_controller(out)
    assert loaded == made
    parts = [set(part) for part in (loaded.fit, loaded.select, loaded.test)]
    assert all(parts)
    assert sum(map(len, parts)) == len(set.union(*parts)) == 5
    # The rule was frozen before the test: neither its documents nor its findings are part of the frozen hash.
    assert loaded.scores["frozen_sha256"] == loaded.frozen_sha256
    test = loaded.scores["test"]
    assert test["equal"]  # the real loop gave the target's own text
    assert loaded.rule.kind != "none"  # half of the AL may be lost, so something passes
    assert test["verdict"] in {"matched", "not matched"}
    assert {"never", "periodic 4", "periodic 16", "random at its rate"} <= set(test["controls"])
    assert controller_from(loaded)() is not controller_from(loaded)()

    acceptance = AcceptanceSettings(
        data=(str(texts),),
        prompt=(40,),
        budget=12,
        observe=4,
        every=16,
        new_tokens=20,
        drafted=3,
        policies=("rift-dyn",),  # the controller adds rift-ada
        controller=out,
    )
    with pytest.raises(BadInput, match="were used to make the controller"):
        evaluate_acceptance(options(folder), acceptance, tmp_path / "seen", resamples=100)
    held = tmp_path / "held.jsonl"
    rows = [json.loads(line) for line in texts.read_text().splitlines()]
    pair = load_pair(options(folder), "self")
    prompts = cut_prompts(pair.target.tokenizer, (str(texts),), lengths=(40,))
    kept = [row for row, prompt in zip(rows, prompts, strict=True) if prompt.document in loaded.test]
    held.write_text("\n".join(map(json.dumps, kept)) + "\n")
    unseen = acceptance.model_copy(update={"data": (str(held),)})
    result = evaluate_acceptance(options(folder), unseen, tmp_path / "unseen", resamples=100)
    assert result.identity["controller"]["sha256"] == loaded.frozen_sha256
    assert [score.policy for score in result.policies] == ["full", "rift-dyn", "rift-ada"]
    assert "made under other settings" not in " ".join(cautions(result))
    other = tiny_folder("llama", num_hidden_layers=1, seed=7)
    with pytest.raises(BadInput, match="of another target model"):
        evaluate_acceptance(options(other), unseen, tmp_path / "other", resamples=100)


def test_generating_with_a_controller(
    tiny_folder: Folder, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It decides for rift-ada alone, and one that found no rule says so."""
    folder = tiny_folder("llama", num_hidden_layers=1)
    plain = ["generate", str(folder), "--dtype", "float32", "--device", "cpu", "--prompt", "the cat " * 9,
             "--new-tokens", "40", "--draft", "self", "--budget", "12", "--observe", "4"]  # fmt: skip
    for name, changes in (("some", {}), ("none", {"tolerance": 0.0, "every": 200})):
        calibrate_refresh(options(folder), settings(texts, **changes), tmp_path / name)
    some, none = (["--controller", str(tmp_path / name)] for name in ("some", "none"))
    assert main([*plain, *some]) == 2
    assert "--controller would do nothing without the policy rift-ada" in capsys.readouterr().err
    ada = ["--draft-policy", "rift-ada"]
    model = ["--dtype", "float32", "--device", "cpu"]
    assert main(["verify", str(tmp_path / "some"), "--model", str(folder), *model]) == 0
    assert "was made for this model" in capsys.readouterr().out
    other = tiny_folder("llama", num_hidden_layers=1, seed=7)
    assert main(["verify", str(tmp_path / "some"), "--model", str(other), *model]) == 1
    assert "of another target model" in " ".join(capsys.readouterr().out.split())
    assert main([*plain, *ada, *some, "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["controller"] == load_controller(tmp_path / "some").rule.kind
    assert "found no rule" not in shown.err
    assert "made under other settings: drafted 3, here 5." in shown.err
    same = ["--drafted", "3", "--temperature"]
    for warm, said in (("0", False), ("0.5", True)):
        assert main([*plain, *ada, *some, *same, warm]) == 0
        assert ("made under other settings: temperature 0.0, here 0.5." in capsys.readouterr().err) == said
    assert main([*plain, *ada, *none, "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["controller"] == "none"
    assert "found no rule" in shown.err


def test_random_controls_draw_for_each_prompt() -> None:
    """With one seed for all, every prompt would be refreshed at the same checks."""
    random = Schedule("random", share=0.5, pace=Pace(4))

    def drawn(seed: int) -> list[bool]:
        controller = random.maker(seed)()
        return [controller.due(at, lambda: None) for at in range(4, 400, 4)]  # type: ignore[arg-type, return-value]

    assert drawn(1) == drawn(1) != drawn(2)
    assert 30 < sum(drawn(1)) < 70


def test_a_controller_for_sampled_text(tiny_folder: Folder, texts: Path, tmp_path: Path) -> None:
    folder = options(tiny_folder("llama", num_hidden_layers=1))
    out = tmp_path / "warm"
    made = calibrate_refresh(folder, settings(texts, temperature=0.8), out)
    assert load_controller(out) == made
    assert made.temperature == 0.8
    test = made.scores["test"]
    assert test["equal"] is None  # every schedule samples a text of its own
    assert made.rule.kind != "none"
    assert {"never", "periodic 4", "random at its rate", "replayed"} <= set(test["controls"])
    # Replays share text and luck, so the controls and the controller stand against one replayed policy.
    others = {row["other"] for row in test["controls"].values()}
    assert len(others) == 1
    again = calibrate_refresh(folder, settings(texts, temperature=0.8), tmp_path / "again")
    assert again.model_dump(exclude={"scores"}) == made.model_dump(exclude={"scores"})
    other = calibrate_refresh(folder, settings(texts, temperature=0.8, seed=1), tmp_path / "other")
    assert other.scores["traces"] != made.scores["traces"]


def test_no_controller_is_said(tiny_folder: Folder, texts: Path, tmp_path: Path) -> None:
    """With nothing that may be lost and a periodic policy that hardly refreshes, none can pass."""
    made = calibrate_refresh(
        options(tiny_folder("llama", num_hidden_layers=1)),
        settings(texts, tolerance=0.0, every=200),
        tmp_path / "none",
    )
    assert made.rule.kind == "none"
    assert made.scores["test"]["verdict"] == "no controller"
    assert "ada" not in made.scores["test"]


def test_damaged_controllers_are_refused(tiny_folder: Folder, texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "controller"
    calibrate_refresh(options(tiny_folder("llama", num_hidden_layers=1)), settings(texts), out)
    file = out / "controller.json"
    content = json.loads(file.read_text())
    content["controller"]["interval"] = 99
    file.write_text(json.dumps(content))
    with pytest.raises(BadInput, match="was changed after it was frozen"):
        load_controller(out)
    file.write_text("{}")
    with pytest.raises(BadInput, match="is no refresh controller"):
        load_controller(out)


def test_texts_beyond_the_models_positions_are_refused(
    tiny_folder: Folder, texts: Path, tmp_path: Path
) -> None:
    folder = tiny_folder("llama", num_hidden_layers=1)
    with pytest.raises(BadInput, match="needs 540 positions, the target has 512"):
        calibrate_refresh(options(folder), settings(texts, new_tokens=500), tmp_path / "long")
    with pytest.raises(BadInput, match="in 3 new tokens no round can draft 3"):
        calibrate_refresh(options(folder), settings(texts, new_tokens=3), tmp_path / "long")
    assert not (tmp_path / "long").exists()


def test_too_few_documents_are_refused(tiny_folder: Folder, texts: Path, tmp_path: Path) -> None:
    few = tmp_path / "few.jsonl"
    few.write_text("\n".join(texts.read_text().splitlines()[:2]) + "\n")
    with pytest.raises(BadInput, match="too few for three splits"):
        calibrate_refresh(options(tiny_folder("llama", num_hidden_layers=1)), settings(few), tmp_path / "few")
    assert not (tmp_path / "few").exists()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_trace_is_what_two_separate_requests_would_see(
    temperature: float, tiny_folder: Folder, texts: Path
) -> None:
    """The first check, replayed twice from the beginning: once with a refresh there, once without."""
    pair = load_pair(options(tiny_folder("llama", num_hidden_layers=1)), "self")
    own = settings(texts, temperature=temperature)
    prompt = cut_prompts(pair.target.tokenizer, (str(texts),), lengths=(40,))[0]
    found = trace(pair, TraceJob(prompt, own, seed=0))[0]
    known = continuation(pair, prompt, own)

    class Once:
        def __init__(self, at: int | None) -> None:
            self.at = at

        def due(self, committed: int, read: Any, /) -> bool:
            return committed == self.at

    for at, wanted in ((None, found.kept), (found.committed, found.refreshed)):
        drafter = Drafter(pair.draft.model, policy_of("rift-dyn"), CacheSettings(**own.cache()))
        speculation = Speculation(StoredVerifier(known.tokens), drafter, known.drafts(), Once(at), drafted=3)
        decoding = speculation.start(prompt.tokens)
        for _ in speculation.rounds(decoding, found.committed + own.horizon):
            pass
        rounds = [r.accepted for r in decoding.rounds if r.start >= found.committed and r.drafted == 3]
        assert 1 + sum(rounds) / len(rounds) == pytest.approx(wanted)


def test_replayed_schedules_are_the_real_loops(tiny_folder: Folder, texts: Path) -> None:
    pair = load_pair(options(tiny_folder("qwen3", num_hidden_layers=1)), "self")
    prompt = cut_prompts(pair.target.tokenizer, (str(texts),), lengths=(40,))[1]
    schedules = (
        Schedule("never"),
        Schedule("periodic", every=8),
        Schedule("random", share=1.0, pace=Pace(4)),
    )
    replayed = run_schedules(pair, ClosedJob(prompt, settings(texts), schedules))
    assert replayed == run_schedules(pair, ClosedJob(prompt, settings(texts), schedules, real=True))
    assert [outcome.refreshes > 0 for outcome in replayed] == [False, True, True]


def test_splits_depend_on_documents_alone() -> None:
    prompts = [
        Prompt(f"{d}/{p}", f"{(d * 7919) % 101:03}", "text", (d, p)) for d in range(20) for p in range(3)
    ]
    parts = split_documents(prompts, (0.4, 0.2, 0.4))
    assert [len({prompt.document for prompt in part}) for part in parts] == [8, 4, 8]
    assert sum(map(len, parts)) == 60
    again = split_documents(prompts[::-1], (0.4, 0.2, 0.4))
    assert [{p.id for p in part} for part in again] == [{p.id for p in part} for part in parts]


def test_processes_share_prompts_and_schedules(tiny_folder: Folder, texts: Path, tmp_path: Path) -> None:
    """Two processes, one prompt: the same outcomes, in the same order, as one process."""
    folder = tiny_folder("llama", num_hidden_layers=1)
    pair = load_pair(options(folder), "self")
    prompts = cut_prompts(pair.target.tokenizer, (str(texts),), lengths=(40,))[:1]
    schedules = [Schedule("never"), Schedule("periodic", every=4), Schedule("periodic", every=8)]
    found = []
    for workers in (1, 2):
        own = settings(texts, workers=workers)
        pool = PairPool(options(folder), "self", pair, workers)
        found.append(_Work(pool, own, None).outcomes(prompts, schedules, "x"))
    assert found[0] == found[1]
    assert [row[0].refreshes for row in found[0]] == sorted(
        (row[0].refreshes for row in found[0]), key=lambda n: (n > 0, -n)
    )
