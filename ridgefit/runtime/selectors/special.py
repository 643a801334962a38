"""Control, unknown and user-defined tokens (RidgeFill section 2.4): few, and without a cap."""

from __future__ import annotations

from dataclasses import dataclass

from ridgefit.runtime.selectors.prompt import Prompt, Selector, Taken


@dataclass(frozen=True)
class Special(Selector):
    """Every token that the tokenizer lists as special or added."""

    name = "special"

    @property
    def reads_tokens(self) -> bool:
        """It does."""
        return True

    def choose(self, prompt: Prompt, split: int, taken: Taken) -> list[int]:
        """Rows of special tokens."""
        del split, taken
        ids, vocabulary = prompt.tokens()
        return [row for row in range(prompt.prefix) if vocabulary.is_special(ids[row])]
