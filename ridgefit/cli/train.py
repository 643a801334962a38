"""`ridgefit train`: a group, one command per thing that is trained."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import typer

from ridgefit.cli.options import Out, command
from ridgefit.cli.output import Output
from ridgefit.recipe import ModelSettings, TrainDraftSettings

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console


def draft(model: ModelSettings, settings: TrainDraftSettings, out: Out, output: Output) -> None:
    """Make a draft keep its aim under a compressed cache; MODEL is the draft."""
    from ridgefit.calibrate.compress import train_draft

    with output.progress() as progress:
        record = train_draft(model.load_options(), settings, out, progress=progress)
    output.result(record, lambda console: _show(console, record, out))


def _show(console: Console, record: dict[str, Any], out: Path) -> None:
    from ridgefit.cli.render import plain

    plain(
        console,
        f"{record['updates']} updates on {record['prompts']} prompts, {record['trained_weights']:,} weights: "
        f"loss {record['first_loss']:.3f} to {record['last_loss']:.3f}; written to {out}",
    )
    plain(console, f"next: ridgefit eval TARGET --tasks acceptance,draft={shlex.quote(str(out))},…")


app = typer.Typer(add_completion=False, rich_markup_mode="rich", help="Train a draft for compressed caches.")
app.command("draft")(command(draft, arguments=("model",)))


@app.callback()
def _group() -> None:
    """Train a draft for compressed caches."""
