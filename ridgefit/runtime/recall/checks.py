"""The promises a recall policy makes on any model, tried on that model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ridgefit.maps.recall import RecallPolicy
from ridgefit.models.latent import ROTATED, LatentModel
from ridgefit.runtime.recall.recall import Recall

# Largest difference in log-probability (nats) when every row is read, but absorbed rather than expanded.
LIMITS = {torch.float32: 1e-4, torch.float64: 1e-6, torch.float16: 0.05, torch.bfloat16: 0.5}
_STEPS = 6


@dataclass(frozen=True)
class RecallCheck:
    """One promise, tried.

    Attributes:
        name: what holds.
        passed: whether it does.
        detail: the numbers behind it.
    """

    name: str
    passed: bool
    detail: str


def check_policy(recall: Recall, model: Any, *, prompt: int = 96, seed: int = 0) -> Iterator[RecallCheck]:
    """Try a policy on random tokens: a prompt, then steps of one token on its cache.

    Args:
        recall: the policy.
        model: a causal language model with a latent cache, in eval mode.
        prompt: prompt tokens.
        seed: of the tokens.

    Raises:
        BadInput: the policy is of another model.
    """
    latent = LatentModel(model)
    recall.check(model)
    spread = max(latent.branch_spread().values())
    control = recall.policy.settings.control
    yield RecallCheck(
        "premise",
        passed=spread <= ROTATED or control,
        detail=f"one vector's branches differ by {spread:.3g} over positions, {ROTATED:g} counts as rotated"
        + (" (a control arm)" if control else ""),
    )
    generator = torch.Generator().manual_seed(seed)
    vocabulary = int(latent.config.vocab_size)
    tokens = torch.randint(0, vocabulary, (1, prompt + _STEPS), generator=generator).to(latent.device)
    with torch.no_grad():
        stock = _steps(latent, tokens, prompt)
        whole: dict[str, dict[str, Any]] = {
            "every row kept": {"ratio": 1.0, "rows": None, "recall": False},
            "every row fetched": {"z": math.inf, "gate": False, "recall": True, "cap": prompt},
        }
        for name, changes in whole.items():
            changed = _changed(recall.policy, prompt, changes)
            with changed.applied(model) as report:
                found = _steps(latent, tokens, prompt)
            difference = float((found - stock).abs().max())
            limit = LIMITS.get(latent.dtype, LIMITS[torch.float32])
            fetched = sum(sum(layer.fetched) for layer in report.layers.values())
            yield RecallCheck(
                name,
                passed=difference <= limit and (fetched > 0) == (name == "every row fetched"),
                detail=f"{fetched} rows fetched, largest difference {difference:.3g} nats, at most {limit:g}",
            )
        after = _steps(latent, tokens, prompt)
    yield RecallCheck(
        "off", passed=bool(torch.equal(after, stock)), detail="the model is as it was, bit for bit"
    )


def _changed(policy: RecallPolicy, prompt: int, changes: dict[str, Any]) -> Recall:
    """The policy with other settings, and windows short enough for the prompt to close."""
    kappa = min(policy.settings.kappa, prompt // 8)
    short = {"window": "prefix", "kappa": kappa, "block": max(2 * kappa, 2), "recent": 0, "top_rows": None}
    changed = policy.settings.model_copy(update={**short, "thresholds": "prompt", **changes})
    manifest = policy.manifest.model_copy(update={"settings": changed})
    return Recall(replace(policy, manifest=manifest))


def _steps(latent: LatentModel, tokens: Tensor, prompt: int) -> Tensor:
    """Log-probabilities `[steps, vocab]` fp32 of steps of one token after a prompt."""
    cache = latent.new_cache()
    latent.feed(tokens[:, :prompt], cache)
    steps = [
        latent.feed(tokens[:, at : at + 1], cache)[0, -1].float().log_softmax(-1)
        for at in range(prompt, tokens.shape[1])
    ]
    return torch.stack(steps)
