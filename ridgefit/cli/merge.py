"""`ridgefit merge`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgefit.cli.options import Out, command
from ridgefit.cli.output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from ridgefit.capture import CaptureRecord


def merge(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", show_default=False, help="finished capture shards")
    ],
    out: Out,
    output: Output,
) -> None:
    """Add capture shards made anywhere."""
    from ridgefit.capture import merge_shards

    result = merge_shards(folders, out)
    output.result(result, lambda console: _show(console, result, out))


def _show(console: Console, result: CaptureRecord, out: Path) -> None:
    from ridgefit.cli.render import plain

    plain(console, f"{result.windows:,} windows, {result.tokens:,} tokens in {out}")
    for split, record in result.moments.items():
        plain(console, f"split {split}: sha256 {record.sha256}")


entry = command(merge)
