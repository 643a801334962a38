"""From a frozen controller file to a controller for each request."""

from __future__ import annotations

from collections.abc import Callable

from ridgefit.errors import BadInput
from ridgefit.maps.refresh import GateRule, LinearRule, NoRule, RefreshController
from ridgefit.runtime.draft.controllers import Adaptive, Controller, Gate, Linear, Pace, Periodic
from ridgefit.runtime.draft.signals import NAMES, Signals


def controller_from(frozen: RefreshController) -> Callable[[], Controller]:
    """Makes a new controller for each request, because controllers keep state.

    Raises:
        BadInput: the file names a signal that is not known here.
    """
    if isinstance(frozen.rule, NoRule):
        every = frozen.rule.every
        return lambda: Periodic(every)
    pace = Pace(frozen.interval, frozen.min_gap, frozen.max_gap)
    rule = rule_from(frozen.rule)
    return lambda: Adaptive(pace, rule)


def rule_from(rule: GateRule | LinearRule) -> Callable[[Signals], bool]:
    """Signals -> whether they ask for a refresh."""
    names = [*rule.below, *rule.above] if isinstance(rule, GateRule) else list(rule.signals)
    for name in names:
        if name not in NAMES:
            raise BadInput(f"the controller reads a signal {name!r}, which is not known", "calibrate again")
    if isinstance(rule, GateRule):
        return Gate(rule.below, rule.above, rule.combine)
    places = [rule.signals.index(name) if name in rule.signals else None for name in NAMES]

    def spread(values: tuple[float, ...], absent: float) -> list[float]:
        return [absent if place is None else values[place] for place in places]

    return Linear(
        spread(rule.weights, 0.0),
        spread(rule.mean, 0.0),
        spread(rule.spread, 1.0),
        rule.bias,
        rule.threshold,
    )
