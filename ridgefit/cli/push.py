"""`ridgefit push`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgefit.cli.options import command
from ridgefit.cli.output import Output
from ridgefit.recipe import PushSettings

if TYPE_CHECKING:
    from rich.console import Console

    from ridgefit.hub import PushReport


def push(settings: PushSettings, output: Output) -> None:
    """Publish maps on the Hub: judged first, in one commit, hashes compared after."""
    from ridgefit.pipeline.publish import publish

    result = publish(settings, say=output.say)
    output.result(result, lambda console: _show(console, result))


def _show(console: Console, result: PushReport) -> None:
    from ridgefit.cli.render import grid, size

    rows = [(file.path, size(file.size), file.change) for file in result.files if file.change != "same"]
    if rows:
        console.print(grid(("file", "size", "change"), rows))
    total = size(sum(file.size for file in result.files))
    if result.sha is None:
        console.print(f"{len(result.files)} files, {total}; nothing was sent")
        return
    same = sum(file.change == "same" for file in result.files)
    console.print(f"{len(result.files)} files, {total}; {size(result.uploaded)} sent, {same} were there")
    if result.url and result.branch is None:
        console.print(result.url)
    console.print(f"{result.repo}@{result.sha}{f' is tagged {result.tag}' if result.tag else ''}")


entry = command(push, arguments=("maps", "repo"))
