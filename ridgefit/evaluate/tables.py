"""Results as tables: rich ones for the terminal, Markdown ones for the report, with the same cells."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ridgefit.evaluate.result import (
    ArmScore,
    Difference,
    EvalResult,
    MeasureResult,
    Removed,
    RowsChoice,
    TaskResult,
)

if TYPE_CHECKING:
    from rich.table import Table

# The mean over all tokens hides what a fill does (paper section 3.1); it stays in the JSON.
HIDDEN = frozenset({"nll"})


@dataclass(frozen=True)
class Grid:
    """A table of text: a title, column heads, rows of equal length."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def render(result: EvalResult) -> list[Table]:
    """Tables for the terminal: one per task, and one for what ridge is set against."""
    from rich.markup import escape
    from rich.table import Table

    tables = []
    for grid in grids(result):
        table = Table(title=escape(grid.title), title_justify="left", title_style="bold")
        for position, head in enumerate(grid.heads):
            table.add_column(escape(head), justify="left" if position == 0 else "right", overflow="fold")
        for row in grid.rows:
            table.add_row(*(escape(cell) for cell in row))
        tables.append(table)
    return tables


def markdown(grid: Grid) -> str:
    """A grid as a Markdown table, title left out."""
    lines = [grid.heads, ("---", *("---:" for _ in grid.heads[1:])), *grid.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def grids(result: EvalResult) -> list[Grid]:
    """Every table of a result, in order."""
    found: list[Grid] = []
    for task in result.tasks:
        found.append(arm_grid(task))
        contrasts = contrast_grid(task)
        if contrasts.rows:
            found.append(contrasts)
        removed = removed_grid(task)
        if removed.rows:
            found.append(removed)
    found += [choice_grid(result, choice) for choice in result.rows_choices]
    return found


def arm_grid(task: TaskResult) -> Grid:
    """Arms down, their cost and measures across: exact as it is, the others as differences to it."""
    shown = _shown(task)
    rows = []
    for position, score in enumerate(shown[0].arms if shown else ()):
        cells = [score_cell(measure, measure.arms[position]) for measure in shown]
        macs = [f"{100 * task.macs[score.arm]:.0f} %" if score.arm in task.macs else "–"] if task.macs else []
        rows.append((score.arm, *macs, *cells))
    heads = ("arm", *(["MACs"] if task.macs else []), *(f"{m.title} {_direction(m)}" for m in shown))
    return Grid(f"{task_title(task)}; arms: difference to exact [95 %]", heads, tuple(rows))


def contrast_grid(task: TaskResult) -> Grid:
    """Each ridge arm minus what it is set against."""
    shown = _shown(task)
    pairs = [(c.arm, c.against) for c in shown[0].contrasts] if shown else []
    rows = [
        (f"{arm} − {against}", *(interval_cell(m, m.contrasts[position].difference) for m in shown))
        for position, (arm, against) in enumerate(pairs)
    ]
    return Grid(f"{task.name}: contrasts [95 %]", ("contrast", *(m.title for m in shown)), tuple(rows))


def removed_grid(task: TaskResult) -> Grid:
    """Share of the loss to exact that rows, corrections and splices remove, or of the gap that they close."""
    shown = [measure for measure in _shown(task) if measure.removed]
    pairs = [(found.arm, found.against) for found in shown[0].removed] if shown else []
    rows = [
        (f"{arm}, of {against}", *(share_cell(measure.removed[position]) for measure in shown))
        for position, (arm, against) in enumerate(pairs)
    ]
    heads = (
        "arm",
        *(f"{m.title}: {'loss removed' if m.better == 'lower' else 'gap closed'}" for m in shown),
    )
    return Grid(f"{task.name}: what each refinement gives back [95 %]", heads, tuple(rows))


def choice_grid(result: EvalResult, choice: RowsChoice) -> Grid:
    """Every selector that was tried on one arm, against as many random rows."""
    measures = {task.name: task.measures[0] for task in result.tasks if task.measures}
    rows = []
    for trial in choice.trials:
        cells = [
            interval_cell(measures[name], difference)
            for name, difference in zip(trial.tasks, trial.against_random, strict=True)
        ]
        rows.append((trial.selector, f"{trial.rows:.0f}", *cells, "yes" if trial.pays else "no"))
    heads = tuple(f"{name}: {measure.title}, − random" for name, measure in measures.items())
    return Grid(choice.sentence, ("selector", "rows", *heads, "pays"), tuple(rows))


def share_cell(found: Removed) -> str:
    """A share of a loss as percent with its interval; a dash where there was no loss to speak of."""
    if found.share is None:
        return "–"
    ends = (
        "–" if found.low is None or found.high is None else f"{100 * found.low:.0f}, {100 * found.high:.0f}"
    )
    return re.sub(r"-0(?![\d.])", "0", f"{100 * found.share:.0f} % [{ends}]").replace("-", "−")


def bound_grid(task: TaskResult) -> Grid:
    """One-sided bounds for claims of non-inferiority (paper section 3.4)."""
    shown = _shown(task)
    rows = []
    for position, score in enumerate(shown[0].arms if shown else ()):
        if score.difference is None:
            continue
        cells = []
        for measure in shown:
            arm = measure.arms[position]
            floor = f" (floor {signed(measure, -arm.floor)})" if arm.floor is not None else ""
            cells.append("–" if arm.bound is None else signed(measure, arm.bound) + floor)
        rows.append((score.arm, *cells))
    return Grid(f"{task.name}: one-sided 95 % bounds", ("arm", *(m.title for m in shown)), tuple(rows))


def task_title(task: TaskResult) -> str:
    """Name, number of samples and of the units they make up, and how those fall into domains."""
    groups = ", ".join(f"{name} {count}" for name, count in task.groups.items())
    counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in task.counts.items())
    units = "" if task.units == task.samples else f" in {task.units} units"
    return f"{task.name}: {task.samples} samples{units} ({groups}){'; ' + counts if counts else ''}"


def score_cell(measure: MeasureResult, score: ArmScore) -> str:
    """The exact arm's mean, or another arm's mean with its difference to exact."""
    if score.difference is None:
        return plain(measure, score.mean)
    return f"{plain(measure, score.mean)}  {interval_cell(measure, score.difference)}"


def interval_cell(measure: MeasureResult, difference: Difference) -> str:
    """A difference with its interval; a dash where one sample gives none."""
    ends = (
        "–"
        if difference.low is None or difference.high is None
        else f"{signed(measure, difference.low)}, {signed(measure, difference.high)}"
    )
    return f"{signed(measure, difference.mean)} [{ends}]"


def plain(measure: MeasureResult, value: float) -> str:
    """A value in the measure's unit: nats to three or four digits after the point, shares as percent."""
    return f"{100 * value:.0f} %" if measure.unit == "share" else f"{value:.{_digits(value)}f}"


def signed(measure: MeasureResult, value: float) -> str:
    """A difference in nats, or in percentage points; zero has no sign."""
    text = f"{100 * value:+.1f}" if measure.unit == "share" else f"{value:+.{_digits(value)}f}"
    return text[1:] if float(text) == 0 else text.replace("-", "−")


def _digits(nats: float) -> int:
    return 3 if abs(nats) >= 0.01 or nats == 0 else 4


def _shown(task: TaskResult) -> Sequence[MeasureResult]:
    return [measure for measure in task.measures if measure.name not in HIDDEN]


def _direction(measure: MeasureResult) -> str:
    return "↓" if measure.better == "lower" else "↑"
