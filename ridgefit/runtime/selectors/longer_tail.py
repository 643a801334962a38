"""The rows just before the tail: the same work spent on a longer tail (RidgeFill table 6)."""

from __future__ import annotations

from dataclasses import dataclass

from ridgefit.runtime.selectors.prompt import Counted, Prompt, Taken, free


@dataclass(frozen=True)
class LongerTail(Counted):
    """The prefix's last rows."""

    name = "longer_tail"

    def choose(self, prompt: Prompt, split: int, taken: Taken) -> list[int]:
        """The last free rows."""
        del split
        rows = free(prompt, taken)
        return rows[max(len(rows) - self.budget(prompt), 0) :]
