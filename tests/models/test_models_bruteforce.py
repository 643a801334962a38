"""Any subset of rows, against a layer written out in numpy fp64, one row and one head at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import TINY, WINDOW, build_tiny

from ridgefit.models import Rows, port_of

Array = np.ndarray[Any, np.dtype[np.float64]]
COLUMNS, HIDDEN, HEADS, KV, WIDTH = 21, 32, 4, 2, 8


def norm(x: Array, weight: Array, eps: float, plus: float) -> Array:
    return x / np.sqrt((x * x).mean() + eps) * (plus + weight)


def gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def rotate(vector: Array, position: int, theta: float) -> Array:
    half = WIDTH // 2
    out = vector.copy()
    for i in range(half):
        angle = position / theta ** (2 * i / WIDTH)
        a, b = vector[i], vector[i + half]
        out[i], out[i + half] = a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)
    return out


class Written:
    """One layer of Llama or Gemma 3, from its weights."""

    def __init__(self, layer: Any, *, gemma: bool, theta: float) -> None:
        self.w = {name: p.detach().double().numpy() for name, p in layer.named_parameters()}
        self.gemma, self.theta, self.plus = gemma, theta, 1.0 if gemma else 0.0
        self.act = gelu_tanh if gemma else silu

    def norm(self, x: Array, name: str) -> Array:
        return norm(x, self.w[f"{name}.weight"], 1e-6, self.plus)

    def project(self, x: Array, name: str, heads: int) -> Array:
        out = (self.w[f"self_attn.{name}_proj.weight"] @ self.norm(x, "input_layernorm")).reshape(
            heads, WIDTH
        )
        if self.gemma and name != "v":
            out = np.stack([self.norm(head, f"self_attn.{name}_norm") for head in out])
        return out

    def key(self, x: Array, position: int) -> Array:
        return np.stack([rotate(head, position, self.theta) for head in self.project(x, "k", KV)])

    def row(self, x: Array, position: int, keys: list[Array], values: list[Array]) -> Array:
        """Output of one row that sees `keys` and `values`, its own among them."""
        attended = np.zeros((HEADS, WIDTH))
        for head, query in enumerate(self.project(x, "q", HEADS)):
            query = rotate(query, position, self.theta)
            kv = head // (HEADS // KV)
            score = np.array([query @ key[kv] / np.sqrt(WIDTH) for key in keys])
            share = np.exp(score - score.max())
            share /= share.sum()
            for weight, value in zip(share, values, strict=True):
                attended[head] += weight * value[kv]
        out = self.w["self_attn.o_proj.weight"] @ attended.ravel()
        x = x + (self.norm(out, "post_attention_layernorm") if self.gemma else out)
        read = self.norm(x, "pre_feedforward_layernorm" if self.gemma else "post_attention_layernorm")
        gate, up = self.w["mlp.gate_proj.weight"] @ read, self.w["mlp.up_proj.weight"] @ read
        out = self.w["mlp.down_proj.weight"] @ (self.act(gate) * up)
        return x + (self.norm(out, "post_feedforward_layernorm") if self.gemma else out)


SUBSETS = {
    "tail": Rows(COLUMNS, runs=((15, 21),)),
    "sinks and tail": Rows(COLUMNS, runs=((0, 2), (15, 21))),
    "scattered": Rows(COLUMNS, columns=torch.tensor([[0, 3, 4, 11, 20]])),
    "per sample": Rows(COLUMNS, columns=torch.tensor([[1, 9, 10, 19], [5, 6, 13, 20]])),
    "last": Rows(COLUMNS, runs=((20, 21),)),
    "all": Rows.everything(COLUMNS),
}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("subset", SUBSETS)
@pytest.mark.parametrize(("name", "layer"), [("llama", 3), ("gemma3", 3), ("gemma3", 5)])
@pytest.mark.parametrize("pads", [None, (0, 4)])
def test_rows_against_loops(
    name: str, layer: int, subset: str, attention: str, pads: tuple[int, int] | None
) -> None:
    model = build_tiny(name, attention=attention)
    port, rows = port_of(model), SUBSETS[subset]
    config, gemma = port.config, name == "gemma3"
    theta = (
        config.rope_parameters[port.kind(layer)]["rope_theta"]
        if gemma
        else config.rope_parameters["rope_theta"]
    )
    written = Written(port.layers[layer], gemma=gemma, theta=theta)

    generator = torch.Generator().manual_seed(7)
    states = torch.randn(2, COLUMNS, HIDDEN, generator=generator)
    keys = torch.randn(2, KV, COLUMNS, WIDTH, generator=generator)
    values = torch.randn(2, KV, COLUMNS, WIDTH, generator=generator)
    shift = torch.tensor(pads or (0, 0))[:, None]
    positions = (torch.arange(COLUMNS)[None] - shift).clamp(min=0)
    valid = None if pads is None else torch.arange(COLUMNS)[None] >= shift
    before = keys.double().numpy().copy(), values.double().numpy().copy()
    with torch.no_grad():
        found = port.run_rows(
            layer, rows.take(states, 1), rows, keys, values, position_ids=positions, valid=valid
        )
    x = states.double().numpy()
    index = rows.index().expand(2, -1).tolist()
    for b in range(2):
        key = [before[0][b, :, c] for c in range(COLUMNS)]
        value = [before[1][b, :, c] for c in range(COLUMNS)]
        for column in index[b]:
            key[column] = written.key(x[b, column], int(positions[b, column]))
            value[column] = written.project(x[b, column], "v", KV)
        np.testing.assert_allclose(keys[b].numpy(), np.stack(key, 1), atol=2e-5)
        np.testing.assert_allclose(values[b].numpy(), np.stack(value, 1), atol=2e-5)
        for place, column in enumerate(index[b]):
            pad = pads[b] if pads else 0
            if column < pad:
                assert bool(found[b, place].isfinite().all())
                continue
            window = WINDOW if port.kind(layer) == "sliding_attention" else COLUMNS
            seen = [c for c in range(pad, column + 1) if c > column - window]
            wanted = written.row(
                x[b, column], int(positions[b, column]), [key[c] for c in seen], [value[c] for c in seen]
            )
            np.testing.assert_allclose(found[b, place].numpy(), wanted, atol=5e-5)


def test_the_written_layer_is_the_models_own() -> None:
    """The oracle by itself: all rows, causal, equals transformers' layer in the whole model."""
    assert {"llama", "gemma3"} <= set(TINY)
    model = build_tiny("llama")
    ids = torch.arange(3, 3 + 9)[None]
    with torch.no_grad():
        states = model(ids, output_hidden_states=True).hidden_states
    layer = Written(model.model.layers[2], gemma=False, theta=1e4)
    x = states[2][0].double().numpy()
    keys = [layer.key(row, c) for c, row in enumerate(x)]
    values = [layer.project(row, "v", KV) for row in x]
    for c, row in enumerate(x):
        out = layer.row(row, c, keys[: c + 1], values[: c + 1])
        np.testing.assert_allclose(states[3][0, c].numpy(), out, atol=2e-5)
