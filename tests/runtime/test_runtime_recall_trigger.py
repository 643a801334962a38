"""The index, its bound, its calibration, and what a step fetches, against brute force in fp64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from latent_tiny import BRANCH, HEADS, LATENT, build_latent, ids, padded
from transformers import DynamicCache

from ridgefit.cost.recall import ReadBudget
from ridgefit.maps.recall import RecallSettings
from ridgefit.models.latent import LatentModel
from ridgefit.runtime.recall import Recall
from ridgefit.runtime.recall.attend import Archive, read
from ridgefit.runtime.recall.conformal import Evidence, Thresholds, calibrated, entropy, evidence
from ridgefit.runtime.recall.sketch import estimates, fitted_basis, sketch

SCALE = 0.3


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("rank", [1, 8, 23, 24])
def test_the_bound_of_lemma_2_is_never_passed(rank: int) -> None:
    """10,000 random queries on random rows; the basis is fitted to other queries."""
    rows, queries = drawn(0, 60, LATENT + BRANCH), drawn(1, 10_000, LATENT + BRANCH)
    rows[:, :LATENT] *= torch.linspace(0.1, 3, LATENT)
    basis = fitted_basis(drawn(2, 500, LATENT) * torch.linspace(2, 0.1, LATENT), rank)
    estimate, certificate = estimates(queries, sketch(rows, basis), basis, SCALE)
    truth = SCALE * queries.double() @ rows.double().T
    bound = certificate.double() * math.sqrt(max(LATENT - rank, 1))
    assert bool(((truth - estimate.double()).abs() <= bound * (1 + 1e-5) + 2e-5).all())
    if rank < LATENT:
        assert float(((truth - estimate.double()).abs() / bound).max()) > 0.5  # and it is not idle


def test_the_basis_spans_the_leading_directions_of_centred_queries() -> None:
    queries = drawn(3, 400, LATENT) * torch.linspace(3, 0.1, LATENT) + 5.0
    basis = fitted_basis(queries, 6)
    centred = queries.double().numpy() - queries.double().numpy().mean(0)
    want = np.linalg.svd(centred, full_matrices=False)[2][:6]
    torch.testing.assert_close(basis @ basis.T, torch.eye(6), atol=1e-5, rtol=0)
    overlap = np.linalg.svd(basis.double().numpy() @ want.T)[1]
    np.testing.assert_allclose(overlap, 1.0, atol=1e-6)


def test_a_basis_of_full_rank_is_exact_and_one_from_few_queries_sound() -> None:
    rows, queries = drawn(4, 30, LATENT + BRANCH), drawn(5, 7, LATENT + BRANCH)
    for few in (2, 50):
        basis = fitted_basis(drawn(6, few, LATENT), 99)
        assert basis.shape == (LATENT, LATENT)
        estimate, certificate = estimates(queries, sketch(rows, basis), basis, SCALE)
        torch.testing.assert_close(estimate, SCALE * queries @ rows.T, atol=1e-5, rtol=0)
        assert not certificate.any()


def test_entropy_leaves_unseen_rows_out() -> None:
    scores = drawn(7, 3, 9)
    hidden = torch.cat([scores, torch.full((3, 4), -torch.inf)], 1)
    weights = scores.double().softmax(-1)
    torch.testing.assert_close(
        entropy(hidden).double(), -(weights * weights.log()).sum(-1), atol=1e-6, rtol=0
    )


def brute(queries, near, seen, far, basis, z, gate, top, cap):
    """One query at a time, one head at a time; fp64."""
    outputs = np.zeros((queries.shape[0], queries.shape[1], LATENT))
    fetched = []
    for q in range(queries.shape[1]):
        visible = near[seen[q]].double()
        union: set[int] = set()
        for head in range(queries.shape[0]):
            query = queries[head, q].double()
            scores = SCALE * visible @ query
            weights = scores.softmax(0)
            if gate is not None and float(-(weights * weights.log()).sum()) <= gate:
                continue
            rated = []
            for row in range(far.shape[0]):
                c, r = far[row, :LATENT].double(), far[row, LATENT:].double()
                vq, vc = basis.double() @ query[:LATENT], basis.double() @ c
                rest_q = (query[:LATENT] - basis.double().T @ vq).norm()
                rest_c = (c - basis.double().T @ vc).norm()
                rating = SCALE * (query[LATENT:] @ r + vq @ vc)
                rating += z * SCALE * rest_q * rest_c / math.sqrt(LATENT - basis.shape[0])
                if float(rating) > float(scores.max()):
                    rated.append((float(rating), row))
            union |= {row for _, row in sorted(rated, reverse=True)[:top]}
        if len(union) > cap:
            union = set(range(far.shape[0]))
        fetched.append(sorted(union))
        rows = torch.cat([visible, far[sorted(union)].double()])
        for head in range(queries.shape[0]):
            weights = (SCALE * rows @ queries[head, q].double()).softmax(0)
            outputs[head, q] = (weights @ rows[:, :LATENT]).numpy()
    return outputs, fetched


@pytest.mark.parametrize("z", [-0.5, 0.0, 1.5])
@pytest.mark.parametrize("gate", [None, 1.2])
@pytest.mark.parametrize(("top", "cap"), [(None, 99), (2, 99), (None, 6)])
def test_a_step_fetches_and_attends_as_written(
    z: float, gate: float | None, top: int | None, cap: int
) -> None:
    queries, near, far = drawn(8, 3, 5, LATENT + BRANCH), drawn(9, 12, 32), drawn(10, 25, 32)
    seen = torch.ones(5, 12, dtype=torch.bool).tril(7)
    basis = fitted_basis(drawn(11, 40, LATENT), 6)
    numbers = torch.arange(100, 125)
    archive = Archive(
        numbers, sketch(far, basis), basis, Thresholds(z, gate), lambda rows: lambda: far[rows - 100]
    )
    settings = RecallSettings(top_rows=top, cap=cap)
    found = read(queries, near, seen, archive, settings, latent=LATENT, scale=SCALE)
    outputs, fetched = brute(queries, near, seen, far, basis, z, gate, top or 99, cap)
    assert [row.nonzero()[:, 0].tolist() for row in found.read] == fetched
    assert found.fetched.tolist() == [len(rows) for rows in fetched]
    assert found.overflowed.any() == any(len(rows) == 25 for rows in fetched)
    np.testing.assert_allclose(found.latents.double().numpy(), outputs, atol=2e-6)
    assert 0 < sum(map(len, fetched)) < 5 * 25 or cap == 6


@pytest.mark.parametrize("held", [1 << 25, 60])
def test_evidence_is_what_a_loop_finds(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where scores are held a few queries at a time; pairs come in another order then."""
    monkeypatch.setattr("ridgefit.runtime.recall.conformal._SCORES", held)
    queries, near, far = drawn(12, 2, 6, 32), drawn(13, 9, 32), drawn(14, 11, 32)
    near_at, far_at = torch.arange(0, 18, 2), torch.arange(1, 23, 2)
    at = torch.tensor([0, 4, 9, 15, 20, 30])
    basis = fitted_basis(drawn(15, 40, LATENT), 5)
    found = evidence(
        queries, near, near_at <= at[:, None], far, far_at <= at[:, None], sketch(far, basis), basis, SCALE
    )
    rows = []
    for head in range(2):
        for q, position in enumerate(at.tolist()):
            kept = [float(SCALE * queries[head, q] @ near[i]) for i in range(9) if near_at[i] <= position]
            gone = [float(SCALE * queries[head, q] @ far[i]) for i in range(11) if far_at[i] <= position]
            if not gone:
                continue
            best = int(np.argmax(gone))
            estimate, certificate = estimates(queries[head, q], sketch(far, basis), basis, SCALE)
            rows.append((max(kept), max(gone), float(estimate[best]), float(certificate[best])))
    assert found.hard.numel() == len(rows) == 10
    got = torch.stack([found.best_kept, found.truth, found.estimate, found.certificate], 1)
    want = torch.tensor(sorted(rows))
    torch.testing.assert_close(torch.tensor(sorted(got.tolist())), want, atol=1e-5, rtol=1e-5)


