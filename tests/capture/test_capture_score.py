"""Held-out scores against a brute-force loop over transformers' own modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ridgefit.capture import CaptureResult, HeldRows, load_capture, score_candidates
from ridgefit.corpus import TokenStore
from ridgefit.errors import BadInput
from ridgefit.ridge import RidgeFit, choose

SPLIT = 2


def random_maps(layers: int, hidden: int, seed: int) -> Callable[[int], tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(layers, hidden, hidden, generator=generator).bfloat16()
    biases = torch.randn(layers, hidden, generator=generator).bfloat16()
    return lambda at: (weights[at], biases[at])


def brute_force(
    model: Any, store: TokenStore, maps: Callable[[int], tuple[torch.Tensor, torch.Tensor]] | None, drop: int
) -> dict[str, list[float]]:
    """Cosine by cosine, every held-out row."""
    layers = model.model.layers
    found: dict[str, list[list[float]]] = {"keys": [], "values": [], "inputs": []}
    for part in found.values():
        part.extend([] for _ in range(SPLIT, len(layers)))
    cosine = torch.nn.functional.cosine_similarity
    for window in store.manifest.held_windows:
        with torch.no_grad():
            states = model(store.window(window)[None], output_hidden_states=True).hidden_states
        for at, layer in enumerate(range(SPLIT, len(layers))):
            block = layers[layer]
            for position in range(drop, states[0].shape[1]):
                true, x = states[layer][0, position], states[SPLIT][0, position]
                guess = x if maps is None else x @ maps(at)[0].float().T + maps(at)[1].float()
                found["inputs"][at].append(float(cosine(true, guess, dim=0)))
                for name, project in (("keys", block.self_attn.k_proj), ("values", block.self_attn.v_proj)):
                    heads = [
                        project(block.input_layernorm(state[None, None])).view(2, 8)
                        for state in (true, guess)
                    ]
                    if name == "keys" and hasattr(block.self_attn, "k_norm"):
                        heads = [block.self_attn.k_norm(part) for part in heads]
                    found[name][at].append(float(cosine(*heads, dim=-1).mean()))
    return {name: [sum(rows) / len(rows) for rows in part] for name, part in found.items()}


@pytest.mark.parametrize("name", ["llama", "qwen3"])
@pytest.mark.parametrize("drop", [0, 4])
def test_scores_are_those_of_a_brute_force_loop(
    name: str, drop: int, tiny_loaded: Callable[..., Any], make_store: Callable[..., TokenStore]
) -> None:
    store = make_store(8)
    loaded = tiny_loaded(name)
    candidates = {alpha: random_maps(4, 32, seed) for seed, alpha in enumerate((0.1, 0.3, 1.0))}
    scores = score_candidates(loaded, store, SPLIT, candidates, rows=10**6, drop_lead=drop)
    lengths = [store.manifest.window_tokens(window) for window in store.manifest.held_windows]
    assert scores.rows == sum(max(length - drop, 0) for length in lengths)
    expected = brute_force(loaded.model, store, None, drop)
    for part in ("keys", "values", "inputs"):
        assert getattr(scores.identity, part) == pytest.approx(expected[part], abs=2e-5), part
    for alpha, maps in candidates.items():
        expected = brute_force(loaded.model, store, maps, drop)
        for part in ("keys", "values", "inputs"):
            assert getattr(scores.candidates[alpha], part) == pytest.approx(expected[part], abs=2e-5), part
    written = expected["keys"] + expected["values"]
    assert scores.candidates[1.0].written == pytest.approx(sum(written) / len(written), abs=2e-5)
    assert scores.keys[1.0] == scores.candidates[1.0].keys


def test_the_identity_map_is_the_identity_fill(tiny_loaded: Callable[..., Any], store: TokenStore) -> None:
    def same(_: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.eye(32), torch.zeros(32)

    scores = score_candidates(tiny_loaded(), store, SPLIT, {0.0: same}, rows=500)
    for part in ("keys", "values", "inputs"):
        assert getattr(scores.candidates[0.0], part) == pytest.approx(
            getattr(scores.identity, part), abs=1e-6
        )
        assert getattr(scores.identity, part)[0] == pytest.approx(1, abs=1e-6)
        assert getattr(scores.identity, part)[-1] < 0.99


def test_rows_are_evenly_spaced_over_all_windows(
    tiny_loaded: Callable[..., Any], store: TokenStore, random_tokens: Callable[..., torch.Tensor]
) -> None:
    """Picked rows are rows of the full set, at even steps, without the first positions."""
    everything = HeldRows.read(tiny_loaded(), store, [SPLIT], rows=10**6, drop_lead=3)
    some = HeldRows.read(tiny_loaded(), store, [SPLIT], rows=50, drop_lead=3)
    assert some.count == 50
    steps = [(2 * number + 1) * everything.count // 100 for number in range(50)]
    assert torch.equal(some._inputs[SPLIT], everything._inputs[SPLIT][steps])
    assert torch.equal(some._truth[5], everything._truth[5][steps])


def test_several_splits_share_a_pass(tiny_loaded: Callable[..., Any], store: TokenStore) -> None:
    held = HeldRows.read(tiny_loaded(), store, [2, 4], rows=200)
    for split in (2, 4):
        maps = {0.1: random_maps(6 - split, 32, split)}
        alone = score_candidates(tiny_loaded(), store, split, maps, rows=200)
        assert held.score(split, maps) == alone


def test_each_layer_is_asked_of_all_candidates_in_turn(
    tiny_loaded: Callable[..., Any], store: TokenStore
) -> None:
    """A solver keeps what a layer's penalties share; jumping between layers would make it start over."""
    asked: list[tuple[int, float]] = []
    maps = random_maps(4, 32, 0)

    def ask(alpha: float) -> Callable[[int], tuple[torch.Tensor, torch.Tensor]]:
        return lambda at: (asked.append((at, alpha)), maps(at))[1]

    score_candidates(tiny_loaded(), store, SPLIT, {alpha: ask(alpha) for alpha in (0.1, 1.0)}, rows=3000)
    assert asked == [(at, alpha) for at in range(4) for alpha in (0.1, 1.0)]


