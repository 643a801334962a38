"""The linearised write against the Jacobian of what ports write, which other tests hold against the cache."""

from __future__ import annotations

import pytest
import torch
from tiny_models import TINY, build_tiny, tokens

from ridgefit.models import port_of

NAMES = sorted(TINY)


def across(vectors: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
    """What is left of `vectors` `[..., n]` without their part along `direction` `[..., n]`."""
    share = (vectors * direction).sum(-1, keepdim=True) / direction.square().sum(-1, keepdim=True)
    return vectors - share * direction


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layer", [1, 4])
def test_the_metric_is_the_jacobian_but_for_what_norms_take_out(name: str, layer: int) -> None:
    """A norm's derivative lacks the row's own direction, and a key norm's the key's own; the rest agrees."""
    port = port_of(build_tiny(name))
    with torch.no_grad():
        state = port.run_layers(0, layer, port.decoder.embed_tokens(tokens(12)))[0]
    row = state[7]
    metric = port.write_metric(layer, row[None])

    def write(inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = port.written(layer, inputs[None])
        return found.keys[:, 0].flatten(), found.values[:, 0].flatten()

    slopes = torch.autograd.functional.jacobian(write, row)
    directions = across(torch.randn(20, port.hidden, generator=torch.Generator().manual_seed(1)), row)
    scale = slopes[0].abs().max(), slopes[1].abs().max()
    values, exact = directions @ metric.values.T, directions @ slopes[1].T
    torch.testing.assert_close(values, exact, rtol=1e-4, atol=1e-4 * float(scale[1]))
    keys, exact = directions @ metric.keys.T, directions @ slopes[0].T
    if port.qk_norm:
        own = write(row)[0]
        heads = (1, -1) if port.family == "olmo2" else (port.kv_heads, port.head_dim)
        own = own.view(heads)
        assert float((keys - exact).abs().max()) > 1e-3 * float(scale[0]), "the key norm takes something out"
        keys, exact = (
            across(found.view(20, *heads), own.expand(20, *own.shape)) for found in (keys - exact, exact * 0)
        )
    torch.testing.assert_close(keys, exact, rtol=1e-4, atol=2e-4 * float(scale[0]))


@pytest.mark.parametrize("name", ["llama", "qwen3", "olmo2"])
def test_a_massive_row_does_not_move_it(name: str) -> None:
    port = port_of(build_tiny(name))
    rows = torch.randn(41, port.hidden, generator=torch.Generator().manual_seed(2))
    massive = rows.clone()
    massive[0] *= 1e3
    for found, wanted in zip(port.write_metric(2, massive), port.write_metric(2, rows), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0.05, atol=1e-3)
