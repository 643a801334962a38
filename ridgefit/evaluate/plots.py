"""Plots of a result, where matplotlib is installed; never a window, always files."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

from ridgefit.evaluate.penalties import PenaltyGrid
from ridgefit.evaluate.result import ArmDescription, Difference, EvalResult, MeasureResult, TaskResult
from ridgefit.evaluate.tables import HIDDEN
from ridgefit.files import writing

# Colours that people with colour blindness can tell apart (Okabe and Ito 2008).
_COLOURS = {"none": "#E69F00", "identity": "#0072B2", "pop": "#CC79A7", "ridge": "#009E73"}


def write_plots(result: EvalResult, penalties: list[PenaltyGrid], folder: Path) -> dict[str, str]:
    """Write one PNG per task and one for the penalties.

    Returns:
        Task name, or "penalties", -> file name within `folder`; empty without matplotlib.
    """
    if importlib.util.find_spec("matplotlib") is None:
        return {}
    found = {}
    for number, task in enumerate(result.tasks):
        name = f"plot-{number}-{re.sub(r'[^a-z0-9]+', '-', task.name.lower()).strip('-')}.png"
        figure = _task_figure(task, {arm.label: arm for arm in result.arms})
        if figure is not None:
            save(figure, folder / name)
            found[task.name] = name
    if penalties:
        save(_penalty_figure(penalties), folder / "plot-penalties.png")
        found["penalties"] = "plot-penalties.png"
    return found


def new_figure(panels: int) -> tuple[Any, list[Any]]:
    """A figure without a display, and its panels side by side."""
    # The object interface with its own canvas: no global pyplot state, no display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * panels, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(1, panels, squeeze=False)[0])


def _task_figure(task: TaskResult, arms: dict[str, ArmDescription]) -> Any | None:
    shown = [measure for measure in task.measures if measure.name not in HIDDEN]
    if not shown or len(shown[0].arms) < 2:
        return None
    figure, axes = new_figure(len(shown))
    for panel, measure in zip(axes, shown, strict=True):
        _panel(panel, measure, arms)
    figure.suptitle(f"{task.name}: difference to exact, 95 % intervals")
    return figure


def _panel(panel: Any, measure: MeasureResult, arms: dict[str, ArmDescription]) -> None:
    """Difference to exact over the split, one line per kind of arm and number of sink rows."""
    scale = 100 if measure.unit == "share" else 1
    lines: dict[tuple[str, int], list[tuple[int, Difference]]] = {}
    for score in measure.arms:
        arm = arms[score.arm]
        if score.difference is not None and arm.split is not None:
            lines.setdefault((arm.kind, arm.sink_rows), []).append((arm.split, score.difference))
    shift = -0.1 * (len(lines) - 1) / 2
    for (kind, sink_rows), points in lines.items():
        points.sort(key=lambda point: point[0])
        ends = [(d.mean if d.low is None else d.low, d.mean if d.high is None else d.high) for _, d in points]
        means = [d.mean for _, d in points]
        panel.errorbar(
            [split + shift for split, _ in points],
            [scale * mean for mean in means],
            yerr=[
                [scale * max(0.0, mean - low) for mean, (low, _) in zip(means, ends, strict=True)],
                [scale * max(0.0, high - mean) for mean, (_, high) in zip(means, ends, strict=True)],
            ],
            marker="o" if sink_rows == 0 else "s",
            linestyle="-" if sink_rows == 0 else "--",
            color=_COLOURS.get(kind),
            capsize=3,
            label=kind + (f", {sink_rows} sink rows" if sink_rows else ""),
        )
        shift += 0.1
    panel.axhline(0, color="0.5", linewidth=0.8)
    panel.set_xlabel("split layer")
    panel.set_ylabel(f"{measure.title}, {'points' if measure.unit == 'share' else 'nats'}")
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.legend(fontsize="small")


def _penalty_figure(penalties: list[PenaltyGrid]) -> Any:
    figure, (panel,) = new_figure(1)
    for grid in penalties:
        drawn = [point for point in grid.points if point.alpha > 0]  # a log axis has no zero
        (line,) = panel.plot(
            [p.alpha for p in drawn], [p.score for p in drawn], marker=".", label=f"split {grid.split}"
        )
        chosen = [p for p in drawn if p.chosen]
        panel.plot(
            [p.alpha for p in chosen],
            [p.score for p in chosen],
            "o",
            color=line.get_color(),
            fillstyle="none",
            ms=10,
        )
    panel.set_xscale("log")
    panel.set_xlabel("penalty alpha")
    panel.set_ylabel("held-out cosine of the cache")
    panel.legend(fontsize="small")
    return figure


def save(figure: Any, path: Path) -> None:
    """Write a figure whole or not at all."""
    with writing(path) as partial:
        # A fixed creation time and no version string: equal results give equal files.
        figure.savefig(partial, format="png", dpi=120, metadata={"Software": None})
