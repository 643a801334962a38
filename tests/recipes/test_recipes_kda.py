"""The KDA that trains the small models against transformers' own recurrence, row by row."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from transformers.models.kimi_linear import modeling_kimi_linear as stock

FOLDER = Path(__file__).parents[2] / "recipes" / "testbed"


@pytest.fixture
def kda(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    import kda

    return kda


@pytest.mark.parametrize("rows", [1, 40, 64, 130])
@pytest.mark.parametrize("fastest", [0.05, 1.0, 6.0])
def test_chunks_equal_the_recurrence(kda, rows: int, fastest: float) -> None:
    generator = torch.Generator().manual_seed(rows)
    shape = (2, rows, 3, 32)
    q, k, v = (torch.randn(shape, generator=generator, requires_grad=True) for _ in range(3))
    g = (-fastest * torch.rand(shape, generator=generator)).requires_grad_()
    beta = torch.rand(shape[:3], generator=generator, requires_grad=True)
    state = torch.randn(2, 3, 32, 32, generator=generator)
    settings = {"g": g, "beta": beta, "initial_state": state, "output_final_state": True}
    want, want_state = stock.recurrent_kimi_delta_attention(q, k, v, use_qk_l2norm_in_kernel=True, **settings)
    found, found_state = kda.chunked_kda(q, k, v, **settings)
    torch.testing.assert_close(found, want, atol=2e-6, rtol=0)
    torch.testing.assert_close(found_state, want_state, atol=1e-5, rtol=0)
    inputs = (q, k, v, g, beta)
    wanted = torch.autograd.grad(want.square().sum() + want_state.sum(), inputs)
    given = torch.autograd.grad(found.square().sum() + found_state.sum(), inputs)
    for one, other in zip(given, wanted, strict=True):
        assert (one - other).abs().max() <= 1e-4 * other.abs().max()


def test_repeated_keys_do_not_blow_up(kda) -> None:
    generator = torch.Generator().manual_seed(0)
    k = torch.ones(1, 128, 1, 32) + 1e-3 * torch.randn(1, 128, 1, 32, generator=generator)
    q, v = (torch.randn(1, 128, 1, 32, generator=generator) for _ in range(2))
    g, beta = torch.zeros(1, 128, 1, 32), torch.ones(1, 128, 1)
    want, _ = stock.recurrent_kimi_delta_attention(
        q, k, v, g=g, beta=beta, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=True
    )
    found, state = kda.chunked_kda(q, k, v, g=g, beta=beta)
    assert state is None
    torch.testing.assert_close(found, want, atol=1e-3, rtol=0)


def test_shifted_convolution(kda) -> None:
    states, weight = torch.randn(2, 6, 9), torch.randn(6, 4)
    want = stock.causal_conv1d_fn(states, weight, None, "silu")
    torch.testing.assert_close(kda.shifted_conv(states, weight, None, "silu"), want, atol=1e-6, rtol=0)
