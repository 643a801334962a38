"""SIGTERM and SIGINT: the first asks to stop after the window at hand, the second stops."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Whether someone asked to stop; true in a condition once they have.

    Handlers are installed inside `with` and only in the main thread, where Python allows it; a signal that
    the process was started to ignore stays ignored.

    Args:
        patient: never stop at once, however often a signal comes (for workers, whose parent decides).
    """

    def __init__(self, *, patient: bool = False) -> None:
        self._patient = patient
        self._asked = threading.Event()
        self._before: dict[signal.Signals, Any] = {}

    def __bool__(self) -> bool:
        return self._asked.is_set()

    def ask(self) -> None:
        """Stop, as if a signal had come."""
        self._asked.set()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self and not self._patient:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.ask()
