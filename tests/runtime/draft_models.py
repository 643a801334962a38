"""Tiny targets and drafts in fp64 for the tests of speculative decoding."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from tiny_models import build_hybrid, build_tiny

from ridgefit.runtime.draft import POLICIES, CacheSettings
from ridgefit.runtime.draft.controllers import Adaptive, Gate, Pace
from ridgefit.runtime.speculative import Draft

FAMILIES = ("llama", "qwen3", "gemma3", "qwen3_5")
BUDGET = 16
SETTINGS = CacheSettings(budget=BUDGET, observe=6, every=8)
END = 2


@cache
def model(family: str, seed: int = 0) -> Any:
    """A tiny model; do not change it."""
    if family == "qwen3_5":
        return build_hybrid(seed=seed, layers=4).double()
    layers = 3 if family == "gemma3" else 2
    settings = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
    own = settings if family == "gemma3" else {}
    return build_tiny(family, seed=seed, num_hidden_layers=layers, **own).double()


@cache
def related(family: str, seed: int = 0) -> Any:
    """A draft that often agrees with `model(family, seed)`: the same with noise on its weights."""
    import copy

    found = copy.deepcopy(model(family, seed))
    generator = torch.Generator().manual_seed(99)
    with torch.no_grad():
        for _, weight in sorted(found.named_parameters()):
            if weight.ndim > 1:
                noise = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
                weight.add_(0.1 * weight.std() * noise)
    return found


def adaptive() -> Adaptive:
    """A gate that opens on most intervals."""
    return Adaptive(Pace(interval=4, min_gap=4), Gate({"acc_mean": 3.5}, {"drift": 0.05}))


def draft(who: Any, policy: str, settings: CacheSettings = SETTINGS, drafted: int = 4) -> Draft:
    """`who` as a draft under a policy; the adaptive one gets a gate."""
    controller = adaptive if POLICIES[policy].controller is None else None
    return Draft(who, POLICIES[policy], settings, controller, drafted)


def stop(tokens: Any) -> bool:
    """Whether the last token is the end token."""
    return bool(tokens[-1] == END)


@torch.no_grad()
def plain(target: Any, prompt: list[int], new_tokens: int) -> list[int]:
    """transformers' own greedy output."""
    ids = torch.tensor([prompt])
    out = target.generate(ids, max_new_tokens=new_tokens, do_sample=False, pad_token_id=0)
    return [int(token) for token in out[0, len(prompt) :]]
