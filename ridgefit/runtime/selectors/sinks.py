"""The first rows, which attention uses as a place to rest: cheap, and their states are unlike all others."""

from __future__ import annotations

from dataclasses import dataclass

from ridgefit.errors import BadInput
from ridgefit.runtime.selectors.prompt import Prompt, Selector, Taken


@dataclass(frozen=True)
class Sinks(Selector):
    """The prompt's first `count` rows."""

    count: int = 4

    name = "sinks"

    def __post_init__(self) -> None:
        """Refuse none."""
        if self.count < 1:
            raise BadInput(f"{self.count} sink rows would be an empty selection", "use 1 or more")

    def choose(self, prompt: Prompt, split: int, taken: Taken) -> range:
        """Rows 0 to count - 1."""
        del split, taken
        return range(min(self.count, prompt.prefix))
