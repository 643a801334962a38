"""`calibrate recall` on a tiny random model: what it measures is true, what it freezes can be used."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from latent_tiny import build_latent
from transformers import AutoTokenizer, DynamicCache

from ridgefit.calibrate.contexts import documents_of, read_context
from ridgefit.calibrate.recall import calibrate_recall
from ridgefit.cli.app import main
from ridgefit.errors import BadInput, CheckFailed
from ridgefit.maps.recall import POLICY, RecallPolicy, RecallSettings
from ridgefit.models.load import LoadedLatent, load_latent
from ridgefit.recipe import CalibrateRecallSettings
from ridgefit.runtime.recall import Recall

BUNDLED = Path(__file__).parents[2] / "ridgefit" / "bundled"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny models with the bundled tokenizer, by family."""
    made = {}
    tokenizer = AutoTokenizer.from_pretrained(BUNDLED / "llama")
    for name in ("kimi_linear", "kimi_linear_rotated"):
        made[name] = tmp_path_factory.mktemp(name) / "model"
        build_latent(name, vocab_size=2048).save_pretrained(made[name])
        tokenizer.save_pretrained(made[name])
    return made


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve documents of a few hundred tokens."""
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    rng = random.Random(0)
    words = ["cache", "row", "query", "head", "branch", "step", "kept", "far", *"0123456789"]
    rows = [{"text": " ".join(rng.choices(words, k=180)), "source": f"d{n}"} for n in range(12)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def wanted(texts: Path, **settings: object) -> CalibrateRecallSettings:
    base = {
        "data": (str(texts),),
        "tokens": 128,
        "queries": 24,
        "contexts": 10,
        "window": "prefix",
        "block": 64,
        "kappa": 2,
        "ratio": 8.0,
        "rank": 8,
        "target": 0.8,
    }
    return CalibrateRecallSettings(**{**base, **settings})


@pytest.fixture(scope="module")
def loaded(folders: dict[str, Path]) -> LoadedLatent:
    return load_latent(str(folders["kimi_linear"]))


def test_contexts_hold_the_models_own_rows_and_queries(loaded: LoadedLatent, texts: Path) -> None:
    """Scores of harvested queries on harvested rows are the attention of transformers' eager forward."""
    ((_, ids), *_) = documents_of(loaded, [str(texts)], "text", 152, 3)
    settings = RecallSettings(kappa=2, block=64, window="prefix", ratio=8)
    found = read_context(loaded, ids, 24, settings)
    loaded.model.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = loaded.model(ids[None], output_attentions=True).attentions
    loaded.model.set_attn_implementation("sdpa")
    weights = [item for item in attentions if item is not None]
    for want, (index, context) in zip(weights, found.items(), strict=True):
        assert context.rows.shape[0] == 152
        assert context.tier.closed == 128
        scores = loaded.latent.layers[index].scale * context.queries @ context.rows.float().T
        hidden = torch.arange(152) > torch.arange(128, 152)[:, None]
        got = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        torch.testing.assert_close(got, want[0, :, 128:], atol=1e-5, rtol=0)


def test_a_policy_keeps_what_was_measured(loaded: LoadedLatent, texts: Path, tmp_path: Path) -> None:
    """Recall and rows per step on held-out documents, against the runtime running those documents."""
    policy = calibrate_recall(loaded, wanted(texts), tmp_path / "policy")
    again = RecallPolicy.load(tmp_path / "policy")
    assert again.manifest == policy.manifest
    assert all(torch.equal(again.bases[i], policy.bases[i]) for i in policy.bases)
    judged = set(policy.manifest.provenance["judged"])
    assert len(judged) == 4
    documents = [ids for name, ids in documents_of(loaded, [str(texts)], "text", 152, 10) if name in judged]
    recall = Recall.load(tmp_path / "policy")
    fetched = []
    for ids in documents:
        with torch.no_grad(), recall.applied(loaded.model, several=True) as report:
            cache = DynamicCache(config=loaded.model.config)
            loaded.model(ids[None, :128], cache=cache)
            loaded.model(ids[None, 128:], cache=cache)
        fetched += report.layers[1].fetched  # the first latent layer reads what it reads densely
    layer = policy.manifest.layers[1]
    assert layer.rows_per_step == pytest.approx(sum(fetched) / len(fetched), rel=0.02)
    assert layer.recall is not None
    assert layer.recall >= 0.8
    assert layer.recall <= layer.recall_union <= 1
    assert layer.held_out == 4 * 24 * 3


