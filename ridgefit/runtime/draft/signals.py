"""What a draft knows by itself about how well it is doing, per interval of committed tokens (RIFT 4.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

EMA = 0.3  # weight of the newest round in the running mean


@dataclass(frozen=True)
class Signals:
    """One interval; no field needs an extra forward pass.

    Attributes:
        acc_mean: drafted tokens accepted per round.
        acc_ema: the same as a running mean over all rounds.
        acc_first: share of rounds whose first drafted token was accepted.
        entropy: mean entropy in nats of the draft's distributions at temperature 1.
        top1: mean probability of the draft's most likely token.
        drift: 1 - cosine between the mean un-rotated query now and at the last selection, averaged over
            heads and layers.
        since: committed tokens since the last selection.
        progress: committed tokens as a share of the prompt's.
    """

    acc_mean: float
    acc_ema: float
    acc_first: float
    entropy: float
    top1: float
    drift: float
    since: float
    progress: float

    def values(self) -> tuple[float, ...]:
        """In the order of `NAMES`."""
        return tuple(float(value) for value in astuple(self))


NAMES: tuple[str, ...] = tuple(field.name for field in fields(Signals))


class Interval:
    """Adds up rounds until it is read."""

    def __init__(self) -> None:
        self._ema: float | None = None
        self._accepted: list[int] = []
        self._entropies: list[float] = []
        self._top1: list[float] = []

    def add(self, accepted: int, entropies: Sequence[float], top1: Sequence[float]) -> None:
        """One round: drafted tokens accepted, and the draft's certainty about each of them."""
        self._accepted.append(accepted)
        self._entropies += entropies
        self._top1 += top1
        self._ema = accepted if self._ema is None else (1 - EMA) * self._ema + EMA * accepted

    def read(self, *, drift: float, since: int, progress: float) -> Signals:
        """The interval's signals; the next one begins."""
        rounds = self._accepted or [0]
        found = Signals(
            acc_mean=_mean(rounds),
            acc_ema=float(self._ema or 0.0),
            acc_first=_mean([float(count > 0) for count in rounds]),
            entropy=_mean(self._entropies),
            top1=_mean(self._top1),
            drift=drift,
            since=float(since),
            progress=progress,
        )
        self._clear()
        return found

    def fork(self) -> tuple[float | None, list[int], list[float], list[float]]:
        """The present, to come back to."""
        return self._ema, list(self._accepted), list(self._entropies), list(self._top1)

    def restore(self, state: tuple[float | None, list[int], list[float], list[float]]) -> None:
        """Back to a fork."""
        self._ema, self._accepted, self._entropies, self._top1 = (
            state[0],
            list(state[1]),
            list(state[2]),
            list(state[3]),
        )

    def _clear(self) -> None:
        self._accepted, self._entropies, self._top1 = [], [], []


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
