"""What an evaluation folder holds, for `ridgefit inspect`: its tables again, from its result alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ridgefit.cli.output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from ridgefit.evaluate.acceptance_summary import AcceptanceResult
    from ridgefit.evaluate.recall.result import RecallResult
    from ridgefit.evaluate.result import EvalResult


def inspected(folder: Path, output: Output) -> bool:
    """Show the folder's evaluation; False if it holds none, or maps beside it."""
    from ridgefit.evaluate.acceptance_summary import LINES, RESULT, load_acceptance
    from ridgefit.evaluate.recall.result import EVALUATION as RECALL
    from ridgefit.evaluate.recall.result import load_recall_result
    from ridgefit.evaluate.result import EVALUATION, load_result
    from ridgefit.maps.folder import MANIFEST

    # Of an evaluation that was stopped there are lines and no result, which is then said.
    if (folder / RESULT).is_file() or (folder / LINES).is_file():
        acceptance = load_acceptance(folder)
        output.result(acceptance, lambda console: _acceptance(console, acceptance))
    elif (folder / RECALL).is_file():
        recall = load_recall_result(folder)
        output.result(recall, lambda console: _recall(console, recall))
    elif (folder / EVALUATION).is_file() and not (folder / MANIFEST).is_file():
        found = load_result(folder)
        output.result(found, lambda console: _fills(console, found))
    else:
        return False
    return True


def _fills(console: Console, result: EvalResult) -> None:
    from ridgefit.evaluate.tables import render

    for table in render(result):
        console.print(table)


def _recall(console: Console, result: RecallResult) -> None:
    from ridgefit.cli.render import grid, plain
    from ridgefit.evaluate.recall.tables import recall_grids

    for table in recall_grids(result):
        plain(console, table.title)
        console.print(grid(table.heads, table.rows))


def _acceptance(console: Console, result: AcceptanceResult) -> None:
    from ridgefit.cli.render import grid, pairs, plain
    from ridgefit.evaluate.acceptance_page import cautions, facts, sentences, settings_rows
    from ridgefit.evaluate.acceptance_tables import tables, title

    plain(console, title(result))
    console.print(pairs([*facts(result), *settings_rows(result)]))
    for header, rows in tables(result):
        console.print(grid(header, rows))
    for line in (*cautions(result), *sentences(result)):
        plain(console, line)
