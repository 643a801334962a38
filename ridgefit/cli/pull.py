"""`ridgefit pull`."""

from __future__ import annotations

from ridgefit.cli.options import command
from ridgefit.cli.output import Output
from ridgefit.recipe import PullSettings


def pull(settings: PullSettings, output: Output) -> None:
    """Fetch maps from the Hub, one commit, only the splits asked for, every hash compared."""
    from ridgefit.cli.render import size
    from ridgefit.pipeline.publish import fetch

    with output.progress() as progress:
        result = fetch(settings, progress=progress)
    splits = ", ".join(map(str, result.splits))
    output.result(
        result,
        lambda console: console.print(
            f"{result.repo}@{result.sha}\nsplit {splits}, {result.files} files, {size(result.bytes)}, "
            f"every hash holds\n{result.path}",
            markup=False,
        ),
    )


entry = command(pull, arguments=("repo",))
