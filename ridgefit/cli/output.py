"""What a command says: one JSON object or text on stdout, everything else on stderr."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from pydantic import BaseModel

from ridgefit.cli.progress import Progress

if TYPE_CHECKING:
    from rich.console import Console


@dataclasses.dataclass(frozen=True)
class Output:
    """The options that every command has, and the ways it may speak.

    Args:
        json: print the result as one JSON object on stdout, and nothing else there.
        quiet: no progress, notes or warnings on stderr.
        verbose: also say what is being done, on stderr.
        seed: given with `--seed`; None leaves it to the settings.
        stdout: where the result goes, whatever `sys.stdout` becomes meanwhile.
    """

    json: bool = False
    quiet: bool = False
    verbose: bool = False
    seed: int | None = None
    stdout: TextIO = dataclasses.field(default_factory=lambda: sys.stdout)

    @contextlib.contextmanager
    def speaking(self) -> Iterator[None]:
        """Set up logging and warnings for a command; with `json`, what others print goes to stderr."""
        level = logging.ERROR if self.quiet else logging.INFO if self.verbose else logging.WARNING
        handler = logging.StreamHandler(sys.stderr)
        ours = logging.getLogger("ridgefit")
        ours.setLevel(level)
        ours.addHandler(handler)
        if not self.verbose:
            # The Hub client announces each of its retries; the error that ends them says it all. It sets its
            # logger's level from here when it is first imported, so that setting the level now is no use.
            os.environ.setdefault("HF_HUB_VERBOSITY", "error")
        with contextlib.ExitStack() as stack:
            stack.callback(ours.removeHandler, handler)
            if self.quiet or not sys.stderr.isatty():
                # Read when the Hub client is first imported: it silences the bars of downloads and of
                # loading weights, which otherwise fill a log.
                os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
            stack.enter_context(warnings.catch_warnings())
            warnings.showwarning = self._warn_of
            if self.json:
                stack.enter_context(contextlib.redirect_stdout(sys.stderr))
            yield

    def result(self, value: Any, render: Callable[[Console], None]) -> None:
        """The command's result, once: as JSON, or as `render` draws it.

        Args:
            value: a pydantic model, dataclass, mapping or sequence; its `jsonable` form is printed.
            render: draws it on a terminal.
        """
        if self.json:
            self.stdout.write(json.dumps(jsonable(value), ensure_ascii=False, allow_nan=False) + "\n")
            self.stdout.flush()
            return
        from rich.console import Console

        # A pipe has no width of its own; tables need one that does not cut them.
        width = None if self.stdout.isatty() else 120
        # A console takes :llama: for a picture; what is in brackets is escaped where tables are made.
        render(Console(file=self.stdout, highlight=False, emoji=False, width=width))

    def say(self, text: str) -> None:
        """A line on stderr beside the result, unless `quiet`; the JSON form carries it already."""
        if not self.quiet and not self.json:
            sys.stderr.write(text + "\n")

    def warn(self, text: str) -> None:
        """A line on stderr, unless `quiet`."""
        if not self.quiet:
            sys.stderr.write(f"warning: {text}\n")

    def _warn_of(self, message: Warning | str, *where: object, **more: object) -> None:
        """A warning of a library as a sentence, without the line of code that gave it."""
        del where, more
        self.warn(str(message))

    @contextlib.contextmanager
    def progress(self) -> Iterator[Progress]:
        """A bar on stderr for work that takes over two seconds."""
        bar = Progress(sys.stderr, shown=not self.quiet)
        try:
            yield bar
        finally:
            bar.close()


def jsonable(value: Any) -> Any:
    """`value` in JSON's types; numbers that JSON does not have become null, paths become text."""
    if isinstance(value, BaseModel):
        return jsonable(value.model_dump())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: jsonable(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, Sequence | frozenset | set | range) and not isinstance(value, str | bytes):
        items = sorted(value, key=str) if isinstance(value, frozenset | set) else value
        return [jsonable(item) for item in items]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, str | int | bool):
        return value
    if hasattr(value, "item"):
        return jsonable(value.item())  # a number of numpy or torch
    return str(value)
