"""Tokens that hold a digit (RidgeFill appendix I.2): they restore numbers, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from ridgefit.runtime.selectors.prompt import Prompt, Selector, Taken


@dataclass(frozen=True)
class Digits(Selector):
    """Every ordinary token with a digit in it."""

    name = "digits"

    @property
    def reads_tokens(self) -> bool:
        """It does."""
        return True

    def choose(self, prompt: Prompt, split: int, taken: Taken) -> list[int]:
        """Rows whose token holds a digit."""
        del split, taken
        ids, vocabulary = prompt.tokens()
        return [row for row in range(prompt.prefix) if vocabulary.has_digit(ids[row])]
