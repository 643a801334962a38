"""Sums and held-out rows of maps that read more than the state; and the runtime's own bits of the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import TINY, tokens

from ridgefit import cost
from ridgefit.capture import CaptureResult, HeldRows, capture, estimate, load_capture
from ridgefit.capture.inputs import SplitInputs
from ridgefit.capture.watch import Watch
from ridgefit.corpus import TokenStore
from ridgefit.errors import BadInput
from ridgefit.features import FeatureCarry, FeatureInputs, FeatureList
from ridgefit.maps import LayerMap, MapSet
from ridgefit.models import port_of
from ridgefit.moments import Moments
from ridgefit.recipe import CaptureSettings
from ridgefit.runtime import RidgeFill
from ridgefit.runtime.inputs import MappedInputs

NAMES = ("state", "previous-2", "mlp", "lower-2", "average-4", "control-next-1")
WIDTH = 5 * 32 + 48
SPLITS = (2, 4)


def columns(model: Any, ids: torch.Tensor, split: int) -> np.ndarray:
    """`[rows, WIDTH]` of one window, from transformers' own hidden states and a loop."""
    with torch.no_grad():
        states = model(ids[None], output_hidden_states=True).hidden_states
        h, block = states[split][0], model.model.layers[split]
        read = block.post_attention_layernorm(h)
        mlp = block.mlp.act_fn(block.mlp.gate_proj(read)) * block.mlp.up_proj(read)
    rows = range(len(h))
    average = []
    for t in rows:
        weight = 0.5 ** ((t - torch.arange(t + 1).double()) / 4)
        average.append((weight[:, None] * h[: t + 1].double()).sum(0) / weight.sum())
    return torch.cat(
        [
            h,
            torch.stack([h[max(t - 2, 0)] for t in rows]),
            mlp,
            states[split - 2][0],
            torch.stack(average).float(),
            torch.stack([h[min(t + 1, len(h) - 1)] for t in rows]),
        ],
        dim=-1,
    ).numpy()


def check(found: Moments, x: np.ndarray, late: np.ndarray) -> None:
    """Moments against two-pass sums: inputs `[rows, width]`, late layers' inputs `[layers, rows, hidden]`."""
    x, late = x.astype(np.float64), late.astype(np.float64)
    a, b = x - x.mean(0), late - late.mean(1, keepdims=True)
    assert (found.n, found.width) == x.shape
    scale, late_scale = np.sqrt((a**2).sum(0)), np.sqrt((b**2).sum(1))
    assert np.max(np.abs(found.sxx.numpy() - a.T @ a) / np.outer(scale, scale)) < 1e-5
    for at in range(len(late)):
        assert np.max(np.abs(found.sxy[at].numpy() - a.T @ b[at]) / np.outer(scale, late_scale[at])) < 1e-5
    np.testing.assert_allclose(found.mean_x.numpy(), x.mean(0), atol=1e-5 * scale.max())


@pytest.mark.parametrize("batch", [1, 3])
def test_one_pass_sums_every_feature_of_every_split(
    batch: int, captured: Callable[..., CaptureResult], tiny_model: Callable[..., Any], store: TokenStore
) -> None:
    folder = load_capture(
        captured("out", precision="fp64", split=SPLITS, features=NAMES, lead=3, batch=batch).folder
    )
    assert folder.features == NAMES
    model = tiny_model("llama")
    windows = [store.window(number) for number in store.manifest.fit_windows]
    with torch.no_grad():
        states = [
            torch.cat(model(ids[None], output_hidden_states=True).hidden_states[:-1]) for ids in windows
        ]
    for split in SPLITS:
        x = [columns(model, ids, split) for ids in windows]
        late = [part[split:].numpy() for part in states]
        for kind, rows in (("body", slice(3, None)), ("lead", slice(0, 3))):
            check(
                folder.moments(split)[kind],
                np.concatenate([part[rows] for part in x]),
                np.concatenate([part[:, rows] for part in late], axis=1),
            )


