"""`eval --tasks acceptance`: scores against a count by hand, resuming, refusals, and the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ridgefit.cli.app import main
from ridgefit.errors import BadInput
from ridgefit.evaluate import acceptance
from ridgefit.evaluate.acceptance import evaluate_acceptance
from ridgefit.evaluate.acceptance_summary import summarise
from ridgefit.recipe import AcceptanceSettings, DraftGenerateSettings
from ridgefit.runtime.draft import POLICIES, CacheSettings
from ridgefit.runtime.speculative import Draft, Sampling, known_text
from ridgefit.runtime.speculative.pair import load_pair
from ridgefit.runtime.speculative.standalone import along

Folder = Callable[..., Path]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    rows = [{"text": f"the cat sat on the mat and the dog sat on the log; {n} " * 8} for n in (12, 34, 43)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def settings(texts: Path, **changes: Any) -> AcceptanceSettings:
    base: dict[str, Any] = {
        "data": (str(texts),), "prompt": (40, 50), "budget": 12, "observe": 4, "every": 8, "new_tokens": 24,
        "drafted": 3, "forced": True, "policies": ("rift-stat", "rift-dyn", "h2o"), "bin": 8,
        "measure_every": 8,
    }  # fmt: skip
    return AcceptanceSettings(**{**base, **changes})


def options(folder: Path) -> dict[str, Any]:
    return {"ref": str(folder), "dtype": "float32", "device": "cpu"}


def test_policies_are_scored_on_the_targets_own_text(
    tiny_folder: Folder, texts: Path, tmp_path: Path
) -> None:
    folder = tiny_folder("llama", num_hidden_layers=1)
    out = tmp_path / "out"
    found = evaluate_acceptance(options(folder), settings(texts, standalone=True), out, resamples=200)
    assert (found.prompts, found.documents, found.prompt_tokens) == (3, 3, (40, 50))
    full = found.policy("full")
    assert full.al_macro == full.al_pooled == 4.0  # self-speculation with the whole cache: drafted + 1
    assert full.agreed == 1.0
    assert full.by_place == (1.0, 1.0, 1.0)
    for name in ("rift-stat", "rift-dyn", "h2o"):
        score = found.policy(name)
        assert score.widest <= 12
        assert score.equal == 1.0
        assert score.al_macro <= 4.0
        assert {gap.against for gap in score.gaps} == (
            {"full"} if name == "rift-dyn" else {"full", "rift-dyn"}
        )
        assert 0 < (score.retained or 0) <= 1
    assert found.policy("rift-stat").refreshes_per_1000 == 0
    assert found.policy("rift-dyn").refreshes_per_1000 > 0
    real = evaluate_acceptance(
        options(folder), settings(texts, loop="real"), tmp_path / "real", resamples=200
    )
    assert [score.al_macro for score in real.policies] == [score.al_macro for score in found.policies]
    assert all(score.equal == 1.0 for score in real.policies)


def test_all_is_every_policy_but_the_one_that_needs_a_controller(
    tiny_folder: Folder, texts: Path, tmp_path: Path
) -> None:
    folder = tiny_folder("llama", num_hidden_layers=1)
    own = settings(texts, policies=("all",), prompt=(40,), new_tokens=8)
    found = evaluate_acceptance(options(folder), own, tmp_path / "out", resamples=100)
    assert [score.policy for score in found.policies] == [name for name in POLICIES if name != "rift-ada"]
    assert all(score.widest <= 12 for score in found.policies)


def test_going_on_after_the_last_whole_prompt(
    tiny_folder: Folder, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = tiny_folder("llama", num_hidden_layers=1), tmp_path / "out"
    whole = evaluate_acceptance(options(folder), settings(texts), tmp_path / "whole", resamples=100)
    evaluate_acceptance(options(folder), settings(texts), out, resamples=100)
    lines = (out / "acceptance.jsonl").read_text().splitlines()
    (out / "acceptance.jsonl").write_text("\n".join(lines[:6]) + "\n" + lines[6][:40])  # cut in the second
    scored: list[str] = []
    plain = acceptance.score_prompt

    def noted(pair: Any, job: Any) -> Any:
        scored.append(job.prompt.id)
        return plain(pair, job)

    monkeypatch.setattr(acceptance, "score_prompt", noted)
    again = evaluate_acceptance(options(folder), settings(texts), out, resamples=100)
    assert len(scored) == 2
    keep = {"policy", "al_pooled", "al_macro", "curve", "refreshes_per_1000", "widest"}
    assert [s.model_dump(include=keep) for s in again.policies] == [
        s.model_dump(include=keep) for s in whole.policies
    ]
    # Half a line is not joined to what follows it: a third call finds everything done.
    scored.clear()
    third = evaluate_acceptance(options(folder), settings(texts), out, resamples=100)
    assert scored == []
    assert [s.al_macro for s in third.policies] == [s.al_macro for s in whole.policies]
    with pytest.raises(BadInput, match=r"results with another settings.budget \(12 there, 14 now\)"):
        evaluate_acceptance(options(folder), settings(texts, budget=14), out, resamples=100)
    with pytest.raises(BadInput, match=r"another settings.temperature \(0.0 there, 1.0 now\)"):
        evaluate_acceptance(options(folder), settings(texts, temperature=1), out, resamples=100)


@pytest.mark.parametrize("damage", ["{torn", "[]", '{"prompt": "x"}'])
def test_a_damaged_line_is_named_and_left_as_it_is(
    damage: str, tiny_folder: Folder, texts: Path, tmp_path: Path
) -> None:
    folder, out = tiny_folder("llama", num_hidden_layers=1), tmp_path / "out"
    own = settings(texts, policies=("rift-dyn",))
    evaluate_acceptance(options(folder), own, out, resamples=100)
    file = out / "acceptance.jsonl"
    lines = file.read_text().splitlines()
    lines[2] = damage
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(BadInput, match=r"line 3 of .*acceptance.jsonl is damaged: remove the line"):
        evaluate_acceptance(options(folder), own, out, resamples=100)
    assert file.read_text().splitlines() == lines
    (out / "identity.json").write_text("[]")
    with pytest.raises(BadInput, match=r"identity.json says nothing"):
        evaluate_acceptance(options(folder), own, out, resamples=100)


def test_scores_equal_a_count_by_hand() -> None:
    """Short rounds near the length limit are left out; documents weigh alike, whatever their prompts."""

    def record(policy: str, unit: str, rounds: list[list[Any]]) -> dict[str, Any]:
        return {
            "policy": policy, "unit": unit, "rounds": rounds, "tokens": 10, "refreshes": 1, "changed": [0.5],
            "score_seconds": 0.02, "selections": 2, "seconds": 0.1, "widest": 8,
            "budget": None if policy == "full" else 8, "equal": True, "prompt_tokens": 40,
        }  # fmt: skip

    def row(start: int, drafted: int, accepted: int, mass: float | None = None) -> list[Any]:
        return [start, drafted, accepted, accepted + 1, False, mass]

    records = [
        record("full", "a", [row(0, 3, 3), row(4, 3, 3)]), record("full", "b", [row(0, 3, 3)]),
        record("swa", "a", [row(0, 3, 1, 0.5), row(9, 3, 3), row(12, 2, 0)]),
        record("swa", "a", [row(0, 3, 0)]), record("swa", "b", [row(0, 3, 2, 0.7)]),
    ]  # fmt: skip
    own = AcceptanceSettings(data=("x",), drafted=3, bin=8, policies=("swa",), reference="swa", budget=8)
    found = summarise(records, ("full", "swa"), own, {}, {}, resamples=100, seed=0).policy("swa")
    assert found.al_pooled == 1 + (1 + 3 + 0 + 2) / 4
    assert found.al_macro == ((1 + 2 + 1 + 0) / 2 + 3) / 2  # document a: prompts at 3 and 1; b: 3
    assert found.of_full == found.al_macro / 4
    assert found.curve == (1 + (1 + 0 + 2) / 3, 4.0)
    assert found.by_place == (3 / 4, 2 / 4, 1 / 4)
    assert found.retained == pytest.approx(0.6)
    assert found.refreshes_per_1000 == 100
    assert found.score_ms == pytest.approx(1000 * 0.06 / 6)
    assert found.gaps[0].mean == pytest.approx(((2 - 4) + (3 - 4)) / 2)


def test_standalone_loss_is_the_models_own_with_the_whole_cache(tiny_model: Any, random_tokens: Any) -> None:
    model = tiny_model("qwen3", num_hidden_layers=1)
    ids = random_tokens(60)[0].tolist()
    found = along(Draft(model, POLICIES["full"]), ids[:40], ids[40:])
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0, 39:-1]
    losses = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[40:]), reduction="none")
    assert found.nll == pytest.approx(losses.tolist(), abs=1e-4)
    assert found.agreed == (logits.argmax(-1) == torch.tensor(ids[40:])).tolist()
    narrow = along(
        Draft(model, POLICIES["rift-dyn"], CacheSettings(budget=12, observe=4, every=8)), ids[:40], ids[40:]
    )
    assert narrow.widest == 12
    assert narrow.refreshes == 2
    assert narrow.nll != found.nll


def test_greedy_is_the_models_own(tiny_model: Any, random_tokens: Any) -> None:
    model = tiny_model("llama", num_hidden_layers=1)
    prompt = random_tokens(20)
    wanted = model.generate(prompt, max_new_tokens=12, do_sample=False, pad_token_id=0)[0, 20:].tolist()
    assert known_text(model, prompt[0].tolist(), 12, lambda tokens: tokens[-1] == 2).output == wanted


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"policies": ("rift",)}, "no cache policy 'rift'"),
        ({"policies": ("rift-ada",), "reference": "rift-ada"}, "needs a controller"),
        ({"reference": "oracle"}, "'oracle' is not among the policies"),
        ({"window": 20}, "window of 20 columns is above the budget of 12"),
        ({"new_tokens": 500}, "needs 540 positions, the target has 512"),
        ({"new_tokens": 3}, "in 3 new tokens no round can draft 3"),
        ({"prompt": (4000,)}, "no document in"),
        ({"policies": ("swa",)}, "the reference 'rift-dyn' is not among the policies: add it to policies="),
        ({"needles": 2}, "needles need prompts of at least 64 tokens, and the longest has 50"),
        ({"instruction": "Go on.", "prompt": (120,)}, None),
    ],
)
def test_refusals(
    changes: dict[str, Any], sentence: str | None, tiny_folder: Folder, texts: Path, tmp_path: Path
) -> None:
    folder = tiny_folder("llama", num_hidden_layers=1)
    own = settings(texts, **{"policies": ("rift-dyn",), **changes})
    if sentence is None:  # a chat prompt works where the tokenizer has a template
        assert evaluate_acceptance(options(folder), own, tmp_path / "out", resamples=100).prompts == 3
        return
    with pytest.raises(BadInput) as caught:
        evaluate_acceptance(options(folder), own, tmp_path / "out", resamples=100)
    assert sentence in str(caught.value)


def test_different_vocabularies_are_refused(tiny_folder: Folder, texts: Path, tmp_path: Path) -> None:
    folder = tiny_folder("llama", num_hidden_layers=1)
    other = tmp_path / "other"
    other.mkdir()
    for file in folder.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    content = json.loads((other / "tokenizer.json").read_text())
    vocab = content["model"]["vocab"]
    first, second = sorted(vocab)[40:42]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    (other / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(BadInput, match="different vocabularies: token"):
        evaluate_acceptance(options(folder), settings(texts, draft=str(other)), tmp_path / "out")


def test_the_commands(
    tiny_folder: Folder, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_folder("llama", num_hidden_layers=1)
    base = ["eval", str(folder), "--dtype", "float32", "--device", "cpu"]
    task = f"acceptance,data={texts},prompt=40,budget=12,observe=4,every=8,new_tokens=12,policies=rift-dyn"
    assert main([*base, "--tasks", task, "--out", str(tmp_path / "a"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [score["policy"] for score in found["policies"]] == ["full", "rift-dyn"]
    assert main([*base, "--tasks", task, "--out", str(tmp_path / "b")]) == 0
    assert "candidates full" in capsys.readouterr().out
    assert main([*base, "--tasks", task, "--arms", "exact", "--out", str(tmp_path / "c")]) == 2
    assert "acceptance stands alone" in capsys.readouterr().err
    assert (
        main([*base, "--tasks", task, "--batch", "4", "--no-sink-effect", "--out", str(tmp_path / "c")]) == 2
    )
    assert "--sink-effect, --batch would do nothing with acceptance" in capsys.readouterr().err
    plain = ["generate", str(folder), "--dtype", "float32", "--device", "cpu", "--prompt", "the cat " * 9,
             "--new-tokens", "16", "--json"]  # fmt: skip
    assert main([*plain, "--arm", "exact"]) == 0
    wanted = json.loads(capsys.readouterr().out)["text"]
    drafted = [
        "--draft",
        "self",
        "--draft-policy",
        "rift-dyn",
        "--budget",
        "12",
        "--observe",
        "4",
        "--every",
        "4",
    ]
    assert main([*plain, *drafted]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["text"] == wanted
    assert found["widest"] <= found["budget"] == 12
    assert main([*plain, *drafted[:2], "--draft-policy", "rift-ada"]) == 2
    assert "needs a controller" in capsys.readouterr().out
    by_itself = ["--draft", "none", "--draft-policy", "swa"]
    assert main([*plain, *by_itself, "--budget", "200"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["text"], found["rounds"], found["acceptance_length"]) == (wanted, 0, None)
    assert main([*plain[:-1], *by_itself, "--budget", "12"]) == 0
    assert "16 tokens without a draft, 0 refreshes, at most 12 columns" in capsys.readouterr().err
    assert main([*plain, *by_itself, "--budget", "12", "--drafted", "3"]) == 2
    assert "--drafted would do nothing" in capsys.readouterr().out
    assert main([*plain, *by_itself[:2], "--draft-policy", "rift-ada"]) == 2
    assert "here is no draft" in capsys.readouterr().out


def test_sizes_default_to_an_eighth() -> None:
    assert DraftGenerateSettings(draft="self").cache()["keep_ratio"] == 0.125
    assert DraftGenerateSettings(draft="self", budget=9).cache()["keep_ratio"] is None


@pytest.mark.parametrize("loop", ["replay", "real"])
def test_sampled_text_has_an_acceptance_length_too(
    loop: str, tiny_folder: Folder, texts: Path, tmp_path: Path
) -> None:
    folder = tiny_folder("llama", num_hidden_layers=1)
    own = settings(texts, temperature=1.0, loop=loop, policies=("rift-dyn", "swa"), standalone=True)
    found = evaluate_acceptance(options(folder), own, tmp_path / "out", resamples=100, seed=3)
    # Draft and target are one model: equal distributions are always accepted, whatever is drawn.
    assert found.policy("full").al_macro == 4.0
    for name in ("rift-dyn", "swa"):
        assert 1.0 <= found.policy(name).al_macro < 4.0
        assert found.policy(name).widest == 12
    assert found.policy("full").equal is None
    assert found.policy("full").agreed < 1  # a sampled token need not be the most likely one
    assert (found.policy("full").draft_ms is None) == (loop == "real")
    again = evaluate_acceptance(options(folder), own, tmp_path / "again", resamples=100, seed=3)
    keep = {"policy", "al_macro", "curve", "agreed", "nll"}
    assert [s.model_dump(include=keep) for s in again.policies] == [
        s.model_dump(include=keep) for s in found.policies
    ]
    with pytest.raises(BadInput, match="results with another sampling_seed"):
        evaluate_acceptance(options(folder), own, tmp_path / "out", resamples=100, seed=4)
    other = evaluate_acceptance(options(folder), own, tmp_path / "other", resamples=100, seed=4)
    assert other.policy("full").nll != found.policy("full").nll


def test_sampled_losses_are_those_of_the_sampled_text(
    tiny_folder: Folder, texts: Path, tmp_path: Path
) -> None:
    """The entropy of the target's own distributions is what its samples cost it on average."""
    pair = load_pair(options(tiny_folder("llama", num_hidden_layers=1)), "self")
    losses, entropies = [], []
    for seed in range(40):
        known = known_text(
            pair.target.model, [5, 6, 7, 8], 12, lambda _: False, Sampling(0.7, str(seed)), beyond=0
        )
        ids = torch.tensor([[*known.prompt, *known.tokens]])
        with torch.no_grad():
            logs = (pair.target.model(input_ids=ids).logits[0, 3:-1] / 0.7).log_softmax(-1)
        assert known.chances is not None
        assert torch.allclose(known.chances, logs.exp(), atol=1e-5)
        losses += (-logs[range(12), known.tokens]).tolist()
        entropies += (-(logs.exp() * logs).sum(-1)).tolist()
    gaps = torch.tensor(losses) - torch.tensor(entropies)
    assert abs(float(gaps.mean())) < 4 * float(gaps.std()) / len(gaps) ** 0.5


def test_a_hybrid_drafts_for_itself_and_is_drafted_for(
    tiny_folder: Folder, tiny_tokenizer: Any, texts: Path, tmp_path: Path
) -> None:
    """Recurrent layers on both sides, through the loading path that asks for no port."""
    from tiny_models import build_hybrid

    hybrid = tmp_path / "hybrid"
    build_hybrid(layers=2).save_pretrained(hybrid)
    tiny_tokenizer.save_pretrained(hybrid)
    own = settings(texts, policies=("rift-dyn",), new_tokens=16)
    found = evaluate_acceptance(options(hybrid), own, tmp_path / "self", resamples=100)
    assert found.policy("full").al_macro == 4.0
    llama = str(tiny_folder("llama", num_hidden_layers=1))
    real = own.model_copy(update={"draft": llama, "loop": "real"})
    found = evaluate_acceptance(options(hybrid), real, tmp_path / "other", resamples=100)
    assert all(score.equal == 1.0 for score in found.policies)
