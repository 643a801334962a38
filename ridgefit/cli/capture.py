"""`ridgefit capture`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from ridgefit.cli.options import Out, command
from ridgefit.cli.output import Output
from ridgefit.recipe import CaptureSettings, DataSettings, ModelSettings

if TYPE_CHECKING:
    from rich.console import Console

    from ridgefit.capture import CaptureResult


def capture(
    model: ModelSettings, data: DataSettings, settings: CaptureSettings, out: Out, output: Output
) -> None:
    """Stream the moments of split states and late layers' inputs over text."""
    from ridgefit.pipeline.capture import capture

    with output.progress() as progress:
        result = capture(
            model, data, settings, out, lambda done, total, _rate: progress(done, total, "tokens captured")
        )
    output.result(result, lambda console: _show(console, result))


def _show(console: Console, result: CaptureResult) -> None:
    from ridgefit.cli.render import plain

    record = result.record
    part = f"shard {record.shard}, " if record.shard else ""
    plain(
        console,
        f"{part}{record.windows:,} windows, {record.tokens:,} tokens in {result.folder}; "
        f"read {result.tokens:,} in {result.seconds:.1f} s, {result.tokens_per_second:,.0f} tokens/s",
    )
    for split, moments in record.moments.items():
        plain(console, f"split {split}: sha256 {moments.sha256}")
    if record.state == "complete":
        plain(console, f"next: ridgefit solve {shlex.quote(str(result.folder))} --out MAPS")
    else:
        plain(console, "next: ridgefit merge of all shards")


entry = command(capture, arguments=("model",), recipe=True)
