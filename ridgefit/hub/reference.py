"""`org/name[@revision]`, read once and passed on as a value."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ridgefit.errors import BadInput
from ridgefit.files import names_a_path

_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_FORM = re.compile(rf"(?P<name>{_PART}/{_PART})(?:@(?P<revision>[A-Za-z0-9][A-Za-z0-9._/-]{{0,199}}))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class RepoRef:
    """A repository on the Hub, and which state of it.

    Attributes:
        name: `org/name`.
        revision: branch, tag or commit; None is the main branch.
    """

    name: str
    revision: str | None = None

    @classmethod
    def parse(cls, written: str) -> Self:
        """Read the written form.

        Raises:
            BadInput: it has another form.
        """
        match = _FORM.fullmatch(written)
        if match is None or ".." in written or "--" in match["name"]:
            raise BadInput(f"{written[:100]!r} does not name a Hub repository", "write org/name[@revision]")
        return cls(match["name"], match["revision"])

    def __str__(self) -> str:
        return self.name if self.revision is None else f"{self.name}@{self.revision}"


def names_repository(text: str) -> bool:
    """Whether this is the name of a Hub repository and not of something on this machine."""
    if Path(text).exists() or names_a_path(text):
        return False
    try:
        RepoRef.parse(text)
    except BadInput:
        return False
    return True


def is_commit(revision: str | None) -> bool:
    """Whether a revision is a full commit hash, which cannot move."""
    return revision is not None and _COMMIT.fullmatch(revision) is not None
