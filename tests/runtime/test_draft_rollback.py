"""Taking tokens back leaves no trace, for attention, window-limited and recurrent layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from draft_models import FAMILIES, SETTINGS, model
from tiny_models import tokens

from ridgefit.models.rollback import new_cache
from ridgefit.models.stepper import Stepper
from ridgefit.runtime.draft import POLICIES, Drafter
from ridgefit.runtime.speculative import Chooser

CHOOSE = Chooser()


def recurrent_states(cache: Any) -> list[torch.Tensor]:
    return [
        state
        for layer in cache.layers
        if hasattr(layer, "recurrent_states")
        for held in (layer.recurrent_states, layer.conv_states)
        for state in held.values()
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_fifty_rejections_leave_the_state_of_a_fresh_forward(family: str) -> None:
    """Recurrent state and next logits, against one forward over the kept tokens only."""
    ids = tokens(130, seed=1)[0].tolist()
    stepper = Stepper(model(family))
    stepper.feed(ids[:10])
    kept = 10
    noise = torch.Generator().manual_seed(0)
    for turn in range(50):
        stepper.mark()
        stepper.feed([ids[kept]])
        drafted = torch.randint(3, 300, (4,), generator=noise).tolist()
        accepted = turn % 3
        drafted[:accepted] = ids[kept + 1 : kept + 1 + accepted]
        for token in drafted:
            stepper.feed([token])
        kept += 1 + accepted
        stepper.rollback(kept)
        assert stepper.tokens == ids[:kept]
    cache = new_cache(model(family))
    with torch.no_grad():
        fresh = model(family)(input_ids=torch.tensor([ids[: kept + 1]]), cache=cache, use_cache=True)
    logits = stepper.feed([ids[kept]])
    torch.testing.assert_close(logits[-1], fresh.logits[0, -1], rtol=0, atol=1e-5)
    found, wanted = recurrent_states(stepper.cache), recurrent_states(cache)
    assert bool(found) == (family == "qwen3_5")
    for left, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-5)


def test_the_crop_of_transformers_would_corrupt_a_recurrent_draft() -> None:
    """Why there is a roll-back of our own: stock crop leaves the recurrent state of the refused tokens."""
    ids = tokens(40, seed=2)
    cache = new_cache(model("qwen3_5"))
    for layer in cache.layers:
        if hasattr(layer, "recurrent_states"):
            layer.activate_past_recording()
    with torch.no_grad():
        model("qwen3_5")(input_ids=ids, cache=cache, use_cache=True)
        cache.crop(-4)
        fresh = new_cache(model("qwen3_5"))
        model("qwen3_5")(input_ids=ids[:, :36], cache=fresh, use_cache=True)
    gaps = [
        float((left - right).abs().max())
        for left, right in zip(recurrent_states(cache)[::2], recurrent_states(fresh)[::2], strict=True)
    ]
    assert max(gaps) > 1e-2


@pytest.mark.parametrize("policy", ["rift-stat", "swa", "streaming"])
@pytest.mark.parametrize("family", FAMILIES)
def test_refused_drafts_leave_no_trace_in_a_compressed_cache(family: str, policy: str) -> None:
    ids = tokens(60, seed=3)[0].tolist()
    disturbed = Drafter(model(family), POLICIES[policy], SETTINGS)
    calm = Drafter(model(family), POLICIES[policy], SETTINGS)
    disturbed.prefill(ids[:40])
    calm.prefill(ids[:40])
    for length in range(40, 55):
        disturbed.propose(ids[:length], 4, CHOOSE)
        disturbed.settle(length)
        calm.propose(ids[:length], 1, CHOOSE)
        calm.settle(length)
        assert disturbed.length == calm.length == length
    assert disturbed.drift() == pytest.approx(calm.drift(), abs=1e-12)
    assert disturbed.retained() == pytest.approx(calm.retained(), abs=1e-7)
    left = disturbed.propose(ids[:55], 3, CHOOSE)
    right = calm.propose(ids[:55], 3, CHOOSE)
    assert left.tokens == right.tokens
    assert left.entropies == pytest.approx(right.entropies, abs=1e-5)
    assert disturbed.widest == calm.widest == 16


@pytest.mark.parametrize("family", FAMILIES)
def test_a_fork_comes_back(family: str) -> None:
    """An excursion with refreshes and roll-backs, twice, then the same future as without it."""
    ids = tokens(60, seed=4)[0].tolist()
    drafter = Drafter(model(family), POLICIES["rift-dyn"], SETTINGS)
    drafter.prefill(ids[:40])
    drafter.propose(ids[:40], 4, CHOOSE)
    drafter.settle(40)
    here = drafter.fork()
    futures = []
    for _ in range(3):
        drafter.restore(here)
        before = (drafter.length, drafter.drift(), drafter.spent.refreshes, drafter.since)
        future = drafter.propose(ids[:42], 4, CHOOSE)
        futures.append((before, future.tokens, future.entropies))
        for length in range(43, 58, 3):
            drafter.settle(length - 1)
            drafter.refresh()
            drafter.propose(ids[:length], 4, CHOOSE)
    assert futures[0] == futures[1] == futures[2]


def test_going_back_before_the_mark_is_refused() -> None:
    stepper = Stepper(model("qwen3_5"))
    stepper.feed([5, 6, 7, 8])
    stepper.mark()
    stepper.feed([9])
    with pytest.raises(ValueError, match="before the last mark"):
        stepper.rollback(2)