def made_up(count: int, seed: int) -> Evidence:
    """Queries whose index errors are Gaussian, as under isotropy; about half of them are hard."""
    kept, truth = drawn(seed, count), drawn(seed + 1, count)
    certificate = 0.2 + drawn(seed + 2, count).abs()
    return Evidence(
        kept, drawn(seed + 3, count), truth, truth + certificate * drawn(seed + 4, count), certificate
    )


@pytest.mark.parametrize("target", [0.8, 0.9, 0.95])
@pytest.mark.parametrize("conformal", ["max1", "true"])
def test_new_hard_queries_are_found_as_often_as_wanted(target: float, conformal: str) -> None:
    limits = calibrated(
        made_up(2_000, 0), target=target, conformal=conformal, z_max=8, gate=True, gate_off=1.0
    )
    new = made_up(50_000, 100)
    fires = (new.estimate + limits.z * new.certificate > new.best_kept) & (new.entropy > limits.gate)
    recall = float(fires[new.hard].double().mean())
    assert recall > target - 0.01
    if conformal == "max1":
        assert recall < target + 0.03


def test_the_order_statistic_is_the_one_of_conformal_prediction() -> None:
    """99 hard queries whose factors are 1 to 99: level 0.9 takes the 90th."""
    factors = torch.arange(1.0, 100.0)
    found = Evidence(factors, torch.zeros(99), factors + 1000, torch.zeros(99), torch.ones(99))
    limits = calibrated(found, target=0.9, conformal="max1", z_max=500, gate=False, gate_off=0.6)
    assert limits == Thresholds(pytest.approx(90, abs=1e-5), None, 99, 99)


