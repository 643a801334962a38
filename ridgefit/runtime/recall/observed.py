"""What is noted of a prompt's queries while the model reads it, for selectors and thresholds that need it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ridgefit.models.latent import LatentAttention
from ridgefit.runtime.recall.selectors.selector import Sees
from ridgefit.runtime.recall.selectors.snapkv import QUERIES

SAMPLED = 256
"""Positions whose queries are kept at most for thresholds of a request's own."""
_AT_ONCE = 256


@dataclass(frozen=True)
class Observed:
    """One sequence of one layer; positions count from its first token.

    Attributes:
        mass: `[rows]` fp32, attention summed over queries and heads, or None.
        last: newest queries `[heads, at most 32, nope + branch]`, or None.
        sample: queries at `positions`, `[heads, positions, nope + branch]`, or None.
        positions: int64, multiples of `stride`.
        stride: doubles whenever the sample is full, so that it does not depend on how a prompt was cut.
        end: position after the last noted query.
    """

    mass: Tensor | None = None
    last: Tensor | None = None
    sample: Tensor | None = None
    positions: Tensor | None = None
    stride: int = 1
    end: int = 0

    def after(
        self, queries: Tensor, first: int, rows: Tensor, attention: LatentAttention, sees: Sees, sample: bool
    ) -> Observed:
        """With further queries noted.

        Args:
            queries: `[heads, queries, nope + branch]`, of consecutive positions from `first` on.
            first: position of the first.
            rows: `[rows, width]` cached up to the last query.
            attention: the layer.
            sees: what the selector reads.
            sample: whether queries are kept for thresholds.
        """
        new = replace(self, end=first + queries.shape[1])
        if sees == "all queries":
            added = attention_mass(attention.absorb(queries).float(), first, rows, attention.scale)
            if self.mass is not None:
                added[: self.mass.numel()] += self.mass
            new = replace(new, mass=added)
        if sees == "last queries":
            joined = queries if self.last is None else torch.cat([self.last, queries], dim=1)
            new = replace(new, last=joined[:, -QUERIES:].clone())
        if sample:
            new = new._sampled(queries, first)
        return new

    def _sampled(self, queries: Tensor, first: int) -> Observed:
        at = torch.arange(first, first + queries.shape[1], device=queries.device)
        here = at % self.stride == 0
        at, kept = at[here], queries[:, here]
        if self.sample is not None and self.positions is not None:
            at, kept = torch.cat([self.positions, at]), torch.cat([self.sample, kept], dim=1)
        stride = self.stride
        while at.numel() > 2 * SAMPLED:  # of these, half lie in the prompt's second half
            stride *= 2
            here = at % stride == 0
            at, kept = at[here], kept[:, here]
        return replace(self, sample=kept.clone(), positions=at, stride=stride)

    def votes(self, rows: Tensor, attention: LatentAttention, sees: Sees) -> Tensor | None:
        """Attention `[at most rows]` that a selector shall see: what was summed, or that of the last queries.

        Args:
            rows: `[rows, width]` from the sequence's first on.
            attention: the layer.
            sees: what the selector reads.
        """
        if sees == "all queries":
            return self.mass
        if self.last is None:
            return None
        queries = attention.absorb(self.last).float()
        return attention_mass(queries, self.end - queries.shape[1], rows[: self.end], attention.scale)


def attention_mass(queries: Tensor, first: int, rows: Tensor, scale: float) -> Tensor:
    """Column sums `[rows]` fp32 of causal attention, over heads and queries.

    Args:
        queries: absorbed, `[heads, queries, width]` fp32, of consecutive positions from `first` on.
        first: position of the first.
        rows: `[rows, width]`.
        scale: factor on inner products.
    """
    rows = rows.float()
    total = torch.zeros(rows.shape[0], device=rows.device)
    at = torch.arange(rows.shape[0], device=rows.device)
    for start in range(0, queries.shape[1], _AT_ONCE):
        part = queries[:, start : start + _AT_ONCE]
        position = first + start + torch.arange(part.shape[1], device=rows.device)
        scores = (scale * part @ rows.T).masked_fill(at > position[:, None], -torch.inf)
        total += scores.softmax(-1).sum((0, 1))
    return total
