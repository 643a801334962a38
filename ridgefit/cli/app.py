"""The `ridgefit` command: a table of commands, each imported when it is asked for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import ridgefit
from ridgefit.cli.errors import fail

COMMANDS = {
    "run": "Fit, check and judge maps in one resumable work folder, as a recipe says.",
    "plan": "Costs and savings of an arm, from a model's config alone.",
    "doctor": "Whether a model can be fitted here; exit status 1 if not.",
    "capture": "Stream the moments of split states and late layers' inputs over text.",
    "merge": "Add capture shards made anywhere.",
    "solve": "From moments to maps: one spectrum per split, penalty chosen on held-out documents.",
    "quantize": "Maps in int8, groups of 128 weights.",
    "verify": "Check maps; with --model also that off, plumb and all-exact are stock; exit status 1 if not.",
    "eval": "Judge arms against exact, paired, with intervals; the same command goes on where it stopped.",
    "generate": "Text with an arm applied, and the time to the first token.",
    "bench": "Speed side by side in one process.",
    "calibrate": "Data in, frozen policy file out.",
    "train": "Train a draft for compressed caches.",
    "push": "Publish maps on the Hub: judged first, in one commit, hashes compared after.",
    "pull": "Fetch maps from the Hub, one commit, only the splits asked for, every hash compared.",
    "inspect": "What maps, policies, controllers and evaluations hold; on the Hub only headers are fetched.",
    "report": "A page with tables and plots from an evaluation folder.",
}


class CommandTable(TyperGroup):
    """Lists commands by name and summary, and imports only the one that runs.

    Building every command costs a noticeable part of the time `--help` may take, and grows with each.
    """

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, summary in COMMANDS.items():
            self.add_command(TyperCommand(name, help=summary), name)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that runs, in full, and what is left of the command line."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, found if name is None else full_command(name), rest

    def list_commands(self, ctx: Any) -> list[str]:
        """Names in the order of the work, not of the alphabet."""
        del ctx
        return list(COMMANDS)


app = typer.Typer(
    cls=CommandTable,
    help="Fit small artefacts to a frozen language model, prove their worth, apply them at inference.",
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"ridgefit {ridgefit.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="print the version", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    del version


def full_command(name: str) -> Any:
    """The command with its options, from the module of its name.

    Args:
        name: a key of `COMMANDS`.

    Returns:
        what typer runs: a command, or a group for a module that has an `app` of its own.
    """
    module = import_module(f"ridgefit.cli.{name}")
    own: typer.Typer | None = getattr(module, "app", None)
    if own is None:
        own = typer.Typer(add_completion=False, rich_markup_mode="rich")
        own.command(name)(module.entry)
    built = typer.main.get_command(own)
    built.name = name
    return built


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line.

    Args:
        arguments: without the program's name; None takes the process's own.

    Returns:
        0 done, 1 a check failed, 2 bad input, 75 interrupted and resumable.
    """
    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    try:
        outcome = typer.main.get_command(app).main(given, prog_name="ridgefit", standalone_mode=False)
    except (Exception, KeyboardInterrupt) as error:
        return fail(error, as_json="--json" in given, stdout=sys.stdout)
    return outcome if isinstance(outcome, int) else 0


if __name__ == "__main__":
    sys.exit(main())