def test_held_rows_are_the_same_columns(
    tiny_loaded: Callable[..., Any], tiny_model: Callable[..., Any], store: TokenStore
) -> None:
    held = HeldRows.read(tiny_loaded(), store, SPLITS, rows=10**6, features=FeatureList(NAMES))
    for split in SPLITS:
        wanted = [
            columns(tiny_model("llama"), store.window(number), split)
            for number in store.manifest.held_windows
        ]
        np.testing.assert_allclose(held._inputs[split].numpy(), np.concatenate(wanted), rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", sorted(TINY))
@pytest.mark.parametrize("batch", [1, 3])
@torch.no_grad()
def test_capture_and_runtime_read_the_same_bits(
    name: str, batch: int, tiny_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filled rows of a prompt, as the sums would see them and as the fill sees them."""
    model, split, prompt, tail = tiny_model(name), 4, 33, 9
    port, features = port_of(model), FeatureList([n for n in NAMES if n != "mlp" or name != "qwen3_moe"])
    ids = tokens(prompt, batch=batch)

    reads = SplitInputs(port, [split], features)
    taken: list[torch.Tensor] = []

    def receive(layer: int, state: torch.Tensor) -> None:
        found = reads.at(layer, state)
        if found is not None:
            taken.append(found)

    with Watch(port, reads.first, receive) as watch:
        valid = torch.ones(batch, prompt, dtype=torch.bool)
        reads.open(valid)
        watch.run(ids, valid)

    read, applied = MappedInputs.read, []

    def spy(self: MappedInputs, found: FeatureInputs, carry: FeatureCarry | None = None) -> torch.Tensor:
        applied.append(read(self, found, carry))
        return applied[-1]

    monkeypatch.setattr(MappedInputs, "read", spy)
    item = LayerMap(torch.eye(port.hidden, taken[0].shape[-1]), torch.zeros(port.hidden))
    maps = MapSet.of(dict.fromkeys(range(split, port.n_layers), item), features=features.names)
    with RidgeFill.of(maps).applied(model, tail=tail):
        model(ids)
    rows = prompt - tail
    widths = features.widths(reads.shape(split))
    for feature, one, other in zip(
        features.names, taken[0].split(widths, -1), applied[0].split(widths, -1), strict=True
    ):
        assert torch.equal(one[:, :rows], other[:, :rows]), feature


def test_lower_states_are_let_go_once_read(tiny_model: Callable[..., Any]) -> None:
    """At no time are more states held than the splits above still need."""
    port = port_of(tiny_model("llama"))
    reads = SplitInputs(port, [2, 4], FeatureList(["state", "lower-1", "lower-2"]))
    assert (reads.first, reads.lower_layers) == (0, 4)
    held = []
    with Watch(
        port, reads.first, lambda layer, state: held.append((reads.at(layer, state), reads.held))
    ) as watch:
        valid = torch.ones(1, 5, dtype=torch.bool)
        reads.open(valid)
        watch.run(tokens(5), valid)
    assert [layers for _, layers in held] == [(0,), (0, 1), (2,), (2, 3), (), ()]
    assert [found is not None for found, _ in held] == [False, False, True, False, True, False]


@pytest.mark.parametrize(
    ("name", "features", "words"),
    [
        ("qwen3_moe", ("state", "mlp"), "layer 2 has no single gated MLP"),
        ("llama", ("state", "lower-3"), "lower-3 lies below the first layer when the split is 2"),
        ("llama", ("state", "previus-1"), "did you mean 'previous-1'"),
        ("llama", ("previous-1", "state"), "begin with state"),
    ],
)
def test_features_that_cannot_be_captured(
    name: str,
    features: tuple[str, ...],
    words: str,
    tiny_loaded: Callable[..., Any],
    store: TokenStore,
    tmp_path: Path,
) -> None:
    with pytest.raises(BadInput, match=words):
        capture(tiny_loaded(name), store, CaptureSettings(split=(2,), features=features), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_memory_is_counted_by_each_splits_width(tiny_model: Callable[..., Any]) -> None:
    shape = cost.shape_from_config(tiny_model("llama").config.to_dict())

    def sums(*features: str) -> int:
        settings = CaptureSettings(split=SPLITS, features=features, lead=0)
        return estimate(shape, settings, longest=96, tokens=1000, product="fp64").sums

    assert sums("state") == sum(cost.moments_bytes(shape, split) for split in SPLITS)
    assert sums(*NAMES) == sum(cost.moments_bytes(shape, split, width=WIDTH) for split in SPLITS)
