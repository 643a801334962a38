"""Rows drawn at random: the control that any choice has to beat (RidgeFill table 6)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ridgefit.errors import BadInput
from ridgefit.runtime.selectors.prompt import Asked, Counted, Probed, Prompt, Selector, Taken, free


@dataclass(frozen=True)
class Random(Counted):
    """Rows drawn uniformly, the same for every fill of the same prompt.

    Attributes:
        seed: drawn from together with the prompt's ids.
        like: as many rows as this selector would choose, whatever it chooses them by.
    """

    seed: int = 0
    like: Selector | None = None

    name = "random"

    def __post_init__(self) -> None:
        """Refuse two budgets."""
        super().__post_init__()
        if self.like is not None and (self.share is not None or self.count is not None):
            raise BadInput("random rows have a budget and a selector that sets one", "give one of them")

    @property
    def reads_tokens(self) -> bool:
        """If the selector it is like does."""
        return self.like is not None and self.like.reads_tokens

    def check(self, split: int, tail: int) -> None:
        """Refuse what the selector it is like refuses."""
        if self.like is not None:
            self.like.check(split, tail)

    def asks(self, split: int) -> tuple[Asked | Probed, ...]:
        """What the selector it is like asks."""
        return () if self.like is None else self.like.asks(split)

    def tables(self) -> tuple[Path | None, ...]:
        """Those of the selector it is like."""
        return () if self.like is None else self.like.tables()

    def choose(self, prompt: Prompt, split: int, taken: Taken) -> list[int]:
        """The first rows of a permutation."""
        candidates = free(prompt, taken)
        count = self.budget(prompt)
        if self.like is not None:
            count = len(set(self.like.choose(prompt, split, taken)) & set(candidates))
        generator = torch.Generator().manual_seed(_seed(self.seed, prompt.ids, prompt.rows))
        order = torch.randperm(len(candidates), generator=generator)[:count]
        return [candidates[place] for place in order.tolist()]


def _seed(seed: int, ids: Sequence[int] | None, rows: int) -> int:
    """A seed of its own for every prompt; embeddings are told apart by their length only."""
    text = f"{seed} {rows} {' '.join(map(str, ids or ()))}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
