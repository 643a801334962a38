"""Tables and units for people; the JSON form carries the plain numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from rich.console import Console


def plain(console: Console, text: str) -> None:
    """A line as it is: brackets are no styles, and a path is not broken where the console ends."""
    console.print(text, markup=False, soft_wrap=True)


def pairs(rows: Iterable[tuple[str, str]]) -> Table:
    """A table of names and values, without a header."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(escape(name), escape(value))
    return table


def grid(header: Iterable[str], rows: Iterable[Iterable[str]], *, numbers: bool = True) -> Table:
    """A table with a header; columns after the first stand to the right if they hold numbers."""
    table = Table(box=None, pad_edge=False, header_style="cyan")
    for index, name in enumerate(header):
        justify: Literal["left", "right"] = "right" if numbers and index else "left"
        table.add_column(escape(name), justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    return table


def amount(value: float) -> str:
    """A count with a decimal prefix: 153.4 T."""
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= size:
            return f"{value / size:.4g} {prefix}"
    return f"{value:.4g}"


def size(count: float) -> str:
    """Bytes with a binary prefix: 735.9 MiB."""
    for unit, prefix in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.4g} {prefix}"
    return f"{count:g} B"


def duration(seconds: float) -> str:
    """Seconds for a reader: 0.63 s, 12 min."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
