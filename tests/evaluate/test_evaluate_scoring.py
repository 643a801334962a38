"""Losses, continuations and divergences against transformers' own forward over the whole text."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from scipy.special import rel_entr

from ridgefit.evaluate.agreement import exact_steps, kl, steps
from ridgefit.evaluate.scoring import forced, generate, greedy, losses, prefill
from ridgefit.models import LoadedModel


@pytest.fixture
def text() -> torch.Tensor:
    return torch.randint(0, 256, (90,), generator=torch.Generator().manual_seed(1))


def whole_logits(loaded: LoadedModel, ids: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        return loaded.model(input_ids=ids[None], use_cache=False).logits[0].double().numpy()


@pytest.mark.parametrize("target", [1, 2, 30])
def test_losses_equal_one_forward_over_all(tiny: LoadedModel, text: torch.Tensor, target: int) -> None:
    prompt, scored = text[:60], text[60 : 60 + target]
    logits = whole_logits(tiny, text[: 60 + target])[59:-1]
    shifted = logits - logits.max(axis=1, keepdims=True)
    expected = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(target), scored.numpy()]
    np.testing.assert_allclose(losses(tiny.model, prompt, scored).numpy(), expected, atol=2e-5)


def test_pieces_do_not_change_the_logits(
    tiny: LoadedModel, text: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, scored = text[:50], text[50:]
    whole = torch.cat(list(forced(tiny.model, prefill(tiny.model, prompt), scored)))
    assert whole.shape == (40, 256)
    for piece in (1, 7, 39):
        blocks = list(forced(tiny.model, prefill(tiny.model, prompt), scored, piece=piece))
        assert max(len(block) for block in blocks) == piece
        torch.testing.assert_close(torch.cat(blocks), whole, atol=1e-4, rtol=0)


def test_greedy_equals_generate(tiny: LoadedModel, text: torch.Tensor) -> None:
    prompt = text[:40]
    own = greedy(tiny.model, prefill(tiny.model, prompt), 12)
    assert own.tolist() == generate(tiny.model, prompt, 12).tolist()
    ids = prompt
    for token in own:  # and both equal the most likely token of a forward over the whole text, step by step
        assert int(token) == int(whole_logits(tiny, ids)[-1].argmax())
        ids = torch.cat([ids, token[None]])


def test_generate_ignores_the_checkpoints_sampling(tiny: LoadedModel, text: torch.Tensor) -> None:
    settings = tiny.model.generation_config
    before = settings.to_dict()
    head = tiny.model.lm_head.weight
    try:
        head.mul_(0.02)  # nearly even odds: a sampled or penalised answer is another one
        plain = greedy(tiny.model, prefill(tiny.model, text[:40]), 30).tolist()
        for change in ({"do_sample": True}, {"repetition_penalty": 3.0}, {"no_repeat_ngram_size": 1}):
            settings.update(**change)
            assert generate(tiny.model, text[:40], 30).tolist() == plain
            settings.update(**before)
    finally:
        head.div_(0.02)
        settings.update(**before)


def test_one_call_equals_one_token_at_a_time(tiny: LoadedModel, text: torch.Tensor) -> None:
    exact = exact_steps(tiny.model, text[:40], nullcontext, 20)
    slow = steps(tiny.model, text[:40], nullcontext, exact.continuation, piece=1)
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
