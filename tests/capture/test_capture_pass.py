"""The pass itself: sums of the rows that the model really computed, and of no others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ridgefit.capture import CaptureResult, capture, load_capture
from ridgefit.capture.watch import Watch
from ridgefit.corpus import TokenStore
from ridgefit.errors import BadInput, CheckFailed
from ridgefit.moments import Moments
from ridgefit.recipe import CaptureSettings


def states(model: Any, store: TokenStore) -> list[np.ndarray]:
    """Every fit window's layer inputs `[layers, rows, hidden]`, from transformers' own hidden states."""
    found = []
    for window in store.manifest.fit_windows:
        with torch.no_grad():
            output = model(store.window(window)[None], output_hidden_states=True)
        found.append(torch.cat(output.hidden_states[:-1]).double().numpy())
    return found


def check(found: Moments, rows: np.ndarray, split: int, bound: float) -> None:
    """Moments against two-pass sums over stored rows `[layers, rows, hidden]`."""
    centred = rows - rows.mean(1, keepdims=True)
    x = centred[split]
    assert found.n == rows.shape[1]
    deviations = np.sqrt((centred**2).sum(1))
    for at, layer in enumerate(range(split, len(rows))):
        scale = np.outer(deviations[split], deviations[layer])
        assert np.max(np.abs(found.sxy[at].numpy() - x.T @ centred[layer]) / scale) < bound
        assert np.max(np.abs(found.syy[at].numpy() / deviations[layer] ** 2 - 1)) < bound
        spread = deviations[layer] / np.sqrt(found.n)
        assert np.max(np.abs(found.mean_y[at].numpy() - rows[layer].mean(0)) / spread) < max(bound, 1e-6)
    scale = np.outer(deviations[split], deviations[split])
    assert np.max(np.abs(found.sxx.numpy() - x.T @ x) / scale) < bound
    assert np.max(np.abs((found.sxx - found.sxx.T).numpy()) / scale) < 1e-14


@pytest.mark.parametrize(("precision", "bound"), [("fp64", 1e-10), ("fast", 1e-6)])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_sums_are_those_of_stored_activations(
    name: str,
    precision: str,
    bound: float,
    tiny_loaded: Callable[..., Any],
    tiny_model: Callable[..., Any],
    store: TokenStore,
    tmp_path: Path,
) -> None:
    settings = CaptureSettings(split=(4, 2), precision=precision, lead=3)
    result = capture(tiny_loaded(name), store, settings, tmp_path / "out")
    rows = states(tiny_model(name), store)
    folder = load_capture(tmp_path / "out")
    assert folder.splits == (2, 4)
    assert result.record.tokens == sum(part.shape[1] for part in rows)
    for split in folder.splits:
        parts = folder.moments(split)
        check(parts["body"], np.concatenate([part[:, 3:] for part in rows], 1), split, bound)
        check(parts["lead"], np.concatenate([part[:, :3] for part in rows], 1), split, bound)
        check(folder.rows(split), np.concatenate(rows, 1), split, bound)
        assert folder.rows(split, drop_lead=True).n == parts["body"].n


def test_padding_never_enters(captured: Callable[..., CaptureResult]) -> None:
    """Batches of windows of different lengths give the sums of single windows, to rounding."""
    one = load_capture(captured("one", precision="fp64").folder)
    for batch in (3, 7):
        many = load_capture(captured(f"batch-{batch}", precision="fp64", batch=batch).folder)
        for kind in ("body", "lead"):
            left, right = one.moments(2)[kind], many.moments(2)[kind]
            assert left.n == right.n
            for (name, mine), (_, other) in zip(left.tensors(), right.tensors(), strict=True):
                assert (mine - other).abs().max() < 2e-5 * mine.abs().max(), name


def test_lead_zero_keeps_no_rows_apart(captured: Callable[..., CaptureResult]) -> None:
    folder = load_capture(captured("out", lead=0, split=(3,)).folder)
    assert set(folder.moments(3)) == {"body"}
    assert folder.moments(3)["body"].n == folder.record.tokens
    with pytest.raises(BadInput, match="lead 0"):
        folder.rows(3, drop_lead=True)


def test_the_model_is_left_as_it_was(
    captured: Callable[..., CaptureResult], tiny_loaded: Callable[..., Any]
) -> None:
    port = tiny_loaded().port
    before = {name: value.clone() for name, value in port.model.state_dict().items()}
    captured("out")
    assert all(torch.equal(before[name], value) for name, value in port.model.state_dict().items())
    for module in port.model.modules():
        assert not module._forward_pre_hooks
        assert not module._forward_hooks


def test_the_head_and_the_cache_are_left_out(
    tiny_loaded: Callable[..., Any], random_tokens: Callable[..., torch.Tensor]
) -> None:
    port = tiny_loaded().port
    calls = []
    head = port.model.lm_head.register_forward_hook(lambda *_: calls.append("head"))
    end = port.decoder.register_forward_hook(lambda _m, _a, output: calls.append(output.past_key_values))
    ids = random_tokens(9)
    try:
        with Watch(port, 1, lambda *_: None) as watch:
            watch.run(ids, torch.ones_like(ids, dtype=torch.bool))
    finally:
        head.remove()
        end.remove()
    assert calls == [None]


class _Twice(torch.nn.Module):
    """Runs a layer `times` times."""

    def __init__(self, layer: torch.nn.Module, times: int) -> None:
        super().__init__()
        self.layer, self.times = layer, times

    def forward(self, hidden: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        for _ in range(self.times):
            hidden = self.layer(hidden, **kwargs)
        return hidden


@pytest.mark.parametrize(("times", "words"), [(0, "did not run"), (2, "ran more than once")])
def test_a_layer_that_does_not_run_once_is_named(
    times: int, words: str, tiny_loaded: Callable[..., Any], random_tokens: Callable[..., torch.Tensor]
) -> None:
    port = tiny_loaded().port
    ids = random_tokens(5)
    layers = port.decoder.layers
    kept = layers[3]
    layers[3] = _Twice(kept, times)
    try:
        with pytest.raises(CheckFailed, match=f"layer 3 {words}"), Watch(port, 2, lambda *_: None) as watch:
            watch.run(ids, torch.ones_like(ids, dtype=torch.bool))
    finally:
        layers[3] = kept
    assert not kept._forward_pre_hooks


def test_a_value_that_is_not_finite_is_traced_to_its_token(
    captured: Callable[..., CaptureResult], tiny_loaded: Callable[..., Any], store: TokenStore, tmp_path: Path
) -> None:
    """An embedding with a NaN: the first fit window with that token stops the run and is named."""
    port = tiny_loaded().port
    token = int(store.window(store.manifest.fit_windows[5])[7])
    weight = port.decoder.embed_tokens.weight
    kept = weight[token].clone()
    first = next(w for w in store.manifest.fit_windows if (store.window(w) == token).any())
    position = int((store.window(first) == token).nonzero()[0])
    window = store.manifest.windows[first]
    try:
        weight[token] = float("nan")
        with pytest.raises(BadInput) as caught:
            captured("out")
    finally:
        weight[token] = kept
    assert "layer 0" in caught.value.what
    assert store.manifest.documents[window.document].sha256[:12] in caught.value.what
    assert f"position {window.start + position - store.manifest.repeated(first)} " in caught.value.what
    assert "bfloat16" in caught.value.fix
    assert not (tmp_path / "out" / "moments.s2.safetensors").exists()


def test_progress_counts_every_token(
    tiny_loaded: Callable[..., Any], store: TokenStore, tmp_path: Path
) -> None:
    seen: list[tuple[int, int, str]] = []
    result = capture(
        tiny_loaded(),
        store,
        CaptureSettings(split=(2,)),
        tmp_path / "out",
        progress=lambda *step: seen.append(step),
    )
    assert seen[-1][0] == seen[-1][1] == result.tokens == result.record.tokens
    assert [step[0] for step in seen] == sorted(step[0] for step in seen)
    assert "tokens/s" in seen[-1][2]


def test_nothing_but_sums_and_tokens_is_left(captured: Callable[..., CaptureResult]) -> None:
    folder = captured("out").folder
    left = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert left == [
        ".lock",
        "capture.json",
        "frequencies.safetensors",
        "moments.s2.safetensors",
        "moments.s4.safetensors",
        "tokens/manifest.json",
        "tokens/tokens.safetensors",
    ]


def test_the_same_capture_twice_has_the_same_bytes(
    captured: Callable[..., CaptureResult], digests: Callable[..., dict[str, str]]
) -> None:
    first, second = captured("a"), captured("b")
    assert digests(first) == digests(second)
    assert (first.folder / "capture.json").read_bytes() == (second.folder / "capture.json").read_bytes()
