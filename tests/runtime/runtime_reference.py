"""The fill done by hand with stock transformers calls only: the oracle of the runtime's tests.

Exact rows: the stock model continues from a cache whose late layers were written from predicted inputs.
Those are written by the stock layer itself, run on the predicted input instead of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from tiny_models import LAYERS
from transformers import DynamicCache

from ridgefit.maps import LayerMap, MapSet
from ridgefit.models import port_of

Predict = Callable[[int, torch.Tensor], torch.Tensor]
HIDDEN = 32


def random_maps(split: int, *, seed: int = 0, layers: int = LAYERS) -> MapSet:
    """Maps near the identity, rounded to bf16 as files hold them."""
    generator = torch.Generator().manual_seed(seed)

    def one() -> LayerMap:
        noise = torch.randn(HIDDEN, HIDDEN, generator=generator) / HIDDEN**0.5
        bias = 0.3 * torch.randn(HIDDEN, generator=generator)
        return LayerMap((torch.eye(HIDDEN) + 0.4 * noise).bfloat16(), bias.bfloat16())

    return MapSet.of({layer: one() for layer in range(split, layers)})


def predict_with(maps: MapSet) -> Predict:
    return lambda layer, h: h @ maps.layer(layer).weight.float().T + maps.layer(layer).bias.float()


def identity(layer: int, h: torch.Tensor) -> torch.Tensor:
    return h


@torch.no_grad()
def filled_cache(
    model: Any, ids: torch.Tensor, split: int, tail: int, predict: Predict, *, sinks: int = 0, **inputs: Any
) -> DynamicCache:
    """Cache of the prefix, every column kept: exact below the split, written from `predict` above."""
    prefix = ids.shape[1] - tail
    exact = DynamicCache()
    state = model(ids, cache=exact, output_hidden_states=True, **inputs).hidden_states[split]
    mask = inputs.get("attention_mask", torch.ones_like(ids))
    sink = (mask.cumsum(1) <= sinks) & (mask == 1)
    sink = sink[:, None, :prefix, None]
    by_hand = DynamicCache()
    for layer, held in enumerate(exact.layers):
        keys, values = held.keys[:, :, :prefix], held.values[:, :, :prefix]
        if layer >= split:
            written = DynamicCache()
            replaced = (
                port_of(model)
                .layers[layer]
                .register_forward_pre_hook(partial(_instead, predict(layer, state)))
            )
            model(ids, cache=written, **inputs)
            replaced.remove()
            keys = torch.where(sink, keys, written.layers[layer].keys[:, :, :prefix])
            values = torch.where(sink, values, written.layers[layer].values[:, :, :prefix])
        by_hand.update(keys, values, layer)
    return by_hand


@torch.no_grad()
def continued(model: Any, cache: Any, ids: torch.Tensor, **inputs: Any) -> torch.Tensor:
    """Logits of further tokens on a cache, by the stock model."""
    logits: torch.Tensor = model(ids, cache=cache, **inputs).logits
    return logits


def hooks(model: torch.nn.Module) -> dict[str, Any]:
    """Every attribute of every module, and how many entries (hooks, buffers, modules) it holds."""
    return {
        name: [(key, _size(value)) for key, value in sorted(vars(m).items())]
        for name, m in model.named_modules()
    }


def _size(value: Any) -> int | None:
    return len(value) if isinstance(value, dict) else None


def _instead(state: torch.Tensor, module: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return (state, *args[1:])


class OneRow:
    """A cache for one row: takes its key and value, hands back what the row may see."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, column: int, first: int) -> None:
        self.held = (keys, values)
        self.column, self.first = column, first

    def update(self, keys: torch.Tensor, values: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        for held, new in zip(self.held, (keys, values), strict=True):
            held[:, :, self.column : self.column + 1] = new
        return tuple(held[:, :, self.first : self.column + 1] for held in self.held)


@torch.no_grad()
def row_by_row(
    model: Any, ids: torch.Tensor, split: int, predict: Predict, rows: list[int]
) -> tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]:
    """One unpadded prompt, its late layers run by stock code for one row at a time, no mask anywhere.

    Args:
        rows: columns that run every layer, ascending.

    Returns:
        Last hidden state before the head of these rows `[1, rows, hidden]`, and each late layer's keys and
        values of all columns, filled and exact.
    """
    port = port_of(model)
    state = model(ids, output_hidden_states=True).hidden_states[split]
    hidden = {row: state[:, row : row + 1] for row in rows}
    caches = []
    for layer in range(split, port.n_layers):
        rotary = port.position_embeddings(layer, state, torch.arange(ids.shape[1])[None])
        keys, values = (part.clone() for part in port.write(layer, predict(layer, state), rotary))
        window = port.window(layer)
        for row in rows:
            first = 0 if window is None else max(0, row - window + 1)
            own = tuple(part[:, row : row + 1] for part in rotary)
            hidden[row] = port.layers[layer](
                hidden[row],
                attention_mask=None,
                position_embeddings=own,
                position_ids=torch.tensor([[row]]),
                cache=OneRow(keys, values, row, first),
            )
        caches.append((keys, values))
    return torch.cat([hidden[row] for row in rows], dim=1), caches
