"""`ridgefit generate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgefit.cli.options import command
from ridgefit.cli.output import Output
from ridgefit.recipe import DraftGenerateSettings, GenerateSettings, ModelSettings

if TYPE_CHECKING:
    from rich.console import Console

    from ridgefit.pipeline.generate import Generated


def generate(
    model: ModelSettings, settings: GenerateSettings, drafted: DraftGenerateSettings | None, output: Output
) -> None:
    """Text with an arm applied, and the time to the first token."""
    if drafted is not None:
        _drafted(model, settings, drafted, output)
        return
    if settings.policy is not None:
        _recall(model, settings, output)
        return
    from ridgefit.pipeline.generate import generate

    result = generate(model, settings)
    for line in result.warnings:
        output.warn(line)
    output.result(result, lambda console: _show(console, result))
    output.say(_timing(result))


def _recall(model: ModelSettings, settings: GenerateSettings, output: Output) -> None:
    """The same with a recall policy in place of maps."""
    from ridgefit.cli.render import plain
    from ridgefit.pipeline.generate_recall import generate_recall

    result = generate_recall(model, settings)
    for line in result.warnings:
        output.warn(line)
    output.result(result, lambda console: plain(console, result.text))
    for index, layer in result.layers.items():
        output.say(
            f"layer {index}: {layer.kept:,} rows kept, {layer.archived:,} archived, {layer.fetched:.1f} "
            f"fetched a step (at most {layer.most:,}), {100 * layer.share:.1f} % of the cache read a step"
        )


def _drafted(
    model: ModelSettings, settings: GenerateSettings, drafted: DraftGenerateSettings, output: Output
) -> None:
    """The target's own text, drafted for it by another model or itself."""
    from ridgefit.cli.render import plain
    from ridgefit.pipeline.generate_draft import generate_draft

    result = generate_draft(model, settings, drafted)
    output.result(result, lambda console: plain(console, result.text))
    for line in result.warnings:
        output.warn(line)
    length = "" if result.acceptance_length is None else f"{result.acceptance_length:.2f} tokens a round, "
    rounds = f"in {result.rounds} rounds, " if drafted.draft != "none" else "without a draft, "
    output.say(
        f"{result.policy}: {result.new_tokens} tokens {rounds}{length}"
        f"{result.refreshes} refreshes, at most {result.widest} columns in sight; "
        f"first token after {result.first_token_seconds:.3f} s, all in {result.seconds:.3f} s"
    )


def _show(console: Console, result: Generated) -> None:
    from ridgefit.cli.render import plain

    plain(console, result.text)


def _timing(result: Generated) -> str:
    filled = f", {result.rows_filled:,} rows filled" if result.rows_filled else ""
    filled += f" and {result.rows_chosen:,} chosen" if result.rows_chosen else ""
    return (
        f"{result.arm}: {result.prompt_tokens:,} prompt tokens{filled}; first token after "
        f"{result.first_token_seconds:.3f} s, {result.new_tokens} tokens in {result.seconds:.3f} s; "
        f"peak memory {result.peak_bytes / 2**30:.2f} GiB"
    )


entry = command(generate, arguments=("model",))
