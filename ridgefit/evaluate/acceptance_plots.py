"""Plots of an acceptance result, where matplotlib is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ridgefit.evaluate.acceptance_summary import AcceptanceResult
from ridgefit.evaluate.plots import new_figure, save

# Colours that people with colour blindness can tell apart (Okabe and Ito 2008), and marks for more policies.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
_MARKS = ("o", "s", "^", "D")


def write_acceptance_plots(result: AcceptanceResult, folder: Path) -> dict[str, str]:
    """Write one PNG of the policies against full, and one by output position.

    Returns:
        "policies" and "staleness" -> file name within `folder`; empty without matplotlib.
    """
    if importlib.util.find_spec("matplotlib") is None:
        return {}
    found = {"policies": "plot-policies.png", "staleness": "plot-staleness.png"}
    save(_policies(result), folder / found["policies"])
    save(_staleness(result), folder / found["staleness"])
    return found


def _policies(result: AcceptanceResult) -> Any:
    """Differences to full with their intervals, and AL over refreshes."""
    figure, (left, right) = new_figure(2)
    compressed = [score for score in result.policies if score.policy != "full"]
    for place, score in enumerate(compressed):
        gap = next(gap for gap in score.gaps if gap.against == "full")
        low, high = (gap.mean if end is None else end for end in (gap.low, gap.high))
        left.errorbar(
            [gap.mean],
            [place],
            xerr=[[max(0.0, gap.mean - low)], [max(0.0, high - gap.mean)]],
            **_look(place),
            linestyle="none",
            capsize=3,
        )
    left.set_yticks(range(len(compressed)), [score.policy for score in compressed])
    left.invert_yaxis()
    left.axvline(0, color="0.5", linewidth=0.8)
    left.set_xlabel("acceptance length minus full, 95 % intervals")
    for place, score in enumerate(compressed):
        right.plot(
            [score.refreshes_per_1000], [score.al_macro], **_look(place), linestyle="none", label=score.policy
        )
    right.axhline(result.policy("full").al_macro, color="0.5", linewidth=0.8, label="full")
    right.set_xscale("symlog", linthresh=1)
    right.set_xlim(-0.5, 2 * max(1.0, *(score.refreshes_per_1000 for score in result.policies)))
    right.set_xlabel("refreshes per 1,000 output tokens")
    right.set_ylabel("acceptance length")
    right.legend(fontsize="x-small")
    return figure


def _staleness(result: AcceptanceResult) -> Any:
    """AL, and attention in sight, by output position."""
    figure, (left, right) = new_figure(2)
    _curve(left, result.policy("full").curve, result.bin, "full", {"color": "0.3", "linestyle": "--"})
    compressed = [score for score in result.policies if score.policy != "full"]
    for place, score in enumerate(compressed):
        _curve(left, score.curve, result.bin, score.policy, _look(place))
        _curve(right, score.retained_curve, result.bin, score.policy, _look(place))
    for panel, name in ((left, "acceptance length"), (right, "share of full attention in sight")):
        panel.set_xlabel("output token")
        panel.set_ylabel(name)
    left.legend(fontsize="x-small")
    return figure


def _curve(panel: Any, values: Sequence[float | None], step: int, label: str, look: dict[str, Any]) -> None:
    points = [(at * step + step / 2, value) for at, value in enumerate(values) if value is not None]
    panel.plot([x for x, _ in points], [y for _, y in points], label=label, markersize=4, **look)


def _look(place: int) -> dict[str, Any]:
    return {
        "color": _COLOURS[place % len(_COLOURS)],
        "marker": _MARKS[place // len(_COLOURS) % len(_MARKS)],
    }
