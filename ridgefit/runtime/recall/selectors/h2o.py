"""H2O: rows that past queries attended to most (Zhang et al. 2023)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ridgefit.runtime.recall.selectors.selector import Sees, Selector, Window, top


def observed(window: Window) -> Tensor:
    """The window's attention mass, zeros where nobody looked."""
    if window.mass is None:
        return torch.zeros(window.rows.shape[0], device=window.rows.device)
    return window.mass.float()


class H2OSelector(Selector):
    """Column sums of causal attention over all queries and heads so far."""

    name: ClassVar[str] = "h2o"
    sees: ClassVar[Sees] = "all queries"

    def scores(self, window: Window) -> Tensor:
        """Accumulated attention."""
        return observed(window)


class H2ORecentSelector(H2OSelector):
    """Half of the budget by accumulated attention, half for the newest rows, as H2O is deployed."""

    name: ClassVar[str] = "h2o-recent"

    def choose(self, scores: Tensor, count: int) -> Tensor:
        """The newest half, and the most attended of the rows before."""
        newest = count // 2
        before = scores.numel() - newest
        kept = top(scores[:before], count - newest)
        return torch.cat([kept, torch.arange(before, scores.numel(), device=kept.device)])
