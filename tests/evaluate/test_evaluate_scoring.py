"""Losses, continuations and divergences against transformers' own forward over the whole text."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import rel_entr

from ridgefit.evaluate.agreement import exact_steps, kl, steps_along
from ridgefit.evaluate.scoring import answers, end_tokens, forced, greedy, losses, prefill
from ridgefit.models import LoadedModel


@pytest.fixture
def text() -> torch.Tensor:
    return torch.randint(0, 256, (90,), generator=torch.Generator().manual_seed(1))


def whole_logits(loaded: LoadedModel, ids: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        return loaded.model(input_ids=ids[None], use_cache=False).logits[0].double().numpy()


def whole_losses(loaded: LoadedModel, prompt: torch.Tensor, scored: torch.Tensor) -> np.ndarray:
    """From one forward over prompt and scored tokens."""
    logits = whole_logits(loaded, torch.cat([prompt, scored]))[prompt.numel() - 1 : -1]
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(scored.numel()), scored.numpy()]


def plain_generate(model: Any, prompt: torch.Tensor, count: int, **more: Any) -> list[int]:
    """transformers' own greedy answer to one prompt."""
    ids = prompt[None]
    answer = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, **more
    )
    return answer[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("target", [1, 2, 30])
def test_losses_equal_one_forward_over_all(tiny: LoadedModel, text: torch.Tensor, target: int) -> None:
    prompt, scored = text[:60], text[60 : 60 + target]
    (found,) = losses(tiny.model, [prompt], [scored])
    np.testing.assert_allclose(found.numpy(), whole_losses(tiny, prompt, scored), atol=2e-5)


def test_losses_of_a_padded_batch_equal_one_forward_over_each(tiny: LoadedModel, text: torch.Tensor) -> None:
    """Prompts and targets of different lengths, the longest prompt not having the longest target."""
    cuts = [(0, 40, 60), (10, 60, 90), (30, 47, 48), (5, 80, 83)]
    prompts, targets = [text[a:b] for a, b, _ in cuts], [text[b:c] for _, b, c in cuts]
    found = losses(tiny.model, prompts, targets)
    for own, prompt, target in zip(found, prompts, targets, strict=True):
        np.testing.assert_allclose(own.numpy(), whole_losses(tiny, prompt, target), atol=2e-5)


def test_pieces_do_not_change_the_logits(tiny: LoadedModel, text: torch.Tensor) -> None:
    prompt, scored = text[:50], text[50:]
    whole = torch.cat(list(forced(prefill(tiny.model, [prompt]), scored[None])), dim=1)
    assert whole.shape == (1, 40, 256)
    for piece in (1, 7, 39):
        blocks = list(forced(prefill(tiny.model, [prompt]), scored[None], piece=piece))
        assert max(block.shape[1] for block in blocks) == piece
        torch.testing.assert_close(torch.cat(blocks, dim=1), whole, atol=1e-4, rtol=0)


def test_greedy_equals_generate(tiny: LoadedModel, text: torch.Tensor) -> None:
    prompt = text[:40]
    own = greedy(prefill(tiny.model, [prompt]), 12)[0]
    assert own.tolist() == plain_generate(tiny.model, prompt, 12)
    ids = prompt
    for token in own:  # and both equal the most likely token of a forward over the whole text, step by step
        assert int(token) == int(whole_logits(tiny, ids)[-1].argmax())
        ids = torch.cat([ids, token[None]])


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
def test_answers_of_a_padded_batch_equal_generate(tiny_model: Callable[..., Any], name: str) -> None:
    """End tokens chosen so that some answers stop early; each stops by itself."""
    model = tiny_model(name)
    text = torch.randint(3, 318, (60,), generator=torch.Generator().manual_seed(4))
    prompts = [text[:50], text[7:31], text[20:60], text[:13]]
    free = [plain_generate(model, prompt, 15, eos_token_id=None) for prompt in prompts]
    ends = frozenset({free[0][4], free[2][9]})
    expected = [
        plain_generate(model, prompt, 15, eos_token_id=list(ends), pad_token_id=0) for prompt in prompts
    ]
    assert len({len(answer) for answer in expected}) > 1
    assert answers(prefill(model, prompts), 15, ends) == expected

    def enough(row: int, ids: list[int]) -> bool:
        return len(ids) == row + 1

    assert answers(prefill(model, prompts), 15, frozenset(), enough) == [
        answer[: row + 1] for row, answer in enumerate(free)
    ]


@pytest.mark.parametrize(("setting", "expected"), [(None, set()), (7, {7}), ([7, 9], {7, 9})])
def test_end_tokens_are_the_models(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch, setting: Any, expected: set[int]
) -> None:
    monkeypatch.setattr(tiny.model.generation_config, "eos_token_id", setting)
    assert end_tokens(tiny.model) == expected


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_fork_goes_its_own_way(tiny_model: Callable[..., Any], name: str) -> None:
    """gemma3: windowed layers forget, so a fork cannot be had by taking tokens back."""
    model = tiny_model(name)
    text = torch.randint(3, 318, (60,), generator=torch.Generator().manual_seed(4))
    prompts = [text[:40], text[10:35]]
    state = prefill(model, prompts)
    first = state.fork().feed(text[None, :9].expand(2, 9))
    again = state.fork().feed(text[None, :9].expand(2, 9))
    assert torch.equal(first, again)
    assert torch.equal(greedy(state, 6), greedy(prefill(model, prompts), 6))


def test_one_call_equals_one_token_at_a_time(tiny: LoadedModel, text: torch.Tensor) -> None:
    (exact,) = exact_steps(tiny.model, [text[:40]], nullcontext, 20)
    (slow,) = steps_along(tiny.model, [text[:40]], nullcontext, exact.continuation[None], piece=1)
    torch.testing.assert_close(slow, exact.logits, atol=1e-4, rtol=0)
    assert (slow.argmax(dim=1) == exact.logits.argmax(dim=1)).all()
    assert exact.logits.argmax(dim=1).tolist() == exact.continuation.tolist()


def test_kl_equals_scipy() -> None:
    rng = np.random.default_rng(0)
    left, right = rng.normal(0, 4, (40, 300)), rng.normal(0, 4, (40, 300))
    p = np.exp(left) / np.exp(left).sum(axis=1, keepdims=True)
    q = np.exp(right) / np.exp(right).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(
        kl(torch.tensor(left), torch.tensor(right)).numpy(), rel_entr(p, q).sum(axis=1), rtol=1e-10
    )


def test_kl_of_nearly_equal_rows_is_not_noise() -> None:
    """Second order in the difference: 1e-4 apart in fp32 logits gives about 1e-9, not rounding."""
    left = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0))
    shift = 1e-3 * torch.randn(3, 1000, generator=torch.Generator().manual_seed(1))
    p = torch.softmax(left.double(), dim=1)
    moved = (left + shift).double() - left.double()
    expected = 0.5 * ((p * moved**2).sum(1) - (p * moved).sum(1) ** 2)
    torch.testing.assert_close(kl(left, left + shift), expected, rtol=1e-3, atol=0)
    assert (kl(left, left) == 0).all()


def test_kl_of_excluded_tokens_and_of_nan() -> None:
    left = torch.tensor([[1.0, 2.0, -torch.inf], [1.0, torch.nan, 2.0]])
    right = torch.tensor([[2.0, 1.0, -torch.inf], [1.0, 1.0, 2.0]])
    found = kl(left, right)
    assert found[0] == pytest.approx(float(kl(left[:1, :2], right[:1, :2])[0]))
    assert torch.isnan(found[1])
