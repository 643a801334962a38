"""`ridgefit run`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgefit.cli.options import command
from ridgefit.cli.output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from ridgefit.pipeline.run import RunResult


def run(
    recipe: Annotated[
        Path,
        typer.Argument(metavar="RECIPE", show_default=False, help="YAML file, such as recipes/demo.yaml"),
    ],
    output: Output,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="replace a setting: --set capture.batch=2; repeatable"
        ),
    ] = None,
) -> None:
    """Fit, check and judge maps in one resumable work folder, as a recipe says."""
    from ridgefit.pipeline.recipe_file import load_recipe

    seed = [] if output.seed is None else [f"evaluate.seed={output.seed}"]
    settings = load_recipe(recipe, [*(overrides or ()), *seed])

    from ridgefit.pipeline.run import run

    with output.progress() as progress:
        result = run(settings, progress)
    for line in result.warnings:
        output.warn(line)
    output.result(result, lambda console: _show(console, result))


def _show(console: Console, result: RunResult) -> None:
    from ridgefit.cli.render import grid, plain
    from ridgefit.evaluate import render

    console.print(grid(("stage", ""), list(result.stages.items()), numbers=False))
    header = ("split", "rows", "rows per channel", "alpha", "held-out cosine", "identity")
    rows = [
        (
            str(split),
            f"{found['rows']:,}",
            f"{found['rows_per_width']:.1f}",
            ", ".join(f"{alpha:g}" for alpha in found["alphas"]),
            f"{found['score']:.4f}",
            f"{found['identity']:.4f}",
        )
        for split, found in result.splits.items()
    ]
    console.print(grid(header, rows))
    for table in render(result.evaluation):
        console.print(table)
    plain(
        console, f"{len(result.checks.lines)} checks hold; written to {result.work}, report {result.report}"
    )


entry = command(run)
