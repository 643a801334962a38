"""`ridgefit solve`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgefit.cli.options import Out, command
from ridgefit.cli.output import Output
from ridgefit.recipe import ModelSettings, SolveSettings

if TYPE_CHECKING:
    from rich.console import Console

    from ridgefit.pipeline.solve_report import SolveReport


def solve(
    moments: Annotated[
        Path, typer.Argument(metavar="DIR", show_default=False, help="folder of a finished capture")
    ],
    settings: SolveSettings,
    model: ModelSettings | None,
    out: Out,
    output: Output,
) -> None:
    """From moments to maps: one spectrum per split, penalty chosen on held-out documents.

    The model reads the held-out documents once; without --model it is the one the capture names.
    """
    from ridgefit.pipeline.solve import solve

    with output.progress() as progress:
        result = solve(moments, model, settings, out, progress)
    for line in result.warnings:
        output.warn(line)
    output.result(result, lambda console: _show(console, result))


def _show(console: Console, result: SolveReport) -> None:
    from ridgefit.cli.render import grid, plain
    from ridgefit.evaluate.candidates import candidate_table

    for split in result.splits:
        chosen = set(split.choice.alphas)
        fit, score = split.fit, split.choice.score
        plain(
            console,
            f"split {split.split}: {fit.rows:,} rows, {fit.rows_per_width:.1f} per channel; "
            f"held-out cosine of what late layers write {score:.4f}, identity {split.identity:.4f}",
        )
        grid_rows = [
            (
                f"{tried.alpha:g}{' *' if tried.alpha in chosen else ''}",
                f"{tried.mean:.4f}",
                f"{fitted.degrees:.1f}",
            )
            for tried, fitted in zip(
                split.choice.grid, sorted(fit.grid, key=lambda row: row.alpha), strict=True
            )
        ]
        console.print(grid(("alpha", "cosine", "degrees of freedom"), grid_rows))
        layer_rows = [
            (
                str(layer.layer),
                f"{layer.alpha:g}",
                *(f"{value:.4f}" for value in (layer.keys, layer.values, layer.inputs)),
                *(f"{v:.4f}" for v in (layer.identity_keys, layer.identity_values, layer.identity_inputs)),
            )
            for layer in split.layers
        ]
        if split.frontier is not None:
            table = candidate_table(split.split, split.frontier.model_dump())
            console.print(grid(table.grid.heads, table.grid.rows))
            plain(console, table.chosen)
        header = ("layer", "alpha", "keys", "values", "inputs", "identity: keys", "values", "inputs")
        console.print(grid(header, layer_rows))
    plain(console, f"written to {result.out}")


entry = command(solve, recipe=True)
