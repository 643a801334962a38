"""`eval --policy` on tiny random models: what the tables say is what slow, plain computations say."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from latent_tiny import build_latent
from transformers import AutoTokenizer, DynamicCache

from ridgefit.cli.app import main
from ridgefit.errors import BadInput, CheckFailed
from ridgefit.evaluate.recall.arms import resolve_recall_arms
from ridgefit.evaluate.recall.readers import ShadowReader
from ridgefit.evaluate.recall.result import RecallResult, load_recall_result
from ridgefit.evaluate.recall.run import evaluate_recall
from ridgefit.evaluate.recall.samples import document_samples, needle_samples
from ridgefit.evaluate.recall.scoring import score_sample
from ridgefit.maps.fingerprint import Fingerprint
from ridgefit.maps.recall import LayerThresholds, PolicyManifest, RecallPolicy, RecallSettings
from ridgefit.models.latenthooks import LatentHooks
from ridgefit.models.load import LoadedLatent, load_latent
from ridgefit.recipe import RecallEvalSettings
from ridgefit.runtime.recall import SELECTORS, Recall
from ridgefit.runtime.recall.sketch import first_axes

BUNDLED = Path(__file__).parents[2] / "ridgefit" / "bundled"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("recall")
    build_latent(vocab_size=2048).save_pretrained(made / "model")
    AutoTokenizer.from_pretrained(BUNDLED / "llama").save_pretrained(made / "model")
    rng = random.Random(0)
    rows = [{"text": " ".join(rng.choices(["row", "head", "far", *"0123456789"], k=160))} for _ in range(4)]
    (made / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    loaded = load_latent(str(made / "model"))
    for ratio in (4.0, 8.0):
        settings = RecallSettings(ratio=ratio, kappa=2, block=64, window="prefix", rank=8)
        policy = RecallPolicy(
            PolicyManifest(
                settings=settings,
                fingerprint=Fingerprint.of(loaded.identity()),
                layers={index: LayerThresholds(z=0.5) for index in loaded.latent.layers},
            ),
            {index: first_axes(8, 24, torch.device("cpu")) for index in loaded.latent.layers},
        )
        policy.save(made / f"policy-{ratio:g}")
    return made


@pytest.fixture(scope="module")
def loaded(folder: Path) -> LoadedLatent:
    return load_latent(str(folder / "model"))


def wanted(folder: Path, **settings: object) -> RecallEvalSettings:
    base = {
        "policy": (folder / "policy-4",),
        "trials": 2,
        "needle_tokens": 140,
        "data": (str(folder / "texts.jsonl"),),
        "document_tokens": 120,
        "continuation": 20,
        "documents": 2,
    }
    return RecallEvalSettings(**{**base, **settings})


def test_needle_prompts_hide_everything_in_the_prefix(loaded: LoadedLatent, folder: Path) -> None:
    for needles in (1, 3):
        samples = needle_samples(loaded, wanted(folder, trials=6, needle_tokens=200, needles=needles))
        assert len({sample.sha256 for sample in samples}) == 6
        for sample in samples:
            prefix = loaded.tokenizer.decode(sample.prefix)
            rest = loaded.tokenizer.decode(sample.rest)
            answer = loaded.tokenizer.decode(sample.rest[-sample.scored :])
            assert 150 < sample.prefix.numel() <= 200
            assert len(re.findall(r"magic numbers? for", prefix)) == needles
            assert answer.strip().isdigit()
            assert answer.strip() in prefix
            assert rest.startswith("\n")
            assert rest.rstrip().endswith(answer.strip())
            at = prefix.index(answer.strip()) / len(prefix)
            assert at < 0.85


def test_scores_are_those_of_single_steps(loaded: LoadedLatent, folder: Path) -> None:
    """Every arm against plain decoding: rest token after rest token, through the runtime's own context."""
    settings = wanted(folder)
    arms = resolve_recall_arms(settings, loaded)
    (sample, *_) = needle_samples(loaded, settings)
    found = dict(score_sample(loaded, sample, arms, mass=False))
    assert len(found) == len(arms) + 1
    model, rest = loaded.model, sample.rest[None]

    def loss(recall: Recall | None) -> float:
        total = 0.0
        cache = DynamicCache(config=model.config)
        model(sample.prefix[None], cache=cache)
        for at in range(rest.shape[1] - 1):
            logits = model(rest[:, at : at + 1], cache=cache).logits[0, -1].double()
            if at >= rest.shape[1] - 1 - sample.scored:
                total -= float(logits.log_softmax(-1)[rest[0, at + 1]])
        return total

    with torch.no_grad():
        assert found["dense"].nll == pytest.approx(loss(None), abs=1e-4)
        assert found["identity"].nll == pytest.approx(found["dense"].nll, abs=1e-4)
        for arm in arms:
            recall = Recall(arm.policy)
            with recall.applied(model):
                assert found[arm.label].nll == pytest.approx(loss(recall), abs=1e-3), arm.label
    changed = [arm for arm in arms if abs(found[arm.label].nll - found["dense"].nll) > 1e-3]
    assert len(changed) > len(SELECTORS)


