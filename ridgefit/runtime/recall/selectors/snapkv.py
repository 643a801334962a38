"""SnapKV: rows that the last queries of the prompt attended to, smoothed (Li et al. 2024)."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.nn.functional import avg_pool1d

from ridgefit.runtime.recall.selectors.h2o import observed
from ridgefit.runtime.recall.selectors.selector import Sees, Selector, Window

QUERIES = 32
"""Queries at the end of the prompt that vote."""
POOLED = 7
"""Neighbouring rows whose votes are averaged."""


class SnapKVSelector(Selector):
    """Votes of the last 32 queries, averaged over seven neighbours."""

    name: ClassVar[str] = "snapkv"
    sees: ClassVar[Sees] = "last queries"

    def scores(self, window: Window) -> Tensor:
        """Pooled votes."""
        votes = observed(window)[None, None]
        return avg_pool1d(votes, POOLED, stride=1, padding=POOLED // 2)[0, 0]
