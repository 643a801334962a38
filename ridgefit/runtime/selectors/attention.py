"""Rows that the prompt's last rows attend to in the exact lower layers (RidgeFill section 2.4)."""

from __future__ import annotations

from dataclasses import dataclass

from ridgefit.errors import BadInput
from ridgefit.runtime.selectors.prompt import (
    Asked,
    Counted,
    Prompt,
    Taken,
    free,
    highest,
    pooled,
    require_pool,
)

LAYERS = (3, 7, 11, 15)
"""The paper's layers, of which those below the split are used."""


@dataclass(frozen=True)
class Attention(Counted):
    """The rows that receive the most attention, summed over rows that ask, layers and heads.

    Attributes:
        window: the prompt's last rows that ask.
        layers: exact layers whose attention counts; None for those of 3, 7, 11 and 15 below the split.
        pool: a row counts as much as the highest of this many rows around it; odd, 1 for itself alone.
    """

    window: int = 64
    layers: tuple[int, ...] | None = None
    pool: int = 1

    name = "attention"

    def __post_init__(self) -> None:
        """Refuse an even pool."""
        super().__post_init__()
        require_pool(self.name, self.pool)

    def check(self, split: int, tail: int) -> None:
        """Refuse layers that are not exact, and a window of nothing."""
        del tail
        if self.window < 1:
            raise BadInput(f"an attention window of {self.window} rows asks nothing", "use 64")
        if not self._layers(split):
            raise BadInput(
                f"none of the layers {', '.join(map(str, LAYERS))} lies below split {split}",
                "name exact layers with `layers`",
            )
        wrong = [layer for layer in self.layers or () if not 0 <= layer < split]
        if wrong:
            raise BadInput(
                f"layer {wrong[0]} is not among the exact layers 0 to {split - 1} whose attention is known",
                "name layers below the split",
            )

    def asks(self, split: int) -> tuple[Asked, ...]:
        """Attention from the last rows."""
        return (Asked(self._layers(split), self.window),)

    def choose(self, prompt: Prompt, split: int, taken: Taken) -> list[int]:
        """The rows that receive most; of equal ones the lower row."""
        (asked,) = self.asks(split)
        scores = pooled(prompt.received[asked], self.pool)
        return highest(scores, free(prompt, taken), self.budget(prompt))

    def _layers(self, split: int) -> tuple[int, ...]:
        if self.layers is not None:
            return tuple(sorted(set(self.layers)))
        return tuple(layer for layer in LAYERS if layer < split)


@dataclass(frozen=True)
class QuestionBlind(Attention):
    """The control that hides the question: the rows just before the tail ask (RidgeFill table 6)."""

    name = "question_blind"

    def asks(self, split: int) -> tuple[Asked, ...]:
        """Attention from the rows before the tail."""
        return (Asked(self._layers(split), self.window, before_tail=True),)