def test_retained_attention_is_a_sum_over_read_rows(loaded: LoadedLatent, folder: Path) -> None:
    """Against transformers' eager attention weights and the rows that the policy's state names."""
    settings = wanted(folder)
    arms = {arm.label: arm for arm in resolve_recall_arms(settings, loaded)}
    (sample, *_) = document_samples(loaded, settings)
    model = loaded.model
    ids = torch.cat([sample.prefix, sample.rest])[None, :-1]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = [a for a in model(ids, output_attentions=True).attentions if a is not None]
    model.set_attn_implementation("sdpa")
    for label in ("branch 4x", "streaming 4x"):
        reader = ShadowReader(arms[label].policy, loaded.latent.layers, several=True)
        hooks = LatentHooks(loaded.latent, reader)
        hooks.attach()
        with torch.no_grad():
            cache = DynamicCache(config=model.config)
            model(sample.prefix[None], cache=cache)
            logits = model(ids[:, 120:], cache=cache).logits
        hooks.detach()
        total = 0.0
        for weights, index in zip(attentions, loaded.latent.layers, strict=True):
            kept = cache.layers[index].states[0].kept
            read = torch.zeros(ids.shape[1], dtype=torch.bool)
            read[kept], read[120:] = True, True
            total += float(weights[0, :, 120:, read].double().sum())
        assert reader.mass == pytest.approx(total, rel=1e-4)
        assert reader.pairs == 2 * 3 * 19
        with torch.no_grad():
            torch.testing.assert_close(logits, model(ids).logits[:, 120:], atol=1e-4, rtol=0)


@pytest.fixture(scope="module")
def result(loaded: LoadedLatent, folder: Path) -> RecallResult:
    return evaluate_recall(loaded, wanted(folder), folder / "results")


def test_tables_hold_what_the_lines_say(result: RecallResult, folder: Path) -> None:
    lines = [json.loads(line) for line in (folder / "results" / "results.jsonl").read_text().splitlines()]
    samples = [line for line in lines if line["kind"] == "sample"]
    dense = {s["sample"]: s["nll"] for s in samples if s["arm"] == "dense"}
    for arm in result.arms:
        own = [s for s in samples if s["arm"] == arm.arm]
        rises = {s["sample"]: s["nll"] - dense[s["sample"]] for s in own}
        needles = [rise < 1.0 for name, rise in rises.items() if name.startswith("needle")]
        assert arm.intact.mean == sum(needles) / 2
        documents = [rise / 19 for name, rise in rises.items() if name.startswith("document")]
        assert arm.loss.mean == pytest.approx(sum(documents) / 2)
        assert 0 < arm.mass.mean <= 1.0 + 1e-6
        assert arm.intact.low <= arm.intact.mean <= arm.intact.high
    assert result.arms[0].arm == "dense"
    assert result.arms[0].loss.mean == 0.0
    identity = next(arm for arm in result.arms if arm.role == "identity")
    assert identity.mass.mean == pytest.approx(1.0)
    assert load_recall_result(folder / "results") == result
    assert math.isclose(result.dense_loss, sum(d for n, d in dense.items() if n.startswith("doc")) / 38)


