"""What cannot be drafted is refused in one sentence, before anything is decoded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from draft_models import SETTINGS, draft, model
from tiny_models import build_tiny, tokens

from ridgefit.errors import BadInput
from ridgefit.models.rollback import new_cache
from ridgefit.runtime.draft import POLICIES, CacheSettings, policy_of
from ridgefit.runtime.speculative import Draft, decode, drafting

PROMPT = tokens(30, seed=1)[0].tolist()


def all_sliding() -> Any:
    return build_tiny("gemma3", num_hidden_layers=2, layer_types=["sliding_attention"] * 2)


def small_vocabulary() -> Any:
    return build_tiny("llama", vocab_size=300, num_hidden_layers=1)


CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "window above budget": (
        lambda: CacheSettings(budget=16, window=20),
        "window of 20 columns is above the budget of 16",
    ),
    "window above a share": (
        lambda: decode(
            model("llama"),
            Draft(model("llama"), POLICIES["rift-stat"], CacheSettings(keep_ratio=0.2, window=20)),
            PROMPT,
            4,
        ),
        "window of 20 columns is above the budget of 6",
    ),
    "observed window": (
        lambda: decode(model("llama"), draft(model("llama"), "snapkv", CacheSettings(budget=16)), PROMPT, 4),
        "window of 64 observed columns is above the budget of 16",
    ),
    "no room beside sinks": (
        lambda: decode(
            model("llama"), draft(model("llama"), "streaming", CacheSettings(budget=4)), PROMPT, 4
        ),
        "no room beside 4 sinks",
    ),
    "budget and ratio": (lambda: CacheSettings(budget=8, keep_ratio=0.5), "a budget or a keep ratio"),
    "neither": (CacheSettings, "a budget or a keep ratio"),
    "ratio": (lambda: CacheSettings(keep_ratio=1.5), "no share"),
    "tiny ratio": (
        lambda: decode(
            model("llama"), draft(model("llama"), "swa", CacheSettings(keep_ratio=0.01)), PROMPT, 4
        ),
        "leaves 0 columns of 30 tokens",
    ),
    "kernel": (lambda: CacheSettings(budget=8, kernel=4), "no middle"),
    "vocabularies": (
        lambda: decode(model("llama"), draft(small_vocabulary(), "full"), PROMPT, 4),
        "vocabulary of 320 tokens and the draft one of 300",
    ),
    "all sliding": (
        lambda: decode(all_sliding(), draft(all_sliding(), "rift-stat"), PROMPT, 4),
        "no layer of the draft model attends to its whole context",
    ),
    "batch of 2": (
        lambda: model("llama").generate(
            torch.tensor([PROMPT, PROMPT]),
            max_new_tokens=4,
            pad_token_id=0,
            custom_generate=drafting(draft(model("llama"), "full")),
        ),
        "one prompt at a time, and 2 were given",
    ),
    "padding": (
        lambda: model("llama").generate(
            torch.tensor([PROMPT]),
            attention_mask=torch.tensor([[0] + [1] * 29]),
            max_new_tokens=4,
            pad_token_id=0,
            custom_generate=drafting(draft(model("llama"), "full")),
        ),
        "padded",
    ),
    "no controller": (
        lambda: decode(model("llama"), Draft(model("llama"), POLICIES["rift-ada"], SETTINGS), PROMPT, 4),
        "needs a controller",
    ),
    "too many drafted": (
        lambda: decode(model("llama"), draft(model("llama"), "full", drafted=17), PROMPT, 4),
        "draft 1 to 16",
    ),
    "empty prompt": (lambda: decode(model("llama"), draft(model("llama"), "full"), [], 4), "is empty"),
    "unknown policy": (lambda: policy_of("rift"), "known are full, rift-stat"),
}


@pytest.mark.parametrize("case", CASES)
def test_refused(case: str) -> None:
    call, sentence = CASES[case]
    with pytest.raises(BadInput) as caught:
        call()
    assert sentence in str(caught.value)


def test_an_all_sliding_draft_works_uncompressed() -> None:
    found = decode(all_sliding(), draft(all_sliding(), "full"), PROMPT, 12)
    assert all(r.accepted == r.drafted for r in found.rounds)


def test_one_token_prompts_work() -> None:
    found = decode(model("qwen3"), draft(model("qwen3"), "rift-stat"), [9], 12)
    assert len(found.tokens) == 12


def test_a_layer_that_cannot_go_back_is_named() -> None:
    from transformers import FalconH1Config

    class Other:
        config = FalconH1Config(num_hidden_layers=2)

    with pytest.raises(BadInput, match="cannot be taken back exactly"):
        new_cache(Other())
