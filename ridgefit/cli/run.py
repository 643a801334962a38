"""`ridgefit run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgefit.cli.options import command
from ridgefit.cli.output import Output


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
    output.result(result, lambda console: console.print(result))


entry = command(run)
