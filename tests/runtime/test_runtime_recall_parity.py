"""A policy that leaves nothing out is the stock model, however a prompt comes and a cache is used."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from latent_tiny import LATENT, NAMES, build_latent, ids, padded
from transformers import DynamicCache

from ridgefit.errors import BadInput
from ridgefit.maps.recall import RecallSettings
from ridgefit.runtime.recall import Recall

BASE: dict[str, Any] = {"kappa": 2, "block": 16, "rank": 8, "sinks": 2}
# name -> settings under which every row is attended
WHOLE: dict[str, dict[str, Any]] = {
    "every row kept": {"ratio": 1.0},
    "every row fetched": {"ratio": 8.0, "z": float("inf"), "gate": False},
    "every step overflows": {"ratio": 8.0, "cap": 0, "z": 1e9, "gate": False},
    "every row fetched, from the host": {
        "ratio": 8.0,
        "z": float("inf"),
        "gate": False,
        "placement": "host",
    },
    "whole prefix, fetched": {"ratio": 8.0, "z": float("inf"), "gate": False, "window": "prefix"},
    "full rank, every row fetched": {"ratio": 8.0, "rank": LATENT, "z": float("inf"), "gate": False},
}


def policy(model: Any, name: str = "kimi_linear", **settings: Any) -> Recall:
    control = name != "kimi_linear"
    return Recall.of_prompts(model, RecallSettings(**{**BASE, "control": control, **settings}))


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("whole", WHOLE)
def test_logits_are_stock(name: str, whole: str) -> None:
    model = build_latent(name)
    tokens = ids(70)
    steps = ids(9, seed=1)
    recall = policy(model, name, **WHOLE[whole])
    with torch.no_grad():
        stock = DynamicCache(config=model.config)
        want = [model(tokens, cache=stock).logits[:, -1]]
        want += [model(steps[:, i : i + 1], cache=stock).logits[:, -1] for i in range(9)]
        with recall.applied(model) as report:
            cache = DynamicCache(config=model.config)
            found = [model(tokens, cache=cache).logits[:, -1]]
            found += [model(steps[:, i : i + 1], cache=cache).logits[:, -1] for i in range(9)]
    torch.testing.assert_close(torch.stack(found), torch.stack(want), atol=1e-5, rtol=0)
    assert cache.get_seq_length() == 79
    for layer in report.layers.values():
        assert layer.observed == 70
        assert layer.queries == 9
        assert layer.attended + sum(layer.fetched) == layer.seen
        if whole != "every row kept":
            assert min(layer.fetched) > 30


@pytest.mark.parametrize("whole", WHOLE)
def test_generated_tokens_are_stock(name: str, whole: str) -> None:
    """Batch of two with left padding, greedy and with three beams."""
    model = build_latent(name)
    tokens, mask = padded([41, 60])
    settings = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    recall = policy(model, name, **WHOLE[whole])
    for beams in (1, 3):
        want = model.generate(tokens, num_beams=beams, **settings)
        with recall.applied(model):
            found = model.generate(tokens, num_beams=beams, **settings)
        assert torch.equal(found, want)


@pytest.mark.parametrize("whole", ["every row fetched", "every row fetched, from the host"])
def test_chunked_prefill_is_stock(name: str, whole: str) -> None:
    model = build_latent(name)
    tokens = ids(75)
    want = model.generate(tokens, max_new_tokens=10, do_sample=False, eos_token_id=None)
    for pieces in ([30, 30, 15], [64, 10, 1], [1, 74]):
        with policy(model, name, **WHOLE[whole]).applied(model), torch.no_grad():
            cache = DynamicCache(config=model.config)
            for piece in tokens.split(pieces, dim=1):
                logits = model(piece, cache=cache).logits
            found = [logits[:, -1].argmax(-1)]
            for _ in range(9):
                found.append(model(found[-1][:, None], cache=cache).logits[:, -1].argmax(-1))
        assert torch.equal(torch.stack(found, 1), want[:, 75:])


@pytest.mark.parametrize("placement", ["device", "host"])
def test_turns_go_on_with_one_cache(placement: str) -> None:
    """A later turn of several rows reads the whole cache, and steps after it close what became whole."""
    model = build_latent()
    first, second = ids(50), ids(23, seed=2)
    recall = policy(model, ratio=8.0, z=float("inf"), gate=False, placement=placement)
    settings = {"max_new_tokens": 7, "do_sample": False, "eos_token_id": None}

    def both() -> torch.Tensor:
        cache = DynamicCache(config=model.config)
        said = model.generate(first, cache=cache, **settings)
        return model.generate(torch.cat([said, second], 1), cache=cache, **settings)

    want = both()
    with recall.applied(model) as report:
        found = both()
    assert torch.equal(found, want)
    assert all(layer.seen == layer.attended + sum(layer.fetched) for layer in report.layers.values())
    assert all(layer.fetched[-1] > layer.fetched[0] for layer in report.layers.values())


@pytest.mark.parametrize("placement", ["device", "host"])
def test_a_cache_stays_usable_without_the_policy(placement: str) -> None:
    model = build_latent()
    tokens, steps = ids(60), ids(6, seed=3)
    with torch.no_grad():
        stock = DynamicCache(config=model.config)
        want = [model(tokens, cache=stock).logits[:, -1]]
        want += [model(steps[:, i : i + 1], cache=stock).logits[:, -1] for i in range(6)]
        cache = DynamicCache(config=model.config)
        with policy(model, ratio=8.0, z=float("inf"), gate=False, placement=placement).applied(model):
            found = [model(tokens, cache=cache).logits[:, -1]]
            found += [model(steps[:, i : i + 1], cache=cache).logits[:, -1] for i in range(3)]
        found += [model(steps[:, i : i + 1], cache=cache).logits[:, -1] for i in range(3, 6)]
    torch.testing.assert_close(torch.stack(found), torch.stack(want), atol=1e-5, rtol=0)


def test_a_stock_cache_is_taken_over() -> None:
    """Rows written before the policy came are parted like any others."""
    model = build_latent()
    tokens, step = ids(60), ids(1, seed=3)
    with torch.no_grad():
        cache = DynamicCache(config=model.config)
        model(tokens, cache=cache)
        want = model(step, cache=copy.deepcopy(cache)).logits
        with policy(model, ratio=8.0, z=float("inf"), gate=False).applied(model) as report:
            found = model(step, cache=cache).logits
    torch.testing.assert_close(found, want, atol=1e-5, rtol=0)
    assert all(layer.fetched[0] > 30 for layer in report.layers.values())


@pytest.mark.parametrize("placement", ["device", "host"])
@pytest.mark.parametrize("selector", ["branch", "h2o", "snapkv", "quest", "streaming"])
def test_padded_rows_read_what_they_read_alone(selector: str, placement: str) -> None:
    """With a policy that leaves rows out: padding must not enter filter, budget or archive."""
    model = build_latent()
    tokens, mask = padded([45, 70])
    recall = policy(model, selector=selector, ratio=4.0, recall=False, placement=placement)
    settings = {"max_new_tokens": 10, "do_sample": False, "eos_token_id": None}
    with recall.applied(model):
        found = model.generate(tokens, attention_mask=mask, **settings)
        for row, length in enumerate((45, 70)):
            alone = model.generate(tokens[row : row + 1, 70 - length :], **settings)
            assert torch.equal(alone[0, length:], found[row, 70:])


def test_copies_of_a_cache_go_their_own_ways() -> None:
    model = build_latent()
    recall = policy(model, ratio=4.0)
    tokens, steps, others = ids(60), ids(40, seed=4), ids(40, seed=5)
    with torch.no_grad(), recall.applied(model):
        cache = DynamicCache(config=model.config)
        model(tokens, cache=cache)
        model(steps[:, :1], cache=cache)
        twin = copy.deepcopy(cache)
        for at in range(1, 40):  # past the end of a block, so that states are replaced
            want = model(steps[:, at : at + 1], cache=cache).logits
            model(others[:, at : at + 1], cache=twin)
        again = DynamicCache(config=model.config)
        model(tokens, cache=again)
        for at in range(40):
            found = model(steps[:, at : at + 1], cache=again).logits
    torch.testing.assert_close(found, want, atol=0, rtol=0)


@pytest.mark.parametrize("placement", ["device", "host"])
def test_state_follows_its_sequence(placement: str) -> None:
    """Reordered, repeated and selected sequences step on as they would have in their old places."""
    model = build_latent("deepseek_v3")  # KDA caches of transformers cannot be repeated
    recall = policy(model, "deepseek_v3", ratio=6.0, placement=placement)
    tokens, mask = padded([60, 45, 52])
    step = ids(3, batch=1, seed=9).T
    later = torch.cat([mask, torch.ones(3, 2).long()], 1)

    def stepped(change, rows: list[int]) -> torch.Tensor:
        cache = DynamicCache(config=model.config)
        model(tokens, attention_mask=mask, cache=cache)
        model(step, attention_mask=later[:, :-1], cache=cache)
        change(cache)
        return model(step[rows], attention_mask=later[rows], cache=cache).logits

    with torch.no_grad(), recall.applied(model):
        want = stepped(lambda cache: None, [0, 1, 2])
        swapped = stepped(lambda cache: cache.reorder_cache(torch.tensor([2, 0, 1])), [2, 0, 1])
        twice = stepped(lambda cache: cache.batch_repeat_interleave(2), [0, 0, 1, 1, 2, 2])
        some = stepped(lambda cache: cache.batch_select_indices(torch.tensor([2, 1])), [2, 1])
    torch.testing.assert_close(swapped, want[[2, 0, 1]], atol=1e-5, rtol=0)
    torch.testing.assert_close(twice, want.repeat_interleave(2, 0), atol=1e-5, rtol=0)
    torch.testing.assert_close(some, want[[2, 1]], atol=1e-5, rtol=0)
    assert (want[0] - want[1]).abs().max() > 1e-2


def test_a_cropped_cache_is_parted_anew() -> None:
    model = build_latent("deepseek_v3")
    recall = policy(model, "deepseek_v3", ratio=6.0, placement="host")
    with torch.no_grad(), recall.applied(model):
        cache = DynamicCache(config=model.config)
        model(ids(60), cache=cache)
        model(ids(1, seed=1), cache=cache)
        cache.crop(-20)
        assert cache.get_seq_length() == 41
        found = model(ids(1, seed=3), cache=cache).logits
        fresh = DynamicCache(config=model.config)
        model(ids(60)[:, :41], cache=fresh)
        want = model(ids(1, seed=3), cache=fresh).logits
    assert cache.layers[0].states[0].closed == fresh.layers[0].states[0].closed == 32
    assert torch.equal(cache.layers[0].states[0].kept, fresh.layers[0].states[0].kept)
    assert found.shape == want.shape


def test_a_reset_cache_starts_anew() -> None:
    model = build_latent("deepseek_v3")
    recall = policy(model, "deepseek_v3", ratio=4.0)
    with torch.no_grad(), recall.applied(model):
        cache = DynamicCache(config=model.config)
        model(ids(60), cache=cache)
        model(ids(1, seed=1), cache=cache)
        cache.reset()
        model(ids(50, seed=2), cache=cache)
        found = model(ids(1, seed=3), cache=cache).logits
        fresh = DynamicCache(config=model.config)
        model(ids(50, seed=2), cache=fresh)
        want = model(ids(1, seed=3), cache=fresh).logits
    torch.testing.assert_close(found, want, atol=0, rtol=0)


def test_the_model_is_left_as_it_was() -> None:
    model = build_latent()
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    with pytest.raises(RuntimeError, match="stop"), policy(model).applied(model):
        model.generate(ids(40), max_new_tokens=3, do_sample=False, eos_token_id=None)
        raise RuntimeError("stop")
    assert {name: set(vars(module)) for name, module in model.named_modules()} == before
    assert model.config._attn_implementation == "sdpa"
    assert not model.model._forward_pre_hooks


def test_refusals() -> None:
    model = build_latent()
    with policy(model).applied(model), pytest.raises(BadInput, match="already"), policy(model).applied(model):
        pass
    model.set_attn_implementation("eager")
    with pytest.raises(BadInput, match="sdpa"), policy(model).applied(model):
        pass
    model.set_attn_implementation("sdpa")
    tokens, mask = padded([30, 40])
    right = mask.flip(1)
    with policy(model).applied(model), torch.no_grad():
        with pytest.raises(BadInput, match="right padding"):
            model(tokens, attention_mask=right)
        model.train()
        with pytest.raises(BadInput, match="training"):
            model(tokens)
        model.eval()
    with pytest.raises(BadInput, match=r"rotated.*--control"):
        twin = build_latent("kimi_linear_rotated")
        Recall.of_prompts(twin, RecallSettings(**BASE)).check(twin)
