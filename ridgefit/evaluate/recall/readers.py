"""Readers that only evaluation needs: one notes for all selectors, one watches and changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ridgefit.models.latent import LatentAttention
from ridgefit.models.latentcache import LatentLayer
from ridgefit.runtime.recall.attend import Read
from ridgefit.runtime.recall.reader import Near, PolicyReader
from ridgefit.runtime.recall.tier import Tier


class PrefixReader(PolicyReader):
    """Leaves a prefix to the model and notes of its queries whatever any selector or threshold may need.

    One prefill then serves every arm, which reads a copy of its cache.
    """

    def reads(self, layer: LatentLayer, queries: int) -> bool:
        """Never."""
        del layer, queries
        return False

    def observe(self, layer: LatentLayer, attention: LatentAttention, queries: Tensor) -> None:
        """Note attention mass, last queries and a sample."""
        total = layer.get_seq_length()
        for sequence, start in enumerate(layer.starts):
            rows = layer.rows(sequence, torch.arange(start, total, device=queries.device))
            tier: Tier = layer.states[sequence] or Tier()
            first = total - start - queries.shape[2]
            observed = tier.observed.after(queries[sequence], first, rows, attention, "all queries", True)
            observed = replace(observed, end=first)
            observed = observed.after(queries[sequence], first, rows, attention, "last queries", False)
            layer.states[sequence] = replace(tier, observed=observed)


class ShadowReader(PolicyReader):
    """Decides like the policy, gives the model dense attention, and sums what the policy keeps of it.

    So every arm is measured on the same queries, whatever it would have done to them.

    Attributes:
        mass: dense attention on rows that the policy read, summed over (query, head) pairs of all layers.
        pairs: how many pairs.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.mass = 0.0
        self.pairs = 0

    def result(
        self,
        layer: LatentLayer,
        attention: LatentAttention,
        sequence: int,
        tier: Tier,
        queries: Tensor,
        near: Near,
        found: Read,
    ) -> Tensor:
        """Dense attention over every row the queries may see."""
        start, total, count = layer.starts[sequence], layer.get_seq_length(), queries.shape[1]
        every = torch.arange(start, total, device=queries.device)
        rows = layer.rows(sequence, every).float()
        scores = attention.scale * queries @ rows.T
        at = torch.arange(total - count, total, device=queries.device)
        weights = scores.masked_fill(every > at[:, None], -torch.inf).softmax(-1)
        read = torch.zeros(count, total - start, dtype=torch.bool, device=queries.device)
        read[:, near.columns - start] = True if near.seen is None else near.seen
        if found.read is not None and tier.archive is not None:
            read[:, tier.archive] |= found.read
        self.mass += float((weights * read).double().sum())
        self.pairs += weights.shape[0] * count
        return weights @ rows[:, : attention.latent]
