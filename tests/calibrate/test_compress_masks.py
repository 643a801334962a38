"""Compressibility training: its masks are step-by-step decoding, and what it writes is a draft."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import build_tiny, tokens

from ridgefit.calibrate.compress import train_draft
from ridgefit.calibrate.compress.masks import Budget, compressed, selected_columns
from ridgefit.calibrate.compress.rollouts import roll_out
from ridgefit.calibrate.compress.train import Trainer
from ridgefit.corpus.prompts import Prompt
from ridgefit.errors import BadInput
from ridgefit.models.decoder import LoadedDecoder
from ridgefit.models.load import load_decoder
from ridgefit.recipe import TrainDraftSettings
from ridgefit.runtime.draft import POLICIES, CacheSettings, Drafter
from ridgefit.runtime.speculative.pair import Pair

PROMPT, TOKENS = 40, 60


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
@pytest.mark.parametrize(("columns", "share"), [(16, 0.5), (12, 0.25), (10, 0.9)])
def test_one_masked_pass_is_step_by_step_decoding(family: str, columns: int, share: float) -> None:
    model = build_tiny(family).double()
    ids = tokens(TOKENS, seed=4)
    settings = CacheSettings(budget=columns, recent_share=share, observe=6)
    drafter = Drafter(model, POLICIES["rift-stat"], settings)
    drafter.prefill(ids[0, :PROMPT].tolist())
    steps = torch.stack([drafter._feed([int(token)]) for token in ids[0, PROMPT - 1 :]])
    budget = Budget(columns, drafter.recent, 6, 5)
    chosen = selected_columns(model, ids, PROMPT - 1, budget)
    for number, layer in drafter._layers.items():
        assert torch.equal(chosen[number], layer.selection.columns)
    with compressed(model, chosen, PROMPT - 1, drafter.recent):
        logits = model(input_ids=ids, use_cache=False).logits
    found = logits[0, PROMPT - 1 :].detach()
    torch.testing.assert_close(found, steps, rtol=0, atol=1e-10)
    dense = model(input_ids=ids, use_cache=False).logits[0, PROMPT - 1 :].detach()
    assert float((found - dense).abs().max()) > 1e-3
    torch.autograd.backward(logits.square().mean())
    assert all(weight.grad is not None for name, weight in model.named_parameters() if "k_proj" in name)


def pair(seed: int = 1) -> Pair:
    target, draft = (
        build_tiny("llama", num_hidden_layers=2),
        build_tiny("llama", seed=seed, num_hidden_layers=1),
    )
    return Pair(LoadedDecoder(target, None, "target", None), LoadedDecoder(draft, None, "draft", None))


def settings(**changes: Any) -> TrainDraftSettings:
    base: dict[str, Any] = {
        "target": "t",
        "data": ("x",),
        "prompt": 40,
        "rollout": 12,
        "observe": 6,
        "steps": 12,
        "batch": 4,
        "rate": 3e-3,
    }
    return TrainDraftSettings(**{**base, **changes})


def prompts(count: int) -> list[Prompt]:
    return [Prompt(str(i), str(i), "text", tuple(tokens(PROMPT, seed=i)[0].tolist())) for i in range(count)]


def test_rollouts_are_the_targets_greedy_text_and_stop_counting_at_the_end() -> None:
    target = build_tiny("llama", num_hidden_layers=2)
    found = roll_out(target, prompts(3), 12, frozenset(), temperature=0.0, seed=0)
    for row, prompt in zip(found.ids, prompts(3), strict=True):
        wanted = target.generate(
            torch.tensor([prompt.tokens]),
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=[-1],
            pad_token_id=0,
        )
        assert row.tolist() == wanted[0].tolist()
    assert bool((found.weights == 1).all())
    end = int(found.ids[0, PROMPT + 4])
    again = roll_out(target, prompts(3), 12, frozenset([end]), temperature=0.0, seed=0)
    first = again.ids[0, PROMPT:].tolist().index(end)
    assert again.weights[0].tolist() == [1.0] * (first + 1) + [0.0] * (11 - first)


def test_training_lowers_the_loss_and_leaves_the_draft_alone() -> None:
    models = pair()
    before = {name: weight.clone() for name, weight in models.draft.model.state_dict().items()}
    rollouts = roll_out(models.target.model, prompts(4), 12, frozenset(), temperature=0.0, seed=0)
    trainer = Trainer(models, settings(steps=25, rate=1e-2))
    losses = trainer.run(rollouts)
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    after = models.draft.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    trained = trainer.finished(torch.float32).state_dict()
    assert any(not torch.equal(before[name], trained[name]) for name in before)


def test_budgets_are_drawn_with_a_bias_to_high_compression() -> None:
    def drawn(skew: float) -> list[int]:
        trainer = Trainer(pair(), settings(skew=skew, least=0.05, most=0.5))
        return [trainer.budget(1000).columns for _ in range(400)]

    even, biased = drawn(1.0), drawn(3.0)
    assert all(50 <= columns <= 500 for columns in even + biased)
    assert sum(even) / 400 == pytest.approx(275, abs=25)
    assert sum(biased) / 400 == pytest.approx(50 + 450 / 4, abs=25)


def test_the_command_writes_a_draft_that_loads(tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    text = tmp_path / "text.jsonl"
    text.write_text(
        "".join(
            json.dumps({"text": "the cat sat on the mat and the dog " * 12 + str(i)}) + "\n" for i in range(3)
        )
    )
    out = tmp_path / "trained"
    own = settings(target=str(tiny_folder("llama", num_hidden_layers=1)), data=(str(text),), steps=3)
    draft = {
        "ref": str(tiny_folder("llama", num_hidden_layers=1, seed=3)),
        "dtype": "float32",
        "device": "cpu",
    }
    record = train_draft(draft, own, out)
    assert record["updates"] == 3
    found = load_decoder(str(out), dtype="float32", device="cpu")
    assert found.identity()["weights_sample_sha256"] != record["draft"]["weights_sample_sha256"]
    with pytest.raises(BadInput, match="already exists"):
        train_draft(draft, own, out)


@pytest.mark.skipif(importlib.util.find_spec("peft") is not None, reason="peft is installed")
def test_lora_without_peft_is_refused_by_name() -> None:
    with pytest.raises(BadInput, match="peft, which is not installed"):
        Trainer(pair(), settings(method="lora"))


@pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="needs the optional extra 'lora'")
def test_lora_trains_a_few_weights_and_is_merged() -> None:
    models = pair()
    rollouts = roll_out(models.target.model, prompts(4), 12, frozenset(), temperature=0.0, seed=0)
    trainer = Trainer(models, settings(method="lora", rank=4, rate=1e-2))
    assert trainer.trained < sum(w.numel() for w in models.draft.model.parameters()) / 2
    losses = trainer.run(rollouts)
    assert losses[-1] < losses[0]
    assert set(trainer.finished(torch.float32).state_dict()) == set(models.draft.model.state_dict())
