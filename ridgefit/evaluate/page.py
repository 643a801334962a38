"""A page about an evaluation, every sentence made from its numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ridgefit.evaluate.candidates import LEGEND, CandidateTable, candidate_tables
from ridgefit.evaluate.penalties import PenaltyGrid, penalty_grids
from ridgefit.evaluate.plots import write_plots
from ridgefit.evaluate.result import Difference, EvalResult, MeasureResult, TaskResult, load_result
from ridgefit.evaluate.tables import (
    Grid,
    arm_grid,
    bound_grid,
    contrast_grid,
    interval_cell,
    markdown,
    plain,
    signed,
    task_title,
)
from ridgefit.files import write_text

REPORT = "report.md"


def report(folder: Path, *, maps: Path | None = None) -> Path:
    """Write `report.md`, and plots beside it where matplotlib is installed.

    Args:
        folder: output folder of a finished evaluation.
        maps: folder of maps whose penalty grid, and candidates if any, are shown too.

    Returns:
        Path of the report.

    Raises:
        BadInput: the evaluation is not finished or damaged, or the maps have no readable `ridgefit.json`.
    """
    result = load_result(folder)
    penalties = penalty_grids(maps) if maps else []
    candidates = candidate_tables(maps) if maps else []
    plots = write_plots(result, penalties, folder)
    path = folder / REPORT
    write_text(path, "\n\n".join(_page(result, penalties, candidates, plots)) + "\n")
    return path


def _page(
    result: EvalResult,
    penalties: list[PenaltyGrid],
    candidates: list[CandidateTable],
    plots: dict[str, str],
) -> Iterator[str]:
    identity = result.identity
    model = identity["model"]
    yield f"# Evaluation of {model['name']}"
    yield markdown(Grid("", ("what ran", "value"), tuple(_facts(result))))
    if result.warnings:
        yield "## Read this first"
        yield "\n".join(f"- {warning}" for warning in result.warnings)
    yield "## Arms"
    yield _arms(result)
    for task in result.tasks:
        yield f"## {task.name}"
        yield task_title(task) + "."
        yield markdown(arm_grid(task))
        yield "\n".join(f"- {sentence}" for sentence in sentences(task))
        contrasts = contrast_grid(task)
        if contrasts.rows:
            yield markdown(contrasts)
        yield "One-sided 95 % bounds of the difference to exact, on the harmful side:"
        yield markdown(bound_grid(task))
        if task.name in plots:
            yield f"![{task.name}]({plots[task.name]})"
        if task.skipped:
            yield "Left out: " + "; ".join(f"{s.sample} ({s.reason})" for s in task.skipped) + "."
    if len({task.settings["task"] for task in result.tasks}) == 1:
        yield (
            "Only one kind of task was run. A loss close to exact does not show that the prefix can still be "
            "read, and retrieval does not show that text is still predicted: run both."
        )
    if penalties:
        yield "## Penalty grid"
        yield "Held-out cosine of what late layers write to their cache, by penalty; the chosen one is bold."
        yield from (markdown(_penalty_table(grid)) for grid in penalties)
        if "penalties" in plots:
            yield f"![penalty grid]({plots['penalties']})"
    if candidates:
        yield "## What the maps were chosen from"
        yield LEGEND
        for table in candidates:
            yield markdown(table.grid)
            yield f"Chosen for {table.chosen}."
    yield "## How the numbers were made"
    yield _method(result)


def sentences(task: TaskResult) -> Iterator[str]:
    """What the intervals of a task allow to be said, no more."""
    for measure in task.measures:
        exact = measure.arms[0]
        for score in measure.arms[1:]:
            if score.difference is None:
                continue
            means = f"{score.arm} {plain(measure, score.mean)}, exact {plain(measure, exact.mean)}"
            verdict = _verdict(measure, score.difference, "exact", task.counted)
            yield f"{measure.title}: {means}; {verdict}."
            if score.bound is not None and _spans_zero(score.difference):
                side, most = (
                    ("lower", -score.bound) if measure.better == "higher" else ("higher", score.bound)
                )
                unit, least = ("points", 0.001) if measure.unit == "share" else ("nats", 0.0001)
                yield (
                    f"{measure.title}: equality of {score.arm} and exact is not shown; "
                    f"{score.n} {task.counted}s rule out (one-sided 95 %) that it is {side} by more than "
                    f"{signed(measure, max(least, most)).lstrip('+')} {unit}."
                )
        for contrast in measure.contrasts:
            verdict = _verdict(measure, contrast.difference, contrast.against, task.counted)
            yield f"{measure.title}: {contrast.arm} against {contrast.against}: {verdict}."


def _verdict(measure: MeasureResult, difference: Difference, against: str, counted: str) -> str:
    cell = interval_cell(measure, difference)
    if difference.low is None or difference.high is None:
        return f"difference {cell}, from one {counted}: no interval, no claim"
    if difference.low == difference.high == 0:
        return f"no {counted} differs from {against} (n = {difference.n})"
    if _spans_zero(difference):
        return f"difference {cell}, the interval includes zero"
    better = (difference.mean > 0) == (measure.better == "higher")
    return f"{'better' if better else 'worse'} than {against} by {cell}"


def _spans_zero(difference: Difference) -> bool:
    low, high = difference.low, difference.high
    return low is not None and high is not None and low <= 0 <= high


def _facts(result: EvalResult) -> Iterator[tuple[str, str]]:
    identity = result.identity
    model = identity["model"]
    revision = f", revision {model['revision']}" if model.get("revision") else ""
    yield "model", f"{model['name']}{revision}"
    yield "family, layers, hidden", f"{model['family']}, {model['n_layers']}, {model['hidden']}"
    yield "dtype, device, attention", f"{identity['dtype']}, {identity['device']}, {identity['attention']}"
    if identity["maps"]:
        yield "maps", ", ".join(f"{name} ({digest[:12]})" for name, digest in identity["maps"].items())
    versions = identity["versions"]
    shown = ("ridgefit", "torch", "transformers", "python")
    yield "versions", ", ".join(f"{name} {versions[name]}" for name in shown if name in versions)
    settings = identity["settings"]
    yield "share of samples, seed", f"{settings['fraction']:g}, {settings['seed']}"


def _arms(result: EvalResult) -> str:
    rows = tuple(
        (
            arm.label,
            arm.kind,
            "–" if arm.split is None else str(arm.split),
            "–" if arm.kind == "exact" else "the task's" if arm.tail is None else str(arm.tail),
            str(arm.sink_rows),
        )
        for arm in result.arms
    )
    return markdown(Grid("", ("arm", "kind", "split", "tail", "sink rows"), rows))


def _penalty_table(grid: PenaltyGrid) -> Grid:
    rows = tuple(
        (f"**{point.alpha:g}**" if point.chosen else f"{point.alpha:g}", f"{point.score:.4f}")
        for point in grid.points
    )
    return Grid("", (f"split {grid.split}, alpha", "mean cosine"), rows)


def _method(result: EvalResult) -> str:
    settings = result.identity["settings"]
    averaged = (
        " Samples of one unit (stretches of one document) are averaged before anything else, and the "
        "bootstrap resamples units."
    )
    return (
        "Every arm ran in one process with an exact run of the same sample; differences are arm minus "
        f"exact. Intervals: bias-corrected accelerated bootstrap, {settings['resamples']} resamples within "
        "domain, 95 %. Losses weight each document alike, shares each sample. Novel tokens lie in no run of "
        "8 tokens that the prompt holds earlier; key tokens are those whose exact loss rises by more "
        "than 2 nats when the context is cut to the tail. Needles lie before the tail and behind the sink "
        "rows of every arm. The bound of needles found is the more cautious of the bootstrap's and the "
        "binomial floor 1 − 0.05^(1/n)."
        f"{averaged if any(task.units != task.samples for task in result.tasks) else ''}"
    )
