"""What ridgefit raises for a user's mistake: one sentence, how to mend it, and an exit status."""

from __future__ import annotations

from typing import ClassVar


class RidgefitError(Exception):
    """Base of every error that a command shows as one sentence instead of a traceback.

    Args:
        what: what is wrong and where, a full sentence without a trailing full stop.
        fix: the command or setting that mends it, or "" where nothing can. May be a question.
    """

    exit_status: ClassVar[int] = 1

    def __init__(self, what: str, fix: str = "") -> None:
        self.what = what.rstrip(".")
        self.fix = fix.rstrip(".")
        said = f"{self.what}: {self.fix}" if self.fix else self.what
        super().__init__(said if said.endswith("?") else f"{said}.")


class BadInput(RidgefitError):
    """The request cannot be carried out as written: a path, a setting, a file, a model."""

    exit_status = 2


class CheckFailed(RidgefitError):
    """The work ran, and a promised property does not hold (verify, doctor, a gate)."""

    exit_status = 1


class Interrupted(RidgefitError):
    """Stopped by a signal after saving; the same command goes on from there, `capture` with `--resume`."""

    exit_status = 75