def test_too_few_hard_queries_take_the_largest_factor() -> None:
    for count, z in ((0, 8.0), (17, 8.0), (18, 0.0)):
        found = Evidence(
            torch.zeros(50), torch.zeros(50), torch.zeros(50).index_fill(0, torch.arange(count), 1.0),
            torch.zeros(50), torch.ones(50),
        )  # fmt: skip
        limits = calibrated(found, target=0.9, conformal="max1", z_max=8, gate=True, gate_off=0.6)
        assert limits.hard == count
        assert limits.z == pytest.approx(z, abs=1e-5)


def test_a_gate_that_saves_little_is_left_open() -> None:
    count = 1000
    spread = torch.linspace(0, 1, count)
    hard_late = torch.where(spread > 0.5, 1.0, -1.0)
    found = Evidence(torch.zeros(count), spread, hard_late, hard_late, torch.ones(count))
    settings = {"target": 0.9, "conformal": "max1", "z_max": 8.0, "gate": True}
    closed = calibrated(found, gate_off=0.60, **settings)
    assert closed.gate == pytest.approx(0.525, abs=0.002)  # the 5 % quantile of (0.5, 1)
    assert calibrated(found, gate_off=0.40, **settings).gate is None
    assert calibrated(found, gate_off=0.60, **{**settings, "gate": False}).gate is None


def states(model, settings: RecallSettings, rows: int, *, steps: int = 3):
    with torch.no_grad(), Recall.of_prompts(model, settings).applied(model) as report:
        cache = DynamicCache(config=model.config)
        model(ids(rows), cache=cache)
        for at in range(steps):
            model(ids(steps, seed=1)[:, at : at + 1], cache=cache)
    return cache, report


@pytest.mark.parametrize("pieces", [[300], [120, 100, 80]])
def test_thresholds_of_a_prompt_rest_on_its_second_half(pieces: list[int]) -> None:
    """Against queries taken from the model by a hook, and however the prompt was cut."""
    model = build_latent()
    settings = RecallSettings(ratio=8, kappa=2, block=64, window="prefix", rank=8, gate=False)
    taken = []
    module = model.model.layers[1].self_attn
    with torch.no_grad(), Recall.of_prompts(model, settings).applied(model) as report:
        cache = DynamicCache(config=model.config)
        handle = module.q_proj.register_forward_hook(lambda _m, _i, out: taken.append(out))
        for piece in ids(300).split(pieces, 1):
            model(piece, cache=cache)
        handle.remove()
        model(ids(1, seed=1), cache=cache)
    tier = cache.layers[1].states[0]
    attention = LatentModel(model).layers[1]
    queries = torch.cat(taken, 1).view(300, HEADS, -1).transpose(0, 1)[:, 150:]
    queries = attention.absorb(queries)
    want = fitted_basis(queries[..., :LATENT].flatten(0, 1), 8)
    torch.testing.assert_close((want @ tier.frozen.basis.T).abs(), torch.eye(8), atol=1e-3, rtol=0)
    assert report.layers[1].hard == tier.frozen.thresholds.hard > 100
    rows = torch.cat([cache.layers[1].keys, cache.layers[1].values], -1)[0, 0, :300].double()
    scores = attention.scale * queries.double() @ rows.T
    scores = scores.masked_fill(torch.arange(300) > torch.arange(150, 300)[:, None], -torch.inf)
    hard = torch.isin(scores.argmax(-1), tier.archive)
    assert int(hard.sum()) == tier.frozen.thresholds.hard


