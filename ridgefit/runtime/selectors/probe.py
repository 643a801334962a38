"""Rows that the prompt's end attends to in the late layers themselves (RidgeFill section 2.4, the 27B)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ridgefit.errors import BadInput
from ridgefit.runtime.selectors.attention import Attention
from ridgefit.runtime.selectors.digits import Digits
from ridgefit.runtime.selectors.prompt import (
    Asked,
    Counted,
    Probed,
    Prompt,
    Taken,
    free,
    highest,
    pooled,
    require_pool,
)
from ridgefit.runtime.selectors.protected import Protected


@dataclass(frozen=True)
class Probe(Counted):
    """The rows that receive most from the last rows, which run the exact late layers over the filled cache.

    Its budget is a share or a count like any other's, or what the base rules would have chosen: the union of
    the rarer half of the protected classes, every digit, and 20 % of the prefix by lower-layer attention.
    That number is a budget only: lexical-net rows that stand before the probe in the list count against it.

    Attributes:
        window: the prompt's last rows that ask; they must lie in the tail.
        base_rules: take the budget from the base rules instead.
        factor: multiplies that budget.
        frequencies: table for the base rules; None takes the one beside the maps.
        pool: a row counts as much as the highest of this many rows around it; odd, 1 for itself alone.
    """

    window: int = 256
    base_rules: bool = False
    factor: float = 1.0
    frequencies: Path | None = None
    pool: int = 1

    name = "probe"

    def __post_init__(self) -> None:
        """Refuse two budgets, and an even pool."""
        super().__post_init__()
        require_pool(self.name, self.pool)
        if self.base_rules and (self.share is not None or self.count is not None):
            raise BadInput("the probe has a budget and base rules that set one", "give one of them")
        if not 0 < self.factor < float("inf"):
            raise BadInput(f"a budget factor of {self.factor:g} is no budget", "use 1")

    def check(self, split: int, tail: int) -> None:
        """Refuse a probe that does not fit into the tail."""
        if not 1 <= self.window <= tail:
            raise BadInput(
                f"the probe asks with {self.window} rows, and the tail that holds them has {tail}",
                "lower the probe's `window`, or lengthen the tail",
            )
        if self.base_rules:
            self._lower.check(split, tail)

    @property
    def reads_tokens(self) -> bool:
        """Only the base rules look at tokens."""
        return self.base_rules

    def asks(self, split: int) -> tuple[Asked | Probed, ...]:
        """The probe itself, and lower layers for the base rules."""
        return (Probed(self.window), *(self._lower.asks(split) if self.base_rules else ()))

    def tables(self) -> tuple[Path | None, ...]:
        """The base rules' frequency table."""
        return (self.frequencies,) if self.base_rules else ()

    def choose(self, prompt: Prompt, split: int, taken: Taken) -> list[int]:
        """The rows that receive most; of equal ones the lower row."""
        if self.base_rules:
            wanted = round(self.factor * len(self.base(prompt, split))) - len(taken.get("lexical_net", ()))
            count = min(max(wanted, 0), prompt.prefix)
        else:
            count = self.budget(prompt)
        scores = pooled(prompt.received[Probed(self.window)], self.pool)
        return highest(scores, free(prompt, taken), count)

    def base(self, prompt: Prompt, split: int) -> set[int]:
        """Rows that the base rules would choose."""
        (asked,) = self._lower.asks(split)
        ranked = highest(prompt.received[asked], range(prompt.prefix), round(0.2 * prompt.prefix))
        rarer = Protected(share=0.5, frequencies=self.frequencies).choose(prompt, split, {})
        return {*ranked, *rarer, *Digits().choose(prompt, split, {})}

    @property
    def _lower(self) -> Attention:
        return Attention()
