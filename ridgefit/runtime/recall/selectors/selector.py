"""What a selector is: scores for the rows of a window that closes, and how many of them are kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

Sees = Literal["rows", "all queries", "last queries", "each query"]


@dataclass(frozen=True)
class Window:
    """Rows that close together, in one sequence of one layer.

    Attributes:
        rows: `[rows, latent + branch]` in the cache's dtype.
        branch: width of the branch, the last entries of a row.
        kappa: low-pass bins.
        first: the window's first row, counted from the sequence's first token.
        layer: layer number.
        seed: for what is drawn at random.
        mass: `[rows]`, attention that past queries of all heads paid to each row; for selectors that see it.
    """

    rows: Tensor
    branch: int
    kappa: int
    first: int = 0
    layer: int = 0
    seed: int = 0
    mass: Tensor | None = None


class Selector(ABC):
    """Ranks rows when their window closes; the highest scores of all closed rows stay attended.

    Attributes:
        name: key in the registry.
        sees: what it reads: rows alone, the attention of all past queries or of the last few, or each query
            as it comes (then it keeps no fixed set).
    """

    name: ClassVar[str]
    sees: ClassVar[Sees] = "rows"

    @abstractmethod
    def scores(self, window: Window) -> Tensor:
        """`[rows]` fp32, the higher the rather kept; never changed afterwards."""

    def choose(self, scores: Tensor, count: int) -> Tensor:
        """Which rows are kept: `count` of them, ascending, from the scores of all closed rows."""
        return top(scores, count)


def top(scores: Tensor, count: int) -> Tensor:
    """The `count` rows of highest score, ascending; of equal ones the earlier."""
    best = torch.argsort(scores, descending=True, stable=True)[:count]
    return best.sort().values
