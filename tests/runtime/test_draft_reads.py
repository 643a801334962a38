"""What a policy is said not to read changes nothing that it does; what it is said to read does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from draft_models import draft, model, related
from tiny_models import tokens

from ridgefit.runtime.draft import POLICIES, CacheSettings
from ridgefit.runtime.draft.reads import unread
from ridgefit.runtime.speculative import decode

BASE = CacheSettings(budget=16, observe=6, every=8)
OTHER: dict[str, dict[str, Any]] = {
    "budget": {"budget": 12},
    "keep_ratio": {"budget": None, "keep_ratio": 0.25},
    "recent_share": {"recent_share": 0.2},
    "window": {"window": 3},
    "observe": {"observe": 2},
    "kernel": {"kernel": 1},
    "every": {"every": 3},
    "candidates": {"candidates": "since"},
}
PROMPT = tokens(40, seed=3)[0].tolist()


def did(policy: str, settings: CacheSettings) -> tuple[Any, ...]:
    """What is left of a request: rounds, what refreshes replaced, and how much was in sight."""
    found = decode(model("llama"), draft(related("llama"), policy, settings), PROMPT, 32, measure_every=1)
    return found.rounds, found.changed, found.refreshes, found.widest, found.budget


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "rift-ada"])
def test_a_policy_reads_what_it_is_said_to_read(policy: str) -> None:
    base = did(policy, BASE)
    same = {name for name, change in OTHER.items() if did(policy, replace(BASE, **change)) == base}
    assert same == set(unread(POLICIES[policy]))


def test_the_adaptive_policy_reads_all_but_the_interval() -> None:
    assert unread(POLICIES["rift-ada"]) == ("every",)
