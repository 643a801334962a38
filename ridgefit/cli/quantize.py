"""`ridgefit quantize`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgefit.cli.options import Out, command
from ridgefit.cli.output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from ridgefit.maps import QuantizeReport


def quantize(
    maps: Annotated[
        Path,
        typer.Argument(
            metavar="MAPS", show_default=False, help="maps folder, source file or format-1 folder in bf16"
        ),
    ],
    out: Out,
    output: Output,
) -> None:
    """Maps in int8, groups of 128 weights."""
    from ridgefit.maps import quantize

    with output.progress() as progress:
        result = quantize(maps, out, progress=progress)
    output.result(result, lambda console: _show(console, out, result))


def _show(console: Console, out: Path, result: QuantizeReport) -> None:
    from ridgefit.cli.render import grid, plain

    rows = [(str(split), str(len(r.files)), r.manifest_sha256) for split, r in result.splits.items()]
    console.print(grid(("split", "files", "sha256 of the manifest"), rows))
    plain(console, f"written to {out}; largest error {result.largest_error_steps:.4f} of a group's scale")


entry = command(quantize)
