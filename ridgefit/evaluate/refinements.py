"""From settings of rows and corrections to what the runtime takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from ridgefit.errors import BadInput
from ridgefit.recipe.rows import Correction, RowSettings, selector_settings
from ridgefit.runtime import SELECTORS, Corrections, Selector

CONTROLS = ("random", "longer_tail", "question_blind")
"""Selectors that others are measured against."""


def selectors_of(rows: Sequence[RowSettings]) -> tuple[Selector, ...]:
    """The runtime's selectors, in order.

    Raises:
        BadInput: settings that contradict one another.
    """
    return tuple(_selector(one) for one in rows)


def _selector(settings: RowSettings) -> Selector:
    own: dict[str, Any] = settings.model_dump(exclude={"select"})
    if own.get("like") is not None:
        try:
            own["like"] = _selector(selector_settings(own["like"]))
        except ValidationError as error:
            raise BadInput(
                f"random rows cannot be like {own['like']!r}, which is no selector",
                f"known: {', '.join(SELECTORS)}",
            ) from error
    return SELECTORS[settings.select](**own)


def corrections_of(names: Sequence[Correction], rows: int) -> Corrections | None:
    """The runtime's corrections; None without any."""
    return Corrections(**dict.fromkeys(names, True), rows=rows) if names else None


def sinks_in(rows: Sequence[RowSettings]) -> int:
    """First rows that a list of selectors keeps exact in any case."""
    return max((one.count for one in rows if one.select == "sinks"), default=0)
