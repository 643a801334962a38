"""`ridgefit inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgefit.cli.options import command
from ridgefit.cli.output import Output

if TYPE_CHECKING:
    from rich.console import Console


def inspect(
    maps: Annotated[
        Path,
        typer.Argument(
            metavar="MAPS", show_default=False, help="maps folder, source file or format-1 folder"
        ),
    ],
    output: Output,
) -> None:
    """What a maps folder or file holds."""
    from ridgefit.maps import inspect

    result = inspect(maps)
    output.result(result, lambda console: _show(console, result))


def _show(console: Console, result: dict[str, Any]) -> None:
    from ridgefit.cli.render import pairs, size

    origin = result["fingerprint"] or {}
    rows = [("layout", str(result["layout"])), ("base model", _name(origin))]
    for split, record in result["splits"].items():
        first, stop = record["layers"]
        held = (
            f"layers {first} to {stop - 1}, maps {record['shape'][0]} x {record['shape'][1]} of "
            f"{'+'.join(record['features'])}, {record['layout']}, {size(record['bytes'])}"
        )
        rows.append((f"split {split}", held))
        if record.get("rows"):
            fit = f"{record['rows']:,} rows, penalty {record['penalty']}, alpha {_alphas(record)}"
            rows.append(("  fit", fit))
        if record.get("scores"):
            rows.append(("  held out", _score(record["scores"])))
    console.print(pairs(rows))


def _alphas(record: dict[str, Any]) -> str:
    distinct = sorted(set(record["alphas"]))
    return ", ".join(f"{alpha:g}" for alpha in distinct)


def _score(scores: dict[str, Any]) -> str:
    """The split's score and the identity's beside it; the JSON form has every layer's."""
    choice, identity = scores.get("choice") or {}, scores.get("identity")
    if "score" not in choice or identity is None:
        return "see --json"
    return f"cosine of what late layers write {choice['score']:.4f}, identity {identity:.4f}"


def _name(origin: dict[str, Any]) -> str:
    if not origin:
        return "not stated"
    revision = f"@{origin['revision']}" if origin.get("revision") else ""
    return f"{origin['name']}{revision} ({origin['family']})"


entry = command(inspect)