def test_several_rows_in_one_call_are_single_steps() -> None:
    """What `several` reads in one call is what steps of one row read, with rows left out and fetched."""
    model = build_latent()
    settings = RecallSettings(ratio=8, kappa=2, block=64, window="prefix", rank=8, z=1.0, sinks=2)
    tokens, more = ids(100), ids(12, seed=4)
    recall = Recall.of_prompts(model, settings)
    with torch.no_grad(), recall.applied(model, several=True) as report:
        cache = DynamicCache(config=model.config)
        model(tokens, cache=cache)
        found = model(more, cache=cache).logits
        fetched = report.layers[1].fetched
    with torch.no_grad(), recall.applied(model) as report:
        cache = DynamicCache(config=model.config)
        model(tokens, cache=cache)
        want = torch.cat([model(more[:, at : at + 1], cache=cache).logits for at in range(12)], 1)
    torch.testing.assert_close(found, want, atol=2e-5, rtol=0)
    assert fetched == report.layers[1].fetched
    assert 0 < sum(fetched) < 12 * 80


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 15, 16, 31])
def test_prompts_too_short_to_close_are_dense(rows: int) -> None:
    """Shorter than a block, and no longer than the low-pass span: nothing closes and nothing is lost."""
    model = build_latent()
    for settings in (
        RecallSettings(ratio=8, kappa=16, block=64, window="prefix"),
        RecallSettings(ratio=8, kappa=2, block=40),
    ):
        cache, report = states(model, settings, rows)
        assert cache.layers[1].states[0].closed == 0
        assert report.layers[1].attended == report.layers[1].seen
        with torch.no_grad():
            stock = DynamicCache(config=model.config)
            model(ids(rows), cache=stock)
            for at in range(3):
                want = model(ids(3, seed=1)[:, at : at + 1], cache=stock).logits
            with Recall.of_prompts(model, settings).applied(model):
                mine = DynamicCache(config=model.config)
                model(ids(rows), cache=mine)
                for at in range(3):
                    found = model(ids(3, seed=1)[:, at : at + 1], cache=mine).logits
        torch.testing.assert_close(found, want, atol=1e-5, rtol=0)


def test_a_rank_above_the_latents_width_is_that_width() -> None:
    cache, report = states(build_latent(), RecallSettings(ratio=4, kappa=2, block=16, rank=500), 60)
    assert cache.layers[1].states[0].frozen.basis.shape == (LATENT, LATENT)
    assert report.layers[1].entry == LATENT + BRANCH + 1


def test_sequences_of_different_length_close_for_themselves() -> None:
    model = build_latent()
    tokens, mask = padded([20, 33, 70])
    settings = RecallSettings(ratio=4, kappa=2, block=16, rank=8)
    with torch.no_grad(), Recall.of_prompts(model, settings).applied(model):
        cache = DynamicCache(config=model.config)
        model(tokens, attention_mask=mask, cache=cache)
        mask = torch.cat([mask, mask.new_ones(3, 1)], 1)
        model(ids(1, batch=3), attention_mask=mask, cache=cache)
    assert [tier.closed for tier in cache.layers[1].states] == [16, 32, 64]
    assert [tier.kept.numel() + tier.archived for tier in cache.layers[1].states] == [16, 32, 64]


def test_nothing_hard_in_a_prompt_is_no_crash() -> None:
    """Every row kept in calibration: no archive, no index, no thresholds."""
    cache, report = states(build_latent(), RecallSettings(ratio=1, kappa=2, block=16), 60)
    assert cache.layers[1].states[0].archived == 0
    assert report.layers[1].z is None
    assert report.layers[1].parted == 0


def test_reads_are_counted_as_equation_2_has_them() -> None:
    """Rows and entries per step against the closed form, on a model with the paper's widths."""
    widths = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 16, "v_head_dim": 16}
    model = build_latent(
        hidden_size=64, num_hidden_layers=2, layer_types=["linear_attention", "full_attention"],
        mlp_layer_types=["dense"] * 2, **widths,
    )  # fmt: skip
    settings = RecallSettings(ratio=32, kappa=16, block=1024, rank=64, sinks=0, gate=False, z=-2.0)
    _, report = states(model, settings, 1024, steps=2)
    layer = report.layers[1]
    share = sum(layer.fetched) / layer.seen
    want = ReadBudget(latent=512, branch=64, kept=1 / 32, rank=64, fetched=share)
    assert layer.dims_per_row == pytest.approx(want.total, rel=0.02)
    assert layer.dims_per_row - share * 576 == pytest.approx(142, rel=0.02)
