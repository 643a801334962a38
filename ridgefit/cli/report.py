"""`ridgefit report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgefit.cli.options import command
from ridgefit.cli.output import Output
from ridgefit.errors import BadInput


def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", show_default=False, help="folder of a finished evaluation")
    ],
    output: Output,
    maps: Annotated[
        Path | None, typer.Option("--maps", help="maps folder, whose penalty grid is shown too")
    ] = None,
) -> None:
    """A page with tables and plots from an evaluation folder."""
    from ridgefit.cli.render import plain
    from ridgefit.evaluate import report
    from ridgefit.evaluate.recall.result import EVALUATION
    from ridgefit.evaluate.recall.tables import recall_report

    recall = (folder / EVALUATION).is_file()
    if recall and maps is not None:
        raise BadInput("--maps would do nothing for an evaluation of recall policies", "leave it out")
    path = recall_report(folder) if recall else report(folder, maps=maps)
    output.result({"report": path}, lambda console: plain(console, f"written to {path}"))


entry = command(report)
