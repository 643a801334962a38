"""What a cache policy is: how the budget is shared, what is scored, and when it is scored again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ridgefit.runtime.draft.controllers import Controller
from ridgefit.runtime.draft.scores import Scorer
from ridgefit.runtime.draft.settings import CacheSettings


@dataclass(frozen=True)
class Policy:
    """One way to keep a draft's cache small; one file each, found through `POLICIES`.

    Attributes:
        name: as on the command line.
        source: where it comes from, and what is different here.
        recent: settings and budget -> newest columns kept; None keeps everything (no compression).
        scorer: what selects the rest; None selects nothing.
        controller: settings -> a new controller for one request; None where a frozen one must be given.
        sums: attention is summed over all committed queries, and what was let go does not come back.
    """

    name: str
    source: str
    recent: Callable[[CacheSettings, int], int] | None
    scorer: Scorer | None
    controller: Callable[[CacheSettings], Controller] | None
    sums: bool = False
