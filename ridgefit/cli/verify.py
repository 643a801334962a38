"""`ridgefit verify`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgefit.cli.options import command
from ridgefit.cli.output import Output
from ridgefit.recipe import ModelSettings, VerifySettings

if TYPE_CHECKING:
    from rich.console import Console

    from ridgefit.pipeline.verify import VerifyReport


def verify(settings: VerifySettings, model: ModelSettings | None, output: Output) -> int:
    """Check maps; with --model also that off, plumb and all-exact are stock; exit status 1 if not."""
    from ridgefit.hub import is_controller, is_policy, local_maps
    from ridgefit.pipeline.verify import verify
    from ridgefit.pipeline.verify_recall import verify_policy
    from ridgefit.pipeline.verify_refresh import verify_controller

    settings = settings.model_copy(update={"maps": local_maps(settings.maps, settings.split)})
    if is_policy(settings.maps):
        result = verify_policy(settings, model)
    elif is_controller(settings.maps):
        result = verify_controller(settings, model)
    else:
        with output.progress() as progress:
            result = verify(settings, model, progress)
    for line in result.warnings:
        output.warn(line)
    output.result(result, lambda console: _show(console, result))
    return 0 if result.ok else 1


def _show(console: Console, result: VerifyReport) -> None:
    from ridgefit.cli.render import grid, plain

    rows = [("ok" if line.ok else "FAILED", line.subject, line.check, line.detail) for line in result.lines]
    console.print(grid(("", "what", "check", "found"), rows, numbers=False))
    failed = sum(not line.ok for line in result.lines)
    plain(console, f"{len(result.lines)} checks, {'all hold' if result.ok else f'{failed} failed'}")


entry = command(verify, arguments=("maps",))
