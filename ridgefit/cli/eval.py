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

# Settings of fills; silence would let a user believe that they were applied.
_OF_FILLS = ("sink_effect", "auto_rows", "auto_share", "batch")


def evaluate(
    model: ModelSettings,
    settings: EvalSettings | None,
    recall: RecallEvalSettings | None,
    out: Out,
    output: Output,
    maps: Annotated[
        Path | None, typer.Option("--maps", help="maps for the ridge arms: folder, file or Hub name")
    ] = None,
) -> int:
    """Judge arms against exact, paired, with intervals; the same command goes on where it stopped."""
    if settings is not None and recall is not None:
        raise BadInput(
            "fills and recall policies are judged apart", "leave out --arms and --tasks, or --policy"
        )
    if recall is not None:
        return _recall(model, recall, out, output)
    if settings is None:
        raise BadInput("nothing says what to judge", "give --arms and --tasks, or --policy")
    if isinstance(settings.tasks[0], AcceptanceSettings):
        if len(settings.tasks) > 1 or settings.arms or maps:
            raise BadInput("acceptance stands alone", "leave out --arms, --maps and other tasks")
        return _acceptance(model, settings, settings.tasks[0], out, output)
    from ridgefit import cost
    from ridgefit.evaluate import evaluate
    from ridgefit.evaluate.arms import resolve_arms
    from ridgefit.hub import local_maps
    from ridgefit.models import load_model
    from ridgefit.pipeline.plan import find_config

    maps = local_maps(maps) if maps else None
    # What is wrong with arms or maps is said before minutes of loading.
    resolve_arms(settings.arms, maps, cost.shape_from_config(find_config(model.model, weights=True)).layers)
    loaded = load_model(**model.load_options())
    with output.progress() as progress:
        result = evaluate(loaded, settings, maps, out, progress=progress)
    for line in result.warnings:
        output.warn(line)
    for choice in result.rows_choices:
        output.say(choice.sentence)
    output.result(result, lambda console: _show(console, result, out))
    return 0


def _recall(model: ModelSettings, settings: RecallEvalSettings, out: Path, output: Output) -> int:
    """Recall policies; exit status 1 where a gate fails, with all results written."""
    from ridgefit.evaluate.recall.run import evaluate_recall
    from ridgefit.hub import local_maps
    from ridgefit.models.load import load_latent

    policies = tuple(local_maps(policy) for policy in settings.policy)
    settings = settings.model_copy(update={"policy": policies})
    loaded = load_latent(**model.load_options())
    with output.progress() as progress:
        result = evaluate_recall(loaded, settings, out, progress=progress)
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


def _acceptance(
    model: ModelSettings, settings: EvalSettings, task: AcceptanceSettings, out: Path, output: Output
) -> int:
    from ridgefit.evaluate.acceptance import evaluate_acceptance
    from ridgefit.evaluate.acceptance_page import cautions
    from ridgefit.hub import local_maps

    unused = [
        name for name in _OF_FILLS if getattr(settings, name) != EvalSettings.model_fields[name].default
    ]
    if unused:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in unused)
        raise BadInput(f"{options} would do nothing with acceptance", f"leave {options} out")
    if task.controller is not None:
        task = task.model_copy(update={"controller": local_maps(task.controller)})
    with output.progress() as progress:
        result = evaluate_acceptance(
            model.load_options(),
            task,
            out,
            fraction=settings.fraction,
            resamples=settings.resamples,
            seed=settings.seed,
            progress=progress,
        )
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
