"""`ridgefit doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgefit.cli.options import command
from ridgefit.cli.output import Output
from ridgefit.recipe import DoctorSettings, ModelSettings

if TYPE_CHECKING:
    from rich.console import Console

    from ridgefit.pipeline.doctor import Diagnosis


def doctor(model: ModelSettings, settings: DoctorSettings, output: Output) -> int:
    """Whether a model can be fitted here; exit status 1 if not."""
    from ridgefit.pipeline.doctor import doctor

    with output.progress() as progress:
        result = doctor(model, settings, progress)
    output.result(result, lambda console: _show(console, result))
    return 0 if result.ok else 1


def _show(console: Console, result: Diagnosis) -> None:
    from ridgefit.cli.render import grid, plain

    rows = [(found.state, found.subject, found.detail) for found in result.findings]
    console.print(grid(("", "looked at", "found"), rows, numbers=False))
    start = result.suggestion
    plain(console, f"start with --split {start.split}, tail {start.tail}: {start.why}")


entry = command(doctor, arguments=("model",))
