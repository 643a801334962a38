"""The rarest tokens of the classes that carry the most damage (RidgeFill sections 2.4 and 5)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from ridgefit.errors import BadInput
from ridgefit.runtime.selectors.prompt import Prompt, Selector, Taken, require_share

Protection = Literal["cap", "mixed", "piece"]
CLASSES = {
    "cap": ("word-start-cap", "word-piece-cap"),
    "mixed": ("mixed",),
    "piece": ("word-piece",),
}


@dataclass(frozen=True)
class Protected(Selector):
    """Of the tokens of some classes, the rarest in the calibration text.

    Attributes:
        share: of the matching rows, rounded half to even.
        classes: which match.
        frequencies: file with the log frequency of every token; None takes the one beside the maps.
    """

    share: float = 0.25
    classes: tuple[Protection, ...] = ("cap", "mixed", "piece")
    frequencies: Path | None = None

    name = "protected"

    @property
    def reads_tokens(self) -> bool:
        """It does."""
        return True

    def __post_init__(self) -> None:
        """Refuse a share or a class that is none."""
        require_share(self.name, self.share)
        unknown = [name for name in self.classes if name not in CLASSES]
        if unknown or not self.classes:
            raise BadInput(
                f"protected classes {list(self.classes)} are not known"
                if unknown
                else "no class is protected",
                f"known: {', '.join(get_args(Protection))}",
            )

    def tables(self) -> tuple[Path | None, ...]:
        """The frequency table."""
        return (self.frequencies,)

    def choose(self, prompt: Prompt, split: int, taken: Taken) -> list[int]:
        """The rarest matches; of equally rare ones the lower row."""
        del split, taken
        ids, vocabulary = prompt.tokens()
        frequency = prompt.frequencies[self.frequencies]
        kept = {found for name in self.classes for found in CLASSES[name]}
        matches = [row for row in range(prompt.prefix) if vocabulary.class_of(ids[row]) in kept]
        rarest = sorted(matches, key=lambda row: (frequency[ids[row]], row))
        return rarest[: round(self.share * len(matches))]
