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
    from ridgefit.evaluate.acceptance_page import acceptance_report
    from ridgefit.evaluate.acceptance_summary import RESULT
    from ridgefit.evaluate.recall.result import EVALUATION
    from ridgefit.evaluate.recall.tables import recall_report

    if not folder.exists():
        raise BadInput(f"{folder} does not exist", "name the --out of a `ridgefit eval`")
    if folder.name in (RESULT, EVALUATION):
        folder = folder.parent
    if (folder / RESULT).is_file():
        if maps is not None:
            raise BadInput("an acceptance evaluation has no maps", "leave --maps out")
        path = acceptance_report(folder)
    elif (folder / EVALUATION).is_file():
        if maps is not None:
            raise BadInput("an evaluation of recall policies has no maps", "leave --maps out")
        path = recall_report(folder)
    else:
        path = report(folder, maps=maps)
    output.result({"report": path}, lambda console: plain(console, f"written to {path}"))


entry = command(report)
