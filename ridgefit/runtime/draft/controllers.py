"""When a compressed draft cache is selected again: one object per request, because they keep state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from ridgefit.runtime.draft.signals import NAMES, Signals

Read = Callable[[], Signals]
"""Signals since the last reading; costs one drift measurement."""


class Controller(Protocol):
    """Decides after a round whether to refresh."""

    def due(self, committed: int, read: Read, /) -> bool:
        """Whether to refresh after `committed` generated tokens."""
        ...


class Never:
    """RIFT-stat, SnapKV: the selection made after the prefill stays."""

    def due(self, committed: int, read: Read, /) -> bool:
        """No."""
        del committed, read
        return False


class EveryRound:
    """Upper control (oracle); H2O, which evicts as it goes."""

    def due(self, committed: int, read: Read, /) -> bool:
        """Yes."""
        del committed, read
        return True


class Periodic:
    """RIFT-dyn: every `every` committed tokens (section 4.2)."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._next = every

    def due(self, committed: int, read: Read, /) -> bool:
        """At the first round end at or past each multiple of the interval."""
        del read
        if committed < self._next:
            return False
        self._next = (committed // self._every + 1) * self._every
        return True


@dataclass(frozen=True)
class Pace:
    """When an adaptive controller may and must refresh, in committed tokens.

    Attributes:
        interval: tokens between checks, I.
        min_gap: no refresh sooner after the last one.
        max_gap: always a refresh after so many; None for never.
    """

    interval: int = 32
    min_gap: int = 32
    max_gap: int | None = None


class Adaptive:
    """RIFT-ada: a rule on draft-side signals at fixed checks (section 4.3).

    Args:
        pace: checks and gaps.
        rule: signals -> whether they ask for a refresh.
    """

    def __init__(self, pace: Pace, rule: Callable[[Signals], bool]) -> None:
        self._pace = pace
        self._rule = rule
        self._next = pace.interval
        self._last = 0

    def due(self, committed: int, read: Read, /) -> bool:
        """Look at the signals of the interval that has ended, if one has."""
        if committed < self._next:
            return False
        self._next = (committed // self._pace.interval + 1) * self._pace.interval
        signals = read()
        gap = committed - self._last
        if gap < self._pace.min_gap:
            return False
        late = self._pace.max_gap is not None and gap >= self._pace.max_gap
        if late or self._rule(signals):
            self._last = committed
            return True
        return False


@dataclass(frozen=True)
class Gate:
    """Thresholds on signals, combined by any or all; `below` asks when a signal falls under its threshold.

    Attributes:
        below: signal -> threshold.
        above: signal -> threshold.
        combine: whether one crossing is enough.
    """

    below: Mapping[str, float]
    above: Mapping[str, float]
    combine: Literal["any", "all"] = "any"

    def __call__(self, signals: Signals) -> bool:
        """Whether the signals ask for a refresh."""
        crossed = [getattr(signals, name) < limit for name, limit in self.below.items()]
        crossed += [getattr(signals, name) > limit for name, limit in self.above.items()]
        return any(crossed) if self.combine == "any" else bool(crossed) and all(crossed)


@dataclass(frozen=True)
class Linear:
    """A weighted score of standardised signals: `w . (x - mean) / spread + bias > threshold`.

    Attributes:
        weights: one per signal, in the order of `signals.NAMES`.
        mean: the fit's mean of each signal.
        spread: the fit's standard deviation of each signal.
        bias: added to the score.
        threshold: above it a refresh is asked for.
    """

    weights: Sequence[float]
    mean: Sequence[float]
    spread: Sequence[float]
    bias: float
    threshold: float

    def __call__(self, signals: Signals) -> bool:
        """Whether the signals ask for a refresh."""
        return self.score(signals.values()) > self.threshold

    def score(self, values: Sequence[float]) -> float:
        """The score of signals in the order of `signals.NAMES`."""
        rows = zip(values, self.weights, self.mean, self.spread, strict=True)
        return self.bias + sum(w * (x - mean) / spread for x, w, mean, spread in rows)


class RandomMatched:
    """As many refreshes as another controller on average, at random checks: what an adaptive one must beat.

    Args:
        share: probability of a refresh at a check.
        interval: tokens between checks.
        seed: seed of the draws.
    """

    def __init__(self, share: float, interval: int = 32, seed: int = 0) -> None:
        self._share = share
        self._interval = interval
        self._next = interval
        self._generator = torch.Generator().manual_seed(seed)

    def due(self, committed: int, read: Read, /) -> bool:
        """A coin at every check."""
        del read
        if committed < self._next:
            return False
        self._next = (committed // self._interval + 1) * self._interval
        return float(torch.rand(1, generator=self._generator)) < self._share


def require_names(names: Sequence[str]) -> None:
    """Refuse signals that are not known.

    Raises:
        ValueError: naming the first of them.
    """
    for name in names:
        if name not in NAMES:
            raise ValueError(f"there is no signal {name!r}; known are {', '.join(NAMES)}")
