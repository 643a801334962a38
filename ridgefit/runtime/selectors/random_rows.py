"""Rows drawn at random: the control that any choice has to beat (RidgeFill table 6)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ridgefit.runtime.selectors.prompt import Counted, Prompt, Taken, free


@dataclass(frozen=True)
class Random(Counted):
    """Rows drawn uniformly, the same for every fill of the same prompt.

    Attributes:
        seed: drawn from together with the prompt's ids.
    """

    seed: int = 0

    name = "random"

    def choose(self, prompt: Prompt, split: int, taken: Taken) -> list[int]:
        """The first rows of a permutation."""
        del split
        candidates = free(prompt, taken)
        generator = torch.Generator().manual_seed(_seed(self.seed, prompt.ids, prompt.rows))
        order = torch.randperm(len(candidates), generator=generator)[: self.budget(prompt)]
        return [candidates[place] for place in order.tolist()]


def _seed(seed: int, ids: Sequence[int] | None, rows: int) -> int:
    """A seed of its own for every prompt; embeddings are told apart by their length only."""
    text = f"{seed} {rows} {' '.join(map(str, ids or ()))}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
