"""Selectors against brute force: low-pass residual, observed attention, pages; streaming against one shot."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from latent_tiny import BRANCH, build_latent, ids
from transformers import DynamicCache

from ridgefit.errors import BadInput
from ridgefit.maps.recall import RecallSettings
from ridgefit.runtime.recall import SELECTORS, Recall, selector_of
from ridgefit.runtime.recall.residual import low_pass_residual
from ridgefit.runtime.recall.selectors import Window


def projected(rows: np.ndarray, kappa: int) -> np.ndarray:
    """Residual of a least-squares fit by sines and cosines, in fp64."""
    at = np.arange(len(rows)) * 2 * np.pi / len(rows)
    columns = [np.ones_like(at)]
    for bin_ in range(1, kappa):
        columns += [np.cos(bin_ * at), np.sin(bin_ * at)]
    design = np.stack(columns, 1)
    fitted = design @ np.linalg.lstsq(design, rows, rcond=None)[0]
    return np.linalg.norm(rows - fitted, axis=1)


@pytest.mark.parametrize("length", [33, 64, 257, 1024])
@pytest.mark.parametrize("kappa", [1, 2, 16])
def test_residual_is_a_trigonometric_projection(length: int, kappa: int) -> None:
    rows = np.random.default_rng(length + kappa).normal(size=(length, 64))
    found = low_pass_residual(torch.from_numpy(rows).float(), kappa)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(
        found.numpy(), projected(rows.astype(np.float32).astype(float), kappa), rtol=1e-6
    )


def test_one_bin_subtracts_the_mean() -> None:
    rows = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
    want = (rows.double() - rows.double().mean(0)).norm(dim=1)
    torch.testing.assert_close(low_pass_residual(rows, 1).double(), want, atol=1e-6, rtol=0)


def test_sixteen_bit_rows_are_filtered_in_fp32() -> None:
    rows = torch.randn(64, 6, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert torch.equal(low_pass_residual(rows, 4), low_pass_residual(rows.float(), 4))


def test_a_drift_stands_out_at_the_windows_ends() -> None:
    """The transform is periodic: known, measured here, and the reason that windows are long."""
    drift = torch.linspace(-1, 1, 512)[:, None] * torch.ones(1, 8)
    noise = 0.01 * torch.randn(512, 8, generator=torch.Generator().manual_seed(0))
    residual = low_pass_residual(drift + noise, 16)
    ends = torch.cat([residual[:4], residual[-4:]]).mean()
    assert ends > 5 * residual[100:400].mean()


def cached(model, settings: RecallSettings, pieces: list[int], steps: int):
    """States of the first latent layer after a prompt in pieces and some steps."""
    tokens, more = ids(sum(pieces)), ids(steps, seed=1)
    with torch.no_grad(), Recall.of_prompts(model, settings).applied(model):
        cache = DynamicCache(config=model.config)
        for piece in tokens.split(pieces, 1):
            model(piece, cache=cache)
        for at in range(steps):
            model(more[:, at : at + 1], cache=cache)
    return cache


@pytest.mark.parametrize("selector", ["branch", "full-row", "norm", "random", "streaming"])
def test_streaming_keeps_what_one_shot_keeps(selector: str) -> None:
    """Constant budget: a cache that grew row by row over block ends, and the same rows read in one go."""
    model = build_latent()
    settings = RecallSettings(selector=selector, rows=9, kappa=2, block=16, sinks=2, recall=False, ratio=4)
    grown = cached(model, settings, [20], 75)
    prompt = torch.cat([ids(20), ids(75, seed=1)], 1)
    with torch.no_grad(), Recall.of_prompts(model, settings).applied(model):
        once = DynamicCache(config=model.config)
        model(prompt[:, :94], cache=once)
        model(prompt[:, 94:], cache=once)
    for index in (1,):  # later layers read what the policy left out, so only the first has the same rows
        left, right = grown.layers[index].states[0], once.layers[index].states[0]
        assert left.closed == right.closed == 80
        assert torch.equal(left.kept, right.kept)
        torch.testing.assert_close(left.scores, right.scores, atol=1e-5, rtol=0)
        assert 9 <= left.kept.numel() <= 11


def test_a_growing_budget_takes_rows_back_up() -> None:
    """Proportional budgets need the archive: a row that was archived early is kept again later."""
    scores = torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0, 0.0, 0.0, 0.0])
    chosen = selector_of("branch").choose
    settings = RecallSettings(ratio=4, kappa=1, block=4)
    assert chosen(scores[:4], settings.kept(4)).tolist() == [0]
    assert chosen(scores, settings.kept(8)).tolist() == [0, 1]


def test_ties_go_to_the_earlier_row() -> None:
    assert selector_of("branch").choose(torch.tensor([1.0, 2.0, 2.0, 1.0, 2.0]), 4).tolist() == [0, 1, 2, 4]


@pytest.mark.parametrize(("closed", "kept"), [(16, 1), (80, 2), (48, 2), (112, 4)])
def test_budgets_round_half_to_even(closed: int, kept: int) -> None:
    assert RecallSettings(ratio=32).kept(closed) == kept


def dense_attention(model, tokens: torch.Tensor, layer: int) -> np.ndarray:
    """Attention weights `[heads, queries, rows]` of transformers' eager forward."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = model(tokens, output_attentions=True).attentions
    model.set_attn_implementation("sdpa")
    kept = [item for item in weights if item is not None]
    return kept[layer][0].double().numpy()


