"""`ridgefit eval`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgefit.cli.options import Out, command
from ridgefit.cli.output import Output
from ridgefit.errors import BadInput
from ridgefit.recipe import AcceptanceSettings, EvalSettings, ModelSettings, RecallEvalSettings

if TYPE_CHECKING:
    from rich.console import Console

    from ridgefit.evaluate import EvalResult
    from ridgefit.evaluate.acceptance_summary import AcceptanceResult
    from ridgefit.evaluate.recall.result import RecallResult


def evaluate(
    model: ModelSettings,
    settings: EvalSettings | None,
    recall: RecallEvalSettings | None,
    out: Out,
    output: Output,
    maps: Annotated[
        str | None, typer.Option("--maps", help="maps for the ridge arms: folder, file or Hub name")
    ] = None,
) -> int:
    """Judge arms against exact, paired, with intervals; the same command goes on where it stopped."""
    if settings is not None and recall is not None:
        raise BadInput(
            "fills and recall policies are judged apart", "leave out --arms and --tasks, or --policy"
        )
    if recall is not None:
        if maps is not None:
            raise BadInput("--maps would do nothing with --policy, which reads no maps", "leave it out")
        return _recall(model, recall, out, output)
    if settings is None:
        raise BadInput("nothing says what to judge", "give --arms and --tasks, or --policy")
    if isinstance(settings.tasks[0], AcceptanceSettings):
        if maps is not None:
            raise BadInput("acceptance stands alone", "leave out --arms, --maps and other tasks")
        return _acceptance(model, settings, out, output)
    from ridgefit.pipeline.judge import judge_arms

    with output.progress() as progress:
        result = judge_arms(model, settings, maps, out, progress)
    for line in result.warnings:
        output.warn(line)
    for choice in result.rows_choices:
        output.say(choice.sentence)
    output.result(result, lambda console: _show(console, result, out))
    return 0


def _recall(model: ModelSettings, settings: RecallEvalSettings, out: Path, output: Output) -> int:
    """Recall policies; exit status 1 where a gate fails, with all results written."""
    from ridgefit.pipeline.judge import judge_policies

    with output.progress() as progress:
        result = judge_policies(model, settings, out, progress)
    for gate in result.gates:
        if not gate.passed:
            output.warn(f"gate '{gate.name}' fails: {gate.detail}")
    output.result(result, lambda console: _show_recall(console, result, out))
    return 0 if result.passed else 1


def _show_recall(console: Console, result: RecallResult, out: Path) -> None:
    from ridgefit.cli.render import grid, plain
    from ridgefit.evaluate.recall.tables import recall_grids

    for table in recall_grids(result):
        plain(console, table.title)
        console.print(grid(table.heads, table.rows))
    plain(console, f"written to {out}")


def _acceptance(model: ModelSettings, settings: EvalSettings, out: Path, output: Output) -> int:
    from ridgefit.evaluate.acceptance_page import cautions
    from ridgefit.pipeline.judge import judge_drafts

    with output.progress() as progress:
        result = judge_drafts(model, settings, out, progress)
    for line in cautions(result):
        output.warn(line)
    output.result(result, lambda console: _show_acceptance(console, result, out))
    return 0


def _show_acceptance(console: Console, result: AcceptanceResult, out: Path) -> None:
    from ridgefit.cli.render import grid, plain
    from ridgefit.evaluate.acceptance_tables import tables, title

    plain(console, title(result))
    for header, rows in tables(result):
        console.print(grid(header, rows))
    plain(console, f"written to {out}; `ridgefit report {shlex.quote(str(out))}` makes a page of it")


def _show(console: Console, result: EvalResult, out: Path) -> None:
    from ridgefit.cli.render import plain
    from ridgefit.evaluate import render

    for table in render(result):
        console.print(table)
    plain(console, f"written to {out}; `ridgefit report {shlex.quote(str(out))}` makes a page of it")


entry = command(evaluate, arguments=("model",), recipe=True)
