"""Controls of a controller: they must refresh as often as it does, at places of their own."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from ridgefit.calibrate.refresh.closed import Schedule, spacing_at_rate
from ridgefit.runtime.draft.controllers import Controller, Pace, Periodic
from ridgefit.runtime.draft.signals import Signals


def unread() -> Signals:
    raise AssertionError("a schedule without signals reads none")


def ends(tokens: int, step: int) -> Iterator[int]:
    """Committed tokens at the ends of rounds before the last one."""
    yield from range(step, tokens, step)


def moments(controller: Controller, tokens: int, step: int = 3) -> tuple[int, ...]:
    return tuple(end for end in ends(tokens, step) if controller.due(end, unread))


@pytest.mark.parametrize("tokens", [48, 192, 256, 1000])
@pytest.mark.parametrize("refreshes", [0, 1, 2, 5, 9])
def test_periodic_refreshes_come_to_the_number_asked_for(tokens: int, refreshes: int) -> None:
    spacing = spacing_at_rate(refreshes, tokens)
    found = len(moments(Periodic(spacing), tokens, step=1))
    assert found == refreshes, (spacing, found)


def test_few_refreshes_in_an_output_are_not_rounded_away() -> None:
    # One refresh in 192 tokens is a rate of 5.2 per 1,000, whose spacing of 192 would never come due.
    assert len(moments(Periodic(spacing_at_rate(1.0, 192)), 192)) == 1


def test_random_refreshes_differ_by_prompt_and_average_the_rate() -> None:
    share, checks, prompts = 0.1, 12, 400
    schedule = Schedule("random", share=share, pace=Pace(16))
    found = [moments(schedule.maker(seed)(), 16 * checks + 1, step=1) for seed in range(prompts)]
    assert found == [moments(schedule.maker(seed)(), 16 * checks + 1, step=1) for seed in range(prompts)]
    assert len(set(found)) > prompts // 4
    mean = sum(map(len, found)) / prompts
    deviation = math.sqrt(checks * share * (1 - share) / prompts)
    assert abs(mean - checks * share) < 4 * deviation
