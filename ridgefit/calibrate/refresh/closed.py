"""Controllers in closed loop: replayed on whole prompts, compared in pairs over documents."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

import numpy as np

from ridgefit.calibrate.refresh.traces import POLICY, acceptance, continuation, sampling_of, stop_of
from ridgefit.corpus.prompts import Prompt
from ridgefit.maps.refresh import GateRule, LinearRule
from ridgefit.recipe.drafting import CalibrateRefreshSettings
from ridgefit.runtime.draft import CacheSettings, policy_of
from ridgefit.runtime.draft.controllers import Adaptive, Controller, Never, Pace, Periodic, RandomMatched
from ridgefit.runtime.draft.frozen import rule_from
from ridgefit.runtime.speculative import Draft, decode, replay_known
from ridgefit.runtime.speculative.pair import Pair


@dataclass(frozen=True)
class Schedule:
    """A controller that can be sent to another process.

    Attributes:
        kind: never, periodic, random or adaptive.
        every: tokens between periodic refreshes.
        share: probability of a random refresh at a check.
        rule: of an adaptive one.
        pace: its checks and gaps.
    """

    kind: Literal["never", "periodic", "random", "adaptive"]
    every: int = 0
    share: float = 0.0
    rule: GateRule | LinearRule | None = None
    pace: Pace = field(default_factory=Pace)

    def maker(self, seed: int = 0) -> Callable[[], Controller]:
        """Makes a new controller for each request.

        Args:
            seed: of a random one's draws. Prompts want seeds of their own: with one seed all of them would
                refresh at the same places, and at low rates often nowhere.
        """
        if self.kind == "periodic":
            return lambda: Periodic(self.every)
        if self.kind == "random":
            return lambda: RandomMatched(self.share, self.pace.interval, seed)
        if self.rule is not None:
            decide = rule_from(self.rule)
            return lambda: Adaptive(self.pace, decide)
        return Never


@dataclass(frozen=True)
class Outcome:
    """One prompt under one schedule.

    Attributes:
        document: of the prompt.
        al: acceptance length; None without a full round.
        refreshes: re-selections.
        tokens: output tokens.
        equal: the output is the target's own; None where each schedule samples one.
    """

    document: str
    al: float | None
    refreshes: int
    tokens: int
    equal: bool | None


def spacing_at_rate(refreshes: float, tokens: float) -> int:
    """Tokens between periodic refreshes that come to a given number within an output.

    A refresh at the very end serves nobody, so `n` refreshes cut the output into `n + 1` pieces. Below half
    a refresh an output gets none.

    Args:
        refreshes: mean number in an output.
        tokens: mean length of an output.
    """
    return math.ceil(tokens / (round(refreshes) + 1))


@dataclass(frozen=True)
class ClosedJob:
    """One prompt under several schedules."""

    prompt: Prompt
    settings: CalibrateRefreshSettings
    schedules: tuple[Schedule, ...]
    real: bool = False


def run_schedules(pair: Pair, job: ClosedJob) -> list[Outcome]:
    """Outcome of each schedule, replayed, or decoded with the target if `real`."""
    settings = job.settings
    stop = stop_of(pair, settings)
    sampled = settings.temperature > 0
    # In a real loop that samples, every schedule commits a text of its own.
    known = None if job.real and sampled else continuation(pair, job.prompt, settings)
    found = []
    for schedule in job.schedules:
        draft = Draft(
            pair.draft.model,
            policy_of(POLICY),
            CacheSettings(**settings.cache()),
            schedule.maker(int(job.prompt.sha256[:8], 16)),
            settings.drafted,
        )
        if job.real or known is None:
            chooser = sampling_of(job.prompt, settings).chooser("real")
            decoded = decode(
                pair.target.model, draft, job.prompt.tokens, settings.new_tokens, stop=stop, chooser=chooser
            )
        else:
            decoded = replay_known(draft, known, settings.new_tokens, stop=stop)
        found.append(
            Outcome(
                job.prompt.document,
                acceptance(decoded.rounds, settings.drafted),
                decoded.refreshes,
                len(decoded.tokens),
                None if known is None else decoded.tokens == known.output,
            )
        )
    return found


@dataclass(frozen=True)
class Comparison:
    """A schedule against another, over documents.

    Attributes:
        al: its acceptance length, mean over documents.
        other: the other's.
        difference: mean difference.
        low: lower end of the two-sided 95 % interval of the difference.
        high: its upper end.
        bound: one-sided 95 % lower bound of the difference.
        refreshes: per 1,000 output tokens.
        other_refreshes: the other's.
        ratio: the other's refreshes per one of its own; None if it made none.
        ratio_low: lower end of its 95 % interval.
        ratio_high: upper end.
        documents: how many.
    """

    al: float
    other: float
    difference: float
    low: float
    high: float
    bound: float
    refreshes: float
    other_refreshes: float
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    documents: int


def compare(own: Sequence[Outcome], other: Sequence[Outcome], *, resamples: int, seed: int) -> Comparison:
    """Paired percentile bootstrap that resamples documents."""
    left, right = _lengths(own), _lengths(other)
    documents = sorted(left.keys() & right.keys())
    gaps = np.array([left[document] - right[document] for document in documents])
    counts = np.array([[_count(own, d), _count(other, d)] for d in documents], dtype=np.float64)
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, len(documents), (resamples, len(documents)))
    means = gaps[drawn].mean(1)
    sums = counts[drawn].sum(1)
    ratios = np.divide(sums[:, 1], sums[:, 0], out=np.full(resamples, np.inf), where=sums[:, 0] > 0)
    total = counts.sum(0)
    ends = np.quantile(ratios, (0.025, 0.975), method="nearest") if total[0] > 0 else (None, None)
    return Comparison(
        al=fmean(left[d] for d in documents),
        other=fmean(right[d] for d in documents),
        difference=float(gaps.mean()),
        low=float(np.quantile(means, 0.025)),
        high=float(np.quantile(means, 0.975)),
        bound=float(np.quantile(means, 0.05)),
        refreshes=_rate(own),
        other_refreshes=_rate(other),
        ratio=float(total[1] / total[0]) if total[0] > 0 else None,
        ratio_low=_finite(ends[0]),
        ratio_high=_finite(ends[1]),
        documents=len(documents),
    )


def _lengths(outcomes: Sequence[Outcome]) -> Mapping[str, float]:
    found: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.al is not None:
            found[outcome.document].append(outcome.al)
    return {document: fmean(values) for document, values in found.items()}


def _count(outcomes: Sequence[Outcome], document: str) -> int:
    return sum(outcome.refreshes for outcome in outcomes if outcome.document == document)


def _rate(outcomes: Sequence[Outcome]) -> float:
    return 1000 * sum(o.refreshes for o in outcomes) / max(sum(o.tokens for o in outcomes), 1)


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and np.isfinite(value) else None
