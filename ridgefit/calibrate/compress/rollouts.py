"""What is trained on: prompts, and the target's own continuations of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ridgefit.corpus.prompts import Prompt

_AT_ONCE = 32
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Rollouts:
    """Prompts with continuations.

    Attributes:
        ids: `[rows, prompt + rollout]`, on the CPU.
        prompt: tokens of a prompt.
        weights: `[rows, rollout]`, 0 after an end token.
    """

    ids: Tensor
    prompt: int
    weights: Tensor


@torch.no_grad()
def roll_out(
    target: Any,
    prompts: Sequence[Prompt],
    tokens: int,
    ends: frozenset[int],
    *,
    temperature: float,
    seed: int,
    progress: Progress | None = None,
) -> Rollouts:
    """Continuations by the target, batched; tokens after an end token weigh nothing.

    Args:
        target: model.
        prompts: all of one length.
        tokens: of a continuation.
        ends: end tokens.
        temperature: 0 is greedy.
        seed: of sampling.
        progress: called after each batch.
    """
    rows = torch.tensor([prompt.tokens for prompt in prompts], dtype=torch.long)
    torch.manual_seed(seed)  # transformers samples from the global generator
    sampling: dict[str, Any] = (
        {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        if temperature
        else {"do_sample": False, "temperature": None, "top_k": None, "top_p": None}
    )
    parts = []
    for start in range(0, len(rows), _AT_ONCE):
        ids = rows[start : start + _AT_ONCE].to(target.device)
        found = target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            eos_token_id=[2**31 - 1],  # no token: every row is continued to its length
            pad_token_id=0,
            repetition_penalty=1.0,
            **sampling,
        )
        parts.append(found.cpu())
        if progress:
            progress(min(start + _AT_ONCE, len(rows)), len(rows), "rollouts")
    ids = torch.cat(parts)
    new = ids[:, rows.shape[1] :]
    ended = torch.zeros_like(new, dtype=torch.bool)
    for end in ends:
        ended |= new == end
    after = ended.cumsum(1) - ended.long() > 0
    return Rollouts(ids, rows.shape[1], (~after).float())