@pytest.mark.parametrize("pieces", [[64], [25, 39]])
def test_observed_attention_is_that_of_the_model(pieces: list[int]) -> None:
    model = build_latent()
    weights = dense_attention(model, ids(64), 0)
    window = {"kappa": 2, "block": 32, "window": "prefix", "recall": False}
    mass = cached(model, RecallSettings(selector="h2o", **window), pieces, 1).layers[1].states[0].scores
    np.testing.assert_allclose(mass.numpy(), weights.sum((0, 1)), atol=1e-4)
    found = cached(model, RecallSettings(selector="snapkv", **window), pieces, 1).layers[1].states[0].scores
    votes = np.pad(weights[:, 32:].sum((0, 1)), 3)
    want = np.array([votes[at : at + 7].sum() / 7 for at in range(64)])
    np.testing.assert_allclose(found.numpy(), want, atol=1e-4)


def test_h2o_recent_splits_its_budget() -> None:
    scores = torch.tensor([9.0, 0.0, 8.0, 7.0, 0.0, 0.0, 0.0, 0.0])
    assert selector_of("h2o-recent").choose(scores, 5).tolist() == [0, 2, 3, 6, 7]


def test_page_bounds_hold_and_choose_the_best_row() -> None:
    """Brute force over corners: no row of a page scores above the page's bound."""
    generator = torch.Generator().manual_seed(0)
    rows, queries = torch.randn(70, 12, generator=generator), torch.randn(3, 5, 12, generator=generator)
    selector = selector_of("quest")
    chosen = selector.pages(queries, rows, 0.5, 32)
    assert chosen.shape == (5, 70)
    for query in range(5):
        bounds = []
        for page in range(5):
            box = rows[16 * page : 16 * page + 16].double()
            low, high = box.min(0).values, box.max(0).values
            head_bounds = []
            for head in range(3):
                q = queries[head, query].double()
                bound = sum(max(float(q[d] * low[d]), float(q[d] * high[d])) for d in range(12)) / 2
                assert bound >= float((box @ q).max()) / 2 - 1e-6
                head_bounds.append(bound)
            bounds.append(head_bounds)
        table = torch.tensor(bounds).softmax(0).amax(1)
        want = set(torch.argsort(table, descending=True)[:2].tolist())
        assert {page for page in range(5) if chosen[query, 16 * page]} == want


@pytest.mark.parametrize("name", SELECTORS)
def test_every_selector_scores_every_row(name: str) -> None:
    rows = torch.randn(40, 24 + BRANCH, generator=torch.Generator().manual_seed(1))
    window = Window(rows=rows, branch=BRANCH, kappa=3, first=16, layer=1, seed=5, mass=rows[:, 0].abs())
    scores = selector_of(name).scores(window)
    assert scores.shape == (40,)
    assert scores.dtype == torch.float32
    assert torch.equal(scores, selector_of(name).scores(window))
    kept = selector_of(name).choose(scores, 7)
    assert kept.numel() == 7
    assert kept.tolist() == sorted(set(kept.tolist()))


def test_unknown_selectors_and_blocks_without_residual_are_refused() -> None:
    with pytest.raises(BadInput, match="branch, full-row"):
        selector_of("bransch")
    with pytest.raises(ValueError, match="32 rows or fewer bins"):
        RecallSettings(kappa=16, block=31)
    assert math.isinf(RecallSettings(z=float("inf")).z or 0.0)
