"""A model that decodes by itself with a compressed cache: its own text, against plain forwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from draft_models import model
from tiny_models import build_tiny, tokens

from ridgefit.errors import BadInput
from ridgefit.runtime.draft import POLICIES, CacheSettings
from ridgefit.runtime.speculative import Chooser, Draft
from ridgefit.runtime.speculative.standalone import Alone, alone, along, writing

PROMPT = tokens(40, seed=2)[0].tolist()


@torch.no_grad()
def next_token(target: Any, ids: list[int]) -> int:
    return int(target(input_ids=torch.tensor([ids])).logits[0, -1].argmax())


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "qwen3_5"])
def test_with_the_whole_cache_it_is_the_models_own_text(family: str) -> None:
    target = model(family)
    ids = torch.tensor([PROMPT])
    wanted = target.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0, eos_token_id=None)
    for policy, budget in (("full", 8), ("rift-dyn", 64)):
        settings = CacheSettings(budget=budget, observe=4, every=4)
        found = alone(Draft(target, POLICIES[policy], settings), PROMPT, 12)
        assert found.tokens == wanted[0, 40:].tolist()


def test_one_layer_with_a_sliding_window_sees_the_newest_tokens_alone() -> None:
    """In one layer, keys and values depend on their own token, and rotary on distances: a plain forward over
    the newest tokens is what the window sees."""
    single = build_tiny("llama", seed=3, num_hidden_layers=1).double()
    found = alone(Draft(single, POLICIES["swa"], CacheSettings(budget=10, observe=4)), PROMPT, 20)
    written = list(PROMPT)
    for token in found.tokens:
        assert token == next_token(single, written[-10:])
        written.append(token)
    assert found.widest == found.budget == 10
    whole = alone(Draft(single, POLICIES["full"]), PROMPT, 20)
    assert whole.tokens != found.tokens  # the window matters, so the test has tested something


@pytest.mark.parametrize("policy", [name for name in POLICIES if name not in ("full", "rift-ada")])
def test_every_policy_keeps_its_budget_and_its_schedule(policy: str) -> None:
    settings = CacheSettings(budget=16, observe=6, every=8)
    found = alone(Draft(model("llama"), POLICIES[policy], settings), PROMPT, 24)
    assert found.widest == found.budget == 16
    expected = {"rift-dyn": 3, "h2o": 24, "oracle": 24}
    assert found.refreshes == expected.get(policy, 0)
    # What the model says token by token about its own text is that text.
    forced = along(Draft(model("llama"), POLICIES[policy], settings), PROMPT, found.tokens)
    assert all(forced.agreed)
    assert (forced.refreshes, forced.widest) == (found.refreshes, found.widest)


def test_it_stops_and_samples() -> None:
    draft = Draft(model("llama"), POLICIES["swa"], CacheSettings(budget=16, observe=6))
    free = alone(draft, PROMPT, 20).tokens
    assert alone(draft, PROMPT, 20, stop=lambda t: t[-1] == free[4]).tokens == free[: free.index(free[4]) + 1]
    seen: list[int] = []
    draws = [
        alone(
            draft,
            PROMPT,
            20,
            chooser=Chooser(sample=True, generator=torch.Generator().manual_seed(seed)),
            emit=seen.extend,
        ).tokens
        for seed in (1, 1, 2)
    ]
    assert draws[0] == draws[1] != draws[2]
    assert seen == [token for row in draws for token in row]


def test_inside_generate() -> None:
    target, reports = model("llama"), list[Alone]()
    settings = CacheSettings(budget=64, observe=4)
    options: dict[str, Any] = {
        "max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "repetition_penalty": 1.7,
    }  # fmt: skip
    ids = torch.tensor([PROMPT])
    found = target.generate(
        ids, **options, custom_generate=writing(POLICIES["rift-stat"], settings, reports.append)
    )
    assert found.tolist() == target.generate(ids, **options).tolist()
    assert reports[0].tokens == found[0, 40:].tolist()
    with pytest.raises(BadInput, match="one prompt at a time"):
        target.generate(ids.repeat(2, 1), **options, custom_generate=writing(POLICIES["rift-stat"], settings))


def test_a_controller_that_reads_acceptance_is_refused() -> None:
    settings = CacheSettings(budget=16, observe=6)
    with pytest.raises(BadInput, match="here is no draft"):
        writing(POLICIES["rift-ada"], settings)
    with pytest.raises(BadInput, match="here is no draft"):
        along(Draft(model("llama"), POLICIES["rift-ada"], settings), PROMPT, [1, 2])
