"""How many of the newest columns a policy keeps, where that is not a share of the budget."""

from __future__ import annotations

from ridgefit.errors import BadInput
from ridgefit.runtime.draft.settings import CacheSettings

SINKS = 4
"""First columns that StreamingLLM keeps."""


def observed_window(settings: CacheSettings, budget: int) -> int:
    """The observation window.

    Raises:
        BadInput: it is above the budget.
    """
    if settings.observe > budget:
        raise BadInput(
            f"a window of {settings.observe} observed columns is above the budget of {budget}",
            "lower --observe or raise the budget",
        )
    return settings.observe


def all_but_sinks(settings: CacheSettings, budget: int) -> int:
    """The budget without the sinks.

    Raises:
        BadInput: nothing is left.
    """
    del settings
    if budget <= SINKS:
        raise BadInput(f"a budget of {budget} has no room beside {SINKS} sinks", "raise the budget")
    return budget - SINKS


def half(settings: CacheSettings, budget: int) -> int:
    """Half of the budget."""
    del settings
    return max(1, budget // 2)