def test_a_page_is_made_of_the_tables(
    result: RecallResult, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(folder / "results"), "--quiet"]) == 0
    page = (folder / "results" / "report.md").read_text()
    assert "every row kept is dense" in page
    for arm in result.arms:
        assert f"| {arm.arm} |" in page
    capsys.readouterr()
    assert main(["inspect", str(folder / "results")]) == 0
    shown = capsys.readouterr().out
    assert all(arm.arm in shown for arm in result.arms)


def test_gates_say_what_they_saw(result: RecallResult) -> None:
    """A random model keeps the identity and finds no needle."""
    gates = {gate.name: gate for gate in result.gates}
    assert gates["every row kept is dense"].passed
    assert not gates["dense finds its needles"].passed
    assert not result.passed


def test_an_evaluation_goes_on_where_it_stopped(
    loaded: LoadedLatent, folder: Path, result: RecallResult, tmp_path: Path
) -> None:
    lines = (folder / "results" / "results.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "ev").mkdir()
    arms = len(result.arms)
    (tmp_path / "ev" / "results.jsonl").write_text("".join(lines[: 1 + arms + 3]))
    seen: list[str] = []
    again = evaluate_recall(
        loaded, wanted(folder), tmp_path / "ev", progress=lambda _d, _t, what: seen.append(what)
    )
    assert again == result
    assert len(seen) == 3 * arms
    with pytest.raises(BadInput, match=r"another settings\.needles"):
        evaluate_recall(loaded, wanted(folder, needles=2), tmp_path / "ev")


def test_an_arm_that_leaves_nothing_out_stops_the_evaluation(
    loaded: LoadedLatent, folder: Path, tmp_path: Path
) -> None:
    settings = RecallSettings(ratio=4, kappa=2, block=4096, window="block")
    RecallPolicy(PolicyManifest(settings=settings, fingerprint=Fingerprint.of(loaded.identity()))).save(
        tmp_path / "policy"
    )
    with pytest.raises(CheckFailed, match="left no row of needle 00000 out in layer 1"):
        evaluate_recall(loaded, wanted(folder, policy=(tmp_path / "policy",)), tmp_path / "ev")


def test_arms_are_named_and_checked(loaded: LoadedLatent, folder: Path) -> None:
    both = (folder / "policy-4", folder / "policy-8")
    labels = [arm.label for arm in resolve_recall_arms(wanted(folder, policy=both), loaded)]
    assert len(labels) == len(set(labels)) == 2 + 2 * (len(SELECTORS) + 1 + 3)
    with pytest.raises(BadInput, match="same ratio"):
        resolve_recall_arms(wanted(folder, policy=(both[0], both[0])), loaded)
    with pytest.raises(BadInput, match="no selector 'brunch'"):
        resolve_recall_arms(wanted(folder, selectors=("brunch",)), loaded)


def test_the_command_speaks(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(folder / "model")

    def run(*words: str) -> tuple[int, str]:
        status = main(["eval", model, "--out", str(tmp_path / "ev"), *words])
        said = capsys.readouterr()
        return status, said.out + said.err

    options = ["--policy", str(folder / "policy-8"), "--trials", "1", "--needle-tokens", "140"]
    options += ["--selectors", "branch,random", "--recall-selectors", "branch"]
    status, said = run(*options)
    assert status == 1
    assert "gate 'dense finds its needles' fails" in said
    assert "branch 8x + recall, frozen" in said
    status, said = run(*options, "--json")
    assert json.loads(said[said.index("{") : said.rindex("}") + 1])["format"] == 1
    status, said = run()
    assert (status, "--policy" in said) == (2, True)
    status, said = run(*options, "--arms", "none,split=2", "--tasks", f"nll,data={folder / 'texts.jsonl'}")
    assert (status, "judged apart" in said) == (2, True)
    status, said = run("--policy", str(tmp_path))
    assert (status, "no recall policy" in said) == (2, True)