def test_fitted_maps_beat_identity(
    captured: Callable[..., CaptureResult], tiny_loaded: Callable[..., Any]
) -> None:
    """From text to a chosen penalty, through the files."""
    folder = load_capture(captured("out", split=(SPLIT,)).folder)
    fit = RidgeFit(folder.rows(SPLIT, drop_lead=True))
    alphas = (0.001, 0.1, 10.0)
    scores = score_candidates(
        tiny_loaded(), folder.store(), SPLIT, fit.candidates(alphas), rows=1000, drop_lead=4
    )
    choice = choose(scores.keys, scores.values)
    assert choice.score > scores.identity.written + 0.05
    assert choice.alpha == 0.001 or choice.alpha == 0.1


def test_nothing_to_score_on_is_refused(
    tiny_loaded: Callable[..., Any], make_store: Callable[..., TokenStore]
) -> None:
    store = make_store(8)
    with pytest.raises(BadInput, match="no held-out rows"):
        score_candidates(tiny_loaded(), store, SPLIT, {}, rows=10, drop_lead=1000)


def test_held_out_rows_that_are_not_finite_are_refused(
    tiny_loaded: Callable[..., Any], store: TokenStore
) -> None:
    weight = tiny_loaded().port.layers[3].input_layernorm.weight
    kept = weight.clone()
    try:
        weight[0] = float("nan")
        with pytest.raises(BadInput, match="layer 4 is not finite"):
            HeldRows.read(tiny_loaded(), store, [SPLIT], rows=10)
    finally:
        weight.copy_(kept)
