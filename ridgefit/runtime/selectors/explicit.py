"""Rows that the caller names."""

from __future__ import annotations

from dataclasses import dataclass

from ridgefit.errors import BadInput
from ridgefit.runtime.selectors.prompt import Prompt, Selector, Taken


@dataclass(frozen=True)
class Explicit(Selector):
    """Rows by number, counted from the prompt's first token."""

    rows: tuple[int, ...] = ()

    name = "explicit"

    def __post_init__(self) -> None:
        """Refuse an empty list and negative rows."""
        if not self.rows:
            raise BadInput(
                "an explicit list of no rows would be an empty selection", "name rows, or leave it out"
            )
        if min(self.rows) < 0:
            raise BadInput(f"row {min(self.rows)} is before the prompt", "count rows from 0")

    def check_prompt(self, rows: int, prefix: int) -> None:
        """Refuse a row in the tail or past the prompt."""
        if max(self.rows) >= prefix:
            raise BadInput(
                f"row {max(self.rows)} is outside the prefix, which is rows 0 to {prefix - 1} of {rows}",
                "name rows before the tail",
            )

    def choose(self, prompt: Prompt, split: int, taken: Taken) -> list[int]:
        """The rows named.

        Raises:
            BadInput: a row lies in the tail or past the prompt.
        """
        del split, taken
        self.check_prompt(prompt.rows, prompt.prefix)
        return sorted(set(self.rows))
