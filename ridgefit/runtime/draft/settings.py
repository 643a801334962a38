"""Sizes of a draft cache: a budget, and how it is shared between the newest columns and selected ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ridgefit.errors import BadInput

Candidates = Literal["full", "since"]


@dataclass(frozen=True)
class CacheSettings:
    """How much of the draft's cache attention sees, and what is looked at to choose it.

    Attributes:
        budget: most columns that attention sees while decoding, B.
        keep_ratio: B as a share of the prompt, rounded down; instead of `budget`.
        recent_share: share of B for the newest columns, rho (RIFT section 4.1).
        window: newest columns in tokens instead of a share.
        observe: newest queries whose attention is the score.
        kernel: width of the average over neighbouring scores; odd.
        every: committed tokens between refreshes of a periodic policy, N (section 4.2).
        candidates: re-select from everything stored ("full"), or from the selected columns and those newer
            than the last refresh ("since"). The paper's wording allows both; results name the choice.
        seed: seed of random selections.
    """

    budget: int | None = None
    keep_ratio: float | None = None
    recent_share: float = 0.5
    window: int | None = None
    observe: int = 64
    kernel: int = 5
    every: int = 128
    candidates: Candidates = "full"
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what no prompt could make right."""
        if (self.budget is None) == (self.keep_ratio is None):
            raise BadInput(
                "a draft cache needs a budget or a keep ratio", "give one of --budget, --keep-ratio"
            )
        if self.budget is not None and self.budget < 2:
            raise BadInput(f"a budget of {self.budget} columns holds nothing", "give at least 2")
        if self.keep_ratio is not None and not 0 < self.keep_ratio <= 1:
            raise BadInput(
                f"a keep ratio of {self.keep_ratio} is no share", "give a number above 0, at most 1"
            )
        if not 0 < self.recent_share <= 1:
            raise BadInput(f"a recent share of {self.recent_share} is no share", "give a number in (0, 1]")
        if self.window is not None and self.budget is not None and self.window > self.budget:
            raise BadInput(
                f"a window of {self.window} columns is above the budget of {self.budget}",
                "shorten the window or raise the budget",
            )
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise BadInput(f"a kernel of {self.kernel} columns has no middle", "give an odd number")
        if self.observe < 1 or self.every < 1:
            raise BadInput("observed queries and tokens between refreshes start at 1", "raise them")

    def columns(self, prompt: int) -> int:
        """The budget B for a prompt of so many tokens."""
        if self.budget is not None:
            return self.budget
        found = int((self.keep_ratio or 0) * prompt)
        if found < 2:
            raise BadInput(
                f"a keep ratio of {self.keep_ratio} leaves {found} columns of {prompt} tokens",
                "raise the ratio or lengthen the prompt",
            )
        return found

    def share(self, budget: int) -> int:
        """Newest columns by window or share, at least one, within the budget."""
        if self.window is not None:
            if self.window > budget:
                raise BadInput(
                    f"a window of {self.window} columns is above the budget of {budget}",
                    "shorten the window or raise the budget",
                )
            return self.window
        return max(1, int(self.recent_share * budget))
