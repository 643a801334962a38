"""`ridgefit eval`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgefit.cli.options import Out, command
from ridgefit.cli.output import Output
from ridgefit.recipe import AcceptanceSettings, EvalSettings, ModelSettings

if TYPE_CHECKING:
    from rich.console import Console

    from ridgefit.evaluate import EvalResult
    from ridgefit.evaluate.acceptance_summary import AcceptanceResult


def evaluate(
    model: ModelSettings,
    settings: EvalSettings,
    out: Out,
    output: Output,
    maps: Annotated[
        Path | None, typer.Option("--maps", help="maps for the ridge arms: folder, file or Hub name")
    ] = None,
) -> None:
    """Judge arms against exact, paired, with intervals; the same command goes on where it stopped."""
    if isinstance(settings.tasks[0], AcceptanceSettings):
        _acceptance(model, settings, settings.tasks[0], out, output)
        return
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
    output.result(result, lambda console: _show(console, result, out))


def _acceptance(
    model: ModelSettings, settings: EvalSettings, task: AcceptanceSettings, out: Path, output: Output
) -> None:
    from ridgefit.evaluate.acceptance import evaluate_acceptance

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
    output.result(result, lambda console: _show_acceptance(console, result, out))


def _show_acceptance(console: Console, result: AcceptanceResult, out: Path) -> None:
    from ridgefit.cli.render import grid, plain
    from ridgefit.evaluate.acceptance_tables import tables, title

    plain(console, title(result))
    for header, rows in tables(result):
        console.print(grid(header, rows))
    plain(console, f"written to {out}")


def _show(console: Console, result: EvalResult, out: Path) -> None:
    from ridgefit.cli.render import plain
    from ridgefit.evaluate import render

    for table in render(result):
        console.print(table)
    plain(console, f"written to {out}; `ridgefit report {shlex.quote(str(out))}` makes a page of it")


entry = command(evaluate, arguments=("model",), recipe=True)
