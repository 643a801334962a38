"""`ridgefit bench`: a group, one command per thing that is timed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from ridgefit.cli.options import command
from ridgefit.cli.output import Output
from ridgefit.recipe import BenchPrefillSettings

if TYPE_CHECKING:
    from rich.console import Console

    from ridgefit.pipeline.bench import PrefillBench


def prefill(settings: BenchPrefillSettings, output: Output) -> None:
    """Prefill times of exact, identity, ridge and POP native: random weights, or a model and its maps."""
    from ridgefit.pipeline.bench import bench_prefill

    with output.progress() as progress:
        result = bench_prefill(settings, progress)
    output.result(result, lambda console: _show(console, result))


def _show(console: Console, result: PrefillBench) -> None:
    from ridgefit.cli.render import grid, plain

    wide = any(timing.reads not in (None, "state") for timing in result.timings)
    chosen = any(timing.rows for timing in result.timings)
    more = (*(("reads",) if wide else ()), *(("rows", "chosen") if chosen else ()))
    header = ("arm", *more, "split", "tail", "tokens", "seconds", "speedup", "limit", "share", "T MAC/s")
    rows = [
        (
            timing.arm,
            *((timing.reads or "",) if wide else ()),
            *((timing.rows or "", f"{timing.rows_chosen:,}" if timing.rows else "") if chosen else ()),
            "" if timing.split is None else str(timing.split),
            "" if timing.tail is None else str(timing.tail),
            f"{timing.tokens:,}",
            f"{timing.seconds:.3f}",
            f"{timing.speedup:.3f}",
            f"{timing.limit:.3f}",
            f"{timing.share:.3f}",
            f"{timing.rate:.3g}",
        )
        for timing in result.timings
    ]
    device = result.machine["gpu"] if result.device.startswith("cuda") else result.machine["cpu"]
    name = result.preset or (result.base or {}).get("name")
    title = (
        f"prefill of {name} on {device}, {result.dtype}, {result.attention}, "
        f"medians of {result.repeats} interleaved rounds"
    )
    plain(console, title)
    console.print(grid(header, rows))


app = typer.Typer(add_completion=False, rich_markup_mode="rich", help="Speed side by side in one process.")
app.command("prefill")(command(prefill))


@app.callback()
def _group() -> None:
    """Speed side by side in one process."""
