"""A progress bar on stderr, with rate and time left, for work that takes over two seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

DELAY = 2.0
LINE_EVERY = 10.0


class Progress:
    """Called with how much is done, how much there is, and what is being done now.

    On a terminal it draws a bar; elsewhere, in a log, it writes a line every ten seconds. Nothing is
    shown for work that is over within two seconds. Fewer steps done than before, or another number of
    steps in all, begins a new bar.

    Args:
        stream: where it is shown.
        shown: False shows nothing at all.
        clock: seconds, rising.
    """

    def __init__(
        self, stream: TextIO, *, shown: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._shown = shown
        self._clock = clock
        self._start: float | None = None
        self._first = self._done = 0
        self._total: int | None = None
        self._line_at = 0.0
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None

    def __call__(self, done: int, total: int | None = None, text: str = "") -> None:
        """Report that `done` of `total` steps are over; total None where nobody knows."""
        if not self._shown:
            return
        now = self._clock()
        if self._start is None or total != self._total or done < self._done:
            self._start, self._first, self._task = now, done, None
            self._line_at = now + DELAY
        self._done, self._total = done, total
        if now - self._start < DELAY:
            return
        if self._stream.isatty():
            self._draw(done, total, text)
        elif now >= self._line_at or done == total:
            self._line_at = now + LINE_EVERY
            rate = (done - self._first) / (now - self._start)
            self._stream.write(f"{_sentence(done, total, rate, text)}\n")
            self._stream.flush()

    def close(self) -> None:
        """Take the bar down; the last state stays on the screen."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _draw(self, done: int, total: int | None, text: str) -> None:
        if self._bar is None:
            self._bar = _rich_progress(self._stream)
            self._bar.start()
        if self._task is None:
            self._task = self._bar.add_task(text, total=total, completed=self._first)
        self._bar.update(self._task, completed=done, total=total, description=text)


def _sentence(done: int, total: int | None, rate: float, text: str) -> str:
    if total is None:
        return f"{text or 'working'} ({done:,} done)"
    counted = f"{done:,} of {total:,}"
    parts = [f"{text}: {counted}" if text else counted, _rate(rate)]
    if rate > 0 and done < total:
        parts.append(f"{_duration((total - done) / rate)} left")
    return ", ".join(parts)


def _rate(steps: float) -> str:
    return f"{steps:,.0f}/s" if steps >= 100 else f"{steps:.3g}/s"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _rich_progress(stream: TextIO) -> RichProgress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as RichProgress
    from rich.text import Text

    class Rate(ProgressColumn):
        """Steps a second."""

        def render(self, task: Any) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else _rate(speed))

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeRemainingColumn(),
    )
    return RichProgress(*columns, console=Console(file=stream, stderr=False, emoji=False))
