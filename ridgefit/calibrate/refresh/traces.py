"""Traces of a draft: at every check, what it knows, and what a refresh now would change.

The behaviour that is traced refreshes at random gaps, so that fresh and stale states are both met. At each
check the next tokens are replayed twice from the same state, without and with a refresh. At a temperature
above 0 the text is the target's sampled one, and tokens are kept as rejection sampling keeps them on its way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from ridgefit.corpus.prompts import Prompt
from ridgefit.recipe.drafting import CalibrateRefreshSettings
from ridgefit.runtime.draft import CacheSettings, Drafter, policy_of
from ridgefit.runtime.draft.controllers import Never, Read
from ridgefit.runtime.speculative import Known, Sampling, Speculation, known_text
from ridgefit.runtime.speculative.loop import Decoding, Round, Stop
from ridgefit.runtime.speculative.pair import Pair, end_tokens, stop_at
from ridgefit.runtime.speculative.verify import StoredVerifier

POLICY = "rift-dyn"
"""Whose cache is traced: share of newest columns, the rest selected by attention."""
MOST_GAPS = 8


@dataclass(frozen=True)
class Trace:
    """One check.

    Attributes:
        prompt: id of the prompt.
        document: its document.
        committed: output tokens before it.
        signals: in the order of `signals.NAMES`.
        kept: acceptance length over the next tokens without a refresh.
        refreshed: the same after one.
        changed: share of selected columns that the refresh replaces.
    """

    prompt: str
    document: str
    committed: int
    signals: tuple[float, ...]
    kept: float
    refreshed: float
    changed: float

    @property
    def gain(self) -> float:
        """Acceptance length that the refresh adds."""
        return self.refreshed - self.kept


@dataclass(frozen=True)
class TraceJob:
    """One prompt to trace."""

    prompt: Prompt
    settings: CalibrateRefreshSettings
    seed: int


def trace(pair: Pair, job: TraceJob) -> list[Trace]:
    """Every check along one prompt's continuation by the target."""
    settings = job.settings
    known = continuation(pair, job.prompt, settings)
    drafter = Drafter(pair.draft.model, policy_of(POLICY), CacheSettings(**settings.cache()))
    recorder = _Recorder(job, drafter, known, stop_of(pair, settings))
    speculation = Speculation(
        StoredVerifier(known.tokens), drafter, known.drafts(), recorder, drafted=settings.drafted
    )
    recorder.decoding = speculation.start(known.prompt)
    for _ in speculation.rounds(recorder.decoding, settings.new_tokens, recorder.stop):
        pass
    return recorder.traces


def continuation(pair: Pair, prompt: Prompt, settings: CalibrateRefreshSettings) -> Known:
    """The target's own output, which no draft changes: greedy, or sampled with a seed of the prompt."""
    stop, sampling = stop_of(pair, settings), sampling_of(prompt, settings)
    return known_text(
        pair.target.model, prompt.tokens, settings.new_tokens, stop, sampling, beyond=settings.drafted
    )


def sampling_of(prompt: Prompt, settings: CalibrateRefreshSettings) -> Sampling:
    """How a prompt's output is picked."""
    return Sampling(settings.temperature, f"{settings.seed}/{prompt.sha256}")


def stop_of(pair: Pair, settings: CalibrateRefreshSettings) -> Stop:
    """What ends an output."""
    return stop_at(frozenset[int]() if settings.forced else end_tokens(pair.target))


def acceptance(rounds: Sequence[Round], drafted: int) -> float | None:
    """1 + accepted tokens per round that drafted the full number; None without one."""
    whole = [row.accepted for row in rounds if row.drafted == drafted]
    return 1 + fmean(whole) if whole else None


class _Recorder:
    """A controller that refreshes at random gaps, and looks both ways at every check."""

    def __init__(self, job: TraceJob, drafter: Drafter, known: Known, stop: Stop) -> None:
        self.traces: list[Trace] = []
        self.decoding: Decoding | None = None
        self._job = job
        self._drafter = drafter
        self._known = known
        self.stop = stop
        self._draw = np.random.default_rng([job.seed, int(job.prompt.sha256[:12], 16)])
        self._interval = job.settings.interval
        self._next = self._interval
        self._refresh_at = self._gap()

    def due(self, committed: int, read: Read, /) -> bool:
        """Record a check; refresh when the random gap is over."""
        if committed < self._next or self.decoding is None:
            return False
        self._next = (committed // self._interval + 1) * self._interval
        signals = read()
        self._look(committed, signals.values())
        if committed < self._refresh_at:
            return False
        self._refresh_at = committed + self._gap()
        return True

    def _gap(self) -> int:
        return int(self._draw.integers(1, MOST_GAPS + 1)) * self._interval

    def _look(self, committed: int, signals: tuple[float, ...]) -> None:
        here = self._drafter.fork()
        kept = self._ahead()
        self._drafter.restore(here)
        before = len(self._drafter.spent.changed)
        self._drafter.refresh()
        changed = self._drafter.spent.changed[before:]
        refreshed = self._ahead()
        self._drafter.restore(here)
        if kept is not None and refreshed is not None:
            prompt = self._job.prompt
            self.traces.append(
                Trace(
                    prompt.id, prompt.document, committed, signals, kept, refreshed, fmean(changed or [0.0])
                )
            )

    def _ahead(self) -> float | None:
        """Acceptance length over the horizon from now, without any refresh on the way."""
        if self.decoding is None:
            return None
        settings = self._job.settings
        committed = list(self.decoding.committed)
        prompt = self._known.prompt
        state = Decoding(prompt, committed)
        verifier = StoredVerifier(self._known.tokens)
        verifier.prefill(prompt)
        # With sampled text both excursions keep and refuse by the same numbers.
        ahead = Speculation(verifier, self._drafter, self._known.drafts(), Never(), drafted=settings.drafted)
        limit = min(len(state.generated) + settings.horizon, settings.new_tokens)
        for _ in ahead.rounds(state, limit, self.stop):
            pass
        return acceptance(state.rounds, settings.drafted)
