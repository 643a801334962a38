"""Whatever the draft and its cache do, the output is the target's own (fp64, greedy)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from draft_models import BUDGET, FAMILIES, SETTINGS, draft, model, plain, related, stop
from tiny_models import tokens

from ridgefit.runtime.draft import POLICIES, CacheSettings, Drafter, Proposal
from ridgefit.runtime.draft.controllers import Periodic
from ridgefit.runtime.speculative import Chooser, Decoded, Draft, Speculation, decode, drafting, replay

NEW = 28
COMPRESSING = [name for name in POLICIES if name != "full"]


def al(decoded: Decoded, drafted: int = 4) -> float:
    whole = [r.accepted for r in decoded.rounds if r.drafted == drafted]
    return 1 + sum(whole) / len(whole)


def check(target: Any, who: Any, policy: str, seed: int, rows: int = 40) -> Decoded:
    """Decode, and hold what must hold in every policy: the output, the budget, and the replay."""
    prompt = tokens(rows, seed=seed)[0].tolist()
    wanted = plain(target, prompt, NEW)
    found = decode(target, draft(who, policy), prompt, NEW, stop=stop)
    assert found.tokens == wanted
    assert found.widest <= BUDGET
    again = replay(draft(who, policy), prompt, wanted, stop=stop)
    assert [(r.accepted, r.refreshed) for r in again.rounds] == [
        (r.accepted, r.refreshed) for r in found.rounds
    ]
    return found


@pytest.mark.parametrize("policy", list(POLICIES))
@pytest.mark.parametrize("family", FAMILIES)
def test_output_is_the_targets(family: str, policy: str) -> None:
    found = check(model(family), related(family), policy, seed=3)
    if policy != "full":
        assert found.widest == BUDGET  # the budget is used, so the test has tested something


@pytest.mark.slow  # ten prompts for every family as draft and as target, all policies: three minutes
@pytest.mark.parametrize("policy", list(POLICIES))
@pytest.mark.parametrize(
    ("target", "who"),
    [
        *((family, family) for family in FAMILIES),
        ("llama", "qwen3_5"),
        ("qwen3_5", "llama"),
        ("qwen3", "gemma3"),
        ("gemma3", "qwen3"),
    ],
)
def test_output_is_the_targets_on_ten_prompts(target: str, who: str, policy: str) -> None:
    source = related(who) if who == target else model(who, seed=1)
    for seed in range(10):
        check(model(target), source, policy, seed)


@pytest.mark.parametrize(("target", "who"), [("llama", "qwen3_5"), ("qwen3_5", "gemma3")])
def test_families_may_differ(target: str, who: str) -> None:
    check(model(target), model(who, seed=1), "rift-dyn", seed=5)


@pytest.mark.parametrize("family", FAMILIES)
def test_self_speculation_with_the_whole_cache_accepts_everything(family: str) -> None:
    """AL = drafted + 1 exactly: the cheapest test of every roll-back."""
    prompt = tokens(30, seed=1)[0].tolist()
    found = decode(model(family), draft(model(family), "full"), prompt, 41)
    assert [r.accepted for r in found.rounds] == [r.drafted for r in found.rounds]
    assert al(found) == 5


@pytest.mark.parametrize("family", FAMILIES)
def test_a_budget_above_the_text_is_the_whole_cache(family: str) -> None:
    prompt = tokens(20, seed=2)[0].tolist()
    target, who = model(family), related(family)
    whole = decode(target, draft(who, "full"), prompt, 20)
    for policy in ("rift-stat", "snapkv", "swa", "streaming", "h2o"):
        wide = decode(target, draft(who, policy, CacheSettings(budget=64, observe=6)), prompt, 20)
        assert [r.accepted for r in wide.rounds] == [r.accepted for r in whole.rounds]


@pytest.mark.parametrize("policy", COMPRESSING)
def test_a_prompt_below_the_budget_outgrows_it(policy: str) -> None:
    """Dense at first; never wider than the budget afterwards, and selected at the first chance."""
    prompt = tokens(9, seed=4)[0].tolist()
    target = model("llama")
    found = decode(target, draft(model("llama"), policy), prompt, 40)
    assert found.tokens == decode(target, draft(target, "full"), prompt, 40).tokens
    assert found.widest == BUDGET


class Accepting:
    """A verifier that accepts every drafted token."""

    def prefill(self, prompt: Sequence[int]) -> None: ...

    def settle(self, length: int) -> None: ...

    def verify(self, committed: Sequence[int], proposal: Proposal) -> tuple[int, int]:
        return len(proposal.tokens), 5 + len(committed) % 7


@pytest.mark.parametrize("family", FAMILIES)
def test_the_budget_holds_after_full_acceptance(family: str) -> None:
    """Two tokens are read at once then; a window that forgets this shows one column too many."""
    settings = CacheSettings(budget=20, observe=6, every=8, recent_share=0.9)
    drafter = Drafter(model(family), POLICIES["rift-dyn"], settings)
    speculation = Speculation(Accepting(), drafter, Chooser(), drafted=4)
    decoding = speculation.start(tokens(60, seed=6)[0].tolist())
    for _ in speculation.rounds(decoding, 40):
        assert drafter.widest <= 20
    assert drafter.widest == 20
    assert drafter.spent.refreshes >= 3


def test_the_end_token_cuts_a_round() -> None:
    target = model("llama")
    for seed in range(12):
        prompt = tokens(25, seed=seed)[0].tolist()
        free = decode(target, draft(target, "full"), prompt, 30).tokens
        end = free[6]
        found = decode(target, draft(target, "full"), prompt, 30, stop=lambda t, end=end: t[-1] == end)
        assert found.tokens == free[: free.index(end) + 1]
        assert found.rounds[-1].emitted <= found.rounds[-1].accepted + 1


@pytest.mark.parametrize("family", ["llama", "qwen3_5"])
def test_inside_generate(family: str) -> None:
    """Penalties, end tokens and streamers are the call's own; recurrent targets work too."""
    target, prompt = model(family), tokens(40, seed=8)
    seen: list[int] = []

    class Streamer:
        def put(self, value: torch.Tensor) -> None:
            seen.extend(value.flatten().tolist())

        def end(self) -> None:
            seen.append(-1)

    streamer = Streamer()
    reports: list[Decoded] = []
    options: dict[str, Any] = {
        "max_new_tokens": 20,
        "do_sample": False,
        "repetition_penalty": 1.7,
        "pad_token_id": 0,
        "eos_token_id": [2, 77],
    }
    wanted = target.generate(prompt, **options)
    found = target.generate(
        prompt,
        **options,
        streamer=streamer,
        custom_generate=drafting(draft(related(family), "rift-dyn"), reports.append, streamer=streamer),
    )
    assert found.tolist() == wanted.tolist()
    assert seen == [*found[0].tolist(), -1]
    assert reports[0].tokens == found[0, 40:].tolist()


def test_nothing_is_left_on_the_models() -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    target = model("qwen3")
    before = (target.config._attn_implementation, sorted(ALL_ATTENTION_FUNCTIONS), dict(vars(target)))
    decode(target, draft(target, "rift-dyn"), tokens(40, seed=1)[0].tolist(), 10)
    after = (target.config._attn_implementation, sorted(ALL_ATTENTION_FUNCTIONS), dict(vars(target)))
    assert before == after
    assert all(not module._forward_pre_hooks for module in target.modules())


def test_controllers_are_made_for_each_request() -> None:
    """A schedule that was used up would refresh once instead of often."""
    made: list[Periodic] = []

    def new() -> Periodic:
        made.append(Periodic(4))
        return made[-1]

    own = Draft(related("llama"), POLICIES["rift-ada"], SETTINGS, new, 4)
    counts = [decode(model("llama"), own, tokens(40, seed=3)[0].tolist(), 24).refreshes for _ in range(2)]
    assert counts[0] == counts[1] > 1
    assert len(made) == 2