def test_prompts_can_find_their_own_thresholds(loaded: LoadedLatent, texts: Path, tmp_path: Path) -> None:
    """What is reported is what the runtime finds on the same documents, prompt by prompt."""
    wanted_here = wanted(texts, contexts=4, thresholds="prompt", target=0.5, conformal="true")
    policy = calibrate_recall(loaded, wanted_here, tmp_path / "policy")
    assert not policy.bases
    assert len(policy.manifest.provenance["judged"]) == 4
    recall = Recall.load(tmp_path / "policy")
    factors, fetched = [], []
    for _, ids in documents_of(loaded, [str(texts)], "text", 152, 4):
        with torch.no_grad(), recall.applied(loaded.model, several=True) as report:
            cache = DynamicCache(config=loaded.model.config)
            loaded.model(ids[None, :128], cache=cache)
            loaded.model(ids[None, 128:], cache=cache)
        factors.append(report.layers[1].z)
        fetched += report.layers[1].fetched
    layer = policy.manifest.layers[1]
    assert layer.z == pytest.approx(sum(factors) / 4, abs=1e-3)
    assert layer.rows_per_step == pytest.approx(sum(fetched) / len(fetched), rel=0.02)
    assert layer.held_out == 4 * 24 * 3


def test_the_same_input_gives_the_same_bytes(loaded: LoadedLatent, texts: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        calibrate_recall(loaded, wanted(texts, contexts=4), tmp_path / name)
    for file in ("policy.json", "policy.safetensors"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_a_policy_that_misses_its_target_is_not_frozen(
    loaded: LoadedLatent, texts: Path, tmp_path: Path
) -> None:
    with pytest.raises(CheckFailed, match=r"layer 1 finds .* % of \d+ hard queries.*target is 99 %"):
        calibrate_recall(loaded, wanted(texts, target=0.99, rank=1, z_max=0.01), tmp_path / "policy")
    assert not (tmp_path / "policy").exists()


def test_commands_speak_in_sentences(
    folders: dict[str, Path], texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--data", str(texts), "--tokens", "128", "--queries", "24", "--contexts", "6", "--json"]
    options += ["--window", "prefix", "--block", "64", "--kappa", "2", "--ratio", "8", "--target", "0.5"]
    model = str(folders["kimi_linear"])

    def run(*words: str) -> tuple[int, str]:
        status = main(["calibrate", "recall", *words])
        said = capsys.readouterr()
        return status, said.out + said.err

    status, said = run(model, *options, "--out", str(tmp_path / "policy"))
    assert status == 0, said
    shown = json.loads(said[said.index("{") : said.rindex("}") + 1])
    assert set(shown["layers"]) == {"1", "3"}
    status, said = run(model, *options, "--out", str(tmp_path / "policy"))
    assert (status, "already exists" in said) == (2, True)
    twin = str(folders["kimi_linear_rotated"])
    status, said = run(twin, *options, "--out", str(tmp_path / "twin"))
    assert status == 2
    assert "is rotated" in said
    assert "--control" in said
    status, said = run(twin, *options, "--control", "--out", str(tmp_path / "twin"))
    assert status == 0, said
    status, said = run("bundled:llama", *options, "--out", str(tmp_path / "other"))
    assert (status, "no latent cache" in said) == (2, True)
    status, said = run(model, *options, "--tokens", "100000", "--out", str(tmp_path / "other"))
    assert (status, "smaller --tokens" in said) == (2, True)
    status, said = run(model, *options, "--block", "3", "--out", str(tmp_path / "other"))
    assert (status, "--block of at least 4" in said) == (2, True)
    with pytest.raises(BadInput, match="does not belong to this model: family"):
        Recall.load(tmp_path / "policy").check(load_latent(twin).model)
    assert not (tmp_path / "other").exists()


def test_policies_on_disk_are_checked(loaded: LoadedLatent, texts: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no recall policy"):
        RecallPolicy.load(tmp_path)
    calibrate_recall(loaded, wanted(texts, contexts=4), tmp_path / "policy")
    path = tmp_path / "policy" / POLICY
    text = path.read_text()
    path.write_text(text.replace('"kappa"', '"kapa"'))
    with pytest.raises(BadInput, match="kapa"):
        RecallPolicy.load(tmp_path / "policy")
    path.write_text(text.replace('"3": {', '"2": {'))
    with pytest.raises(BadInput, match="no fp32 basis for layer 2"):
        RecallPolicy.load(tmp_path / "policy")


def test_generate_reads_through_a_policy(
    folders: dict[str, Path],
    loaded: LoadedLatent,
    texts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command gives what plain `generate` gives under the policy, and says what steps read."""
    calibrate_recall(loaded, wanted(texts, contexts=4), tmp_path / "policy")
    prompt = json.loads(texts.read_text().splitlines()[0])["text"]
    words = [
        "generate",
        str(folders["kimi_linear"]),
        "--policy",
        str(tmp_path / "policy"),
        "--new-tokens",
        "8",
    ]
    assert main([*words, "--prompt", prompt, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    ids = torch.tensor([loaded.tokenizer(prompt)["input_ids"]])
    with Recall.load(tmp_path / "policy").applied(loaded.model) as report:
        want = loaded.model.generate(ids, max_new_tokens=8, do_sample=False)[0, ids.shape[1] :]
    assert shown["text"] == loaded.tokenizer.decode(want, skip_special_tokens=True)
    assert shown["layers"]["1"]["fetched"] == sum(report.layers[1].fetched) / 7
    assert shown["layers"]["1"]["archived"] > 100
    assert main([*words, "--prompt", "short"]) == 0
    assert "every step read everything" in capsys.readouterr().err
    assert main([*words, "--prompt", prompt, "--maps", str(tmp_path)]) == 2
    assert "not applied together" in capsys.readouterr().err


def test_verify_tries_a_policys_promises(
    folders: dict[str, Path],
    loaded: LoadedLatent,
    texts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    calibrate_recall(loaded, wanted(texts, contexts=4), tmp_path / "policy")
    words = ["verify", str(tmp_path / "policy"), "--json"]

    def run(*more: str) -> tuple[int, dict[str, str]]:
        status = main([*words, *more])
        shown = json.loads(capsys.readouterr().out)
        return status, {line["check"]: line["detail"] for line in shown["lines"]}

    assert main(["inspect", str(tmp_path / "policy"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["ratio"] == 8.0
    assert main(["inspect", str(tmp_path / "policy")]) == 0
    assert "held-out recall" in capsys.readouterr().out
    assert run()[0] == 0
    status, lines = run("--model", str(folders["kimi_linear"]))
    assert status == 0
    assert set(lines) == {"policy", "fingerprint", "premise", "every row kept", "every row fetched", "off"}
    assert lines["every row kept"].startswith("0 rows")
    status, lines = run("--model", str(folders["kimi_linear_rotated"]))
    assert (status, "family" in lines["fingerprint"]) == (1, True)
    path = tmp_path / "policy" / "policy.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    status, lines = run()
    assert status == 1
    assert "policy.safetensors" in lines["policy"]
