"""`ridgefit calibrate`: a group, one command per policy."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import typer

from ridgefit.cli.options import Out, command
from ridgefit.cli.output import Output
from ridgefit.recipe import CalibrateRecallSettings, CalibrateRefreshSettings, ModelSettings

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from ridgefit.maps.recall import RecallPolicy
    from ridgefit.maps.refresh import RefreshController


def recall(model: ModelSettings, settings: CalibrateRecallSettings, out: Out, output: Output) -> None:
    """Thresholds of a recall policy from text; exit status 1 and no policy if it misses its target."""
    from ridgefit.calibrate.recall import calibrate_recall, require_calibration
    from ridgefit.models.load import load_latent

    require_calibration(settings, out)
    loaded = load_latent(**model.load_options())
    with output.progress() as progress:
        policy = calibrate_recall(loaded, settings, out, progress=progress)
    for index, layer in policy.manifest.layers.items():
        if layer.archive and not layer.held_out_hard:
            output.warn(f"layer {index}: no hard query in the documents kept back, its recall is unknown")
    output.result(policy.manifest, lambda console: _show_recall(console, policy, out))


def _show_recall(console: Console, policy: RecallPolicy, out: Path) -> None:
    from ridgefit.cli.render import grid, plain

    header = (
        "layer",
        "z",
        "gate",
        "hard",
        "held out",
        "recall",
        "any head",
        "fires",
        "rows/step",
        "archive",
    )

    def share(value: float | None) -> str:
        return "" if value is None else f"{100 * value:.1f} %"

    rows = [
        (
            str(index),
            f"{layer.z:.2f}",
            "open" if layer.gate is None else f"{layer.gate:.2f}",
            f"{layer.hard:,}",
            f"{layer.held_out_hard:,}",
            share(layer.recall),
            share(layer.recall_union),
            share(layer.fire_rate),
            "" if layer.rows_per_step is None else f"{layer.rows_per_step:.1f}",
            "" if layer.archive is None else f"{layer.archive:.0f}",
        )
        for index, layer in policy.manifest.layers.items()
    ]
    console.print(grid(header, rows))
    spread = max(policy.manifest.probe.values())
    plain(console, f"branch of one vector over positions: largest difference {spread:.3f} of its length")
    plain(console, f"next: ridgefit eval MODEL --policy {shlex.quote(str(out))} --out RESULTS")


def refresh(model: ModelSettings, settings: CalibrateRefreshSettings, out: Out, output: Output) -> int:
    """A controller of draft-cache refreshes from traces, tested once; exit status 1 if none passes."""
    from ridgefit.calibrate.refresh import calibrate_refresh

    with output.progress() as progress:
        frozen = calibrate_refresh(model.load_options(), settings, out, progress=progress)
    output.result(frozen, lambda console: _show_refresh(console, frozen, out))
    return int(frozen.rule.kind == "none")


def _show_refresh(console: Console, frozen: RefreshController, out: Path) -> None:
    from ridgefit.cli.render import grid, plain
    from ridgefit.maps.refresh_rows import rule_text, test_heads, test_rows, verdict

    console.print(grid(test_heads(frozen), test_rows(frozen)))
    plain(console, f"{frozen.rule.kind}: refresh when {rule_text(frozen)}")
    plain(console, f"{verdict(frozen)}; frozen in {out}")


app = typer.Typer(add_completion=False, rich_markup_mode="rich", help="Data in, frozen policy file out.")
app.command("recall")(command(recall, arguments=("model",), recipe=True))
app.command("refresh")(command(refresh, arguments=("model",)))


@app.callback()
def _group() -> None:
    """Data in, frozen policy file out."""
