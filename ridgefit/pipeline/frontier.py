"""The frontier of candidates: quality against multiply-accumulates, and the rule that picks one.

The rule behind `--features auto`, in words (`RULE`), is applied to each split by itself:

1. Where fewer than 4 of the probe's prompts are copied by the exact model itself, at least half of their
   repeated tokens, there is nothing to choose by: plain.
2. Where the plain maps copy all but 3 points of what the exact model copies there is nothing to win: plain.
3. A candidate is eligible if it copies at least 3 points more than plain, the 95 % interval of the paired
   difference excluding zero, and its loss on held-out text is not above plain's, the interval of that
   difference excluding zero.
4. Controls are never eligible. No eligible candidate: plain. Otherwise, of those within 5 points of the
   eligible candidate that copies most, the one with the fewest multiply-accumulates; equal ones by the cosine
   of keys.

Loss alone never chooses: measured on SmolLM2, it ranks maps that copy nothing above maps that copy all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from ridgefit.evaluate.intervals import bca
from ridgefit.features import FeatureList
from ridgefit.pipeline.candidates import Solved
from ridgefit.pipeline.probe import COPIED, LOSS, RECALLED, Probe, Probed
from ridgefit.recipe import SolveSettings

FEWEST_PROMPTS = 4
WORTH_HAVING = 0.03
AS_GOOD = 0.05
RULE = (
    "plain, unless the exact model copies at least 4 prompts of the probe (half of their repeated tokens or "
    "more), plain copies less than 97 % of what exact copies, and a candidate copies at least 3 points more "
    "than plain (95 % interval of the paired difference excludes zero) without a loss on held-out text above "
    "plain's (its interval excludes zero); then, of such candidates within 5 points of the best, the one "
    "with the fewest multiply-accumulates"
)


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Gain(_Frozen):
    """Paired difference of a candidate to the plain maps, and its 95 % interval; None for a single sample."""

    mean: float
    low: float | None
    high: float | None
    n: int

    @property
    def above_zero(self) -> bool:
        """Whether the interval lies above zero."""
        return self.low is not None and self.low > 0


class CandidateScore(_Frozen):
    """One candidate of a split.

    Attributes:
        name: label, and folder below `candidates/`.
        features: what its maps read.
        rank: of the bottleneck, None without one.
        metric: what the bottleneck was made for, None without one.
        energy: share of that response which the bottleneck keeps.
        wide_layers: layers that read more than the state.
        alphas: penalty of every late layer.
        keys: mean over late layers of the cosine of written keys, held-out rows.
        values: the same of values.
        copied: share of the tokens which the exact model copies that the filled model copies; None where the
            exact model copies too little.
        recalled: share of all repeated tokens.
        loss: nats per novel token on held-out windows, minus the exact model's; None without such windows.
        copied_gain: `copied` against the plain maps.
        loss_gain: `loss` against the plain maps; below zero is better.
        macs: of its maps per filled row.
        extra: that over the plain maps', minus 1.
        frontier: no other candidate copies as much for fewer multiply-accumulates.
    """

    name: str
    features: tuple[str, ...]
    rank: int | None
    metric: str | None
    energy: float | None
    wide_layers: tuple[int, ...]
    alphas: tuple[float, ...]
    keys: float
    values: float
    copied: float | None
    recalled: float | None
    loss: float | None
    copied_gain: Gain | None
    loss_gain: Gain | None
    macs: int
    extra: float
    frontier: bool = False


class Frontier(_Frozen):
    """All candidates of a split, the plain maps first, and what was chosen.

    Attributes:
        candidates: with their scores.
        chosen: name of the candidate whose maps were written.
        reason: why.
        rule: what "auto" means; None where the maps were asked for by name.
        exact_recalled: share of repeated tokens that the exact model predicts.
        prompts: how many prompts the exact model copies, so that they count for `copied`.
        probe: prompts, windows, lengths, sink rows and seed behind the scores.
    """

    candidates: tuple[CandidateScore, ...]
    chosen: str
    reason: str
    rule: str | None
    exact_recalled: float
    prompts: int
    probe: dict[str, int | str]

    def of(self, name: str) -> CandidateScore:
        """A candidate by name."""
        return next(candidate for candidate in self.candidates if candidate.name == name)


def frontier(
    split: int,
    found: Sequence[tuple[Solved, Probed]],
    probe: Probe,
    settings: SolveSettings,
    wanted: str | None,
) -> Frontier:
    """Put candidates side by side and choose.

    Args:
        split: first late layer.
        found: the plain maps first.
        probe: what they were probed with.
        settings: of the probe.
        wanted: the candidate to write whatever its scores; None for the rule.
    """
    plain, base = found[0]
    scores = [_score(split, solved, probed, plain, base, probe) for solved, probed in found]
    scores = [score.model_copy(update={"frontier": _undominated(score, scores)}) for score in scores]
    prompts = len(probe.exact.scores[COPIED])
    usable = [score for score in scores if not FeatureList(score.features).controls]
    chosen, reason = (wanted, "asked for") if wanted is not None else decide(usable, prompts)
    return Frontier(
        candidates=tuple(scores),
        chosen=chosen,
        reason=reason,
        rule=None if wanted is not None else RULE,
        exact_recalled=probe.exact.mean(RECALLED) or 0.0,
        prompts=prompts,
        probe={
            "samples": settings.probe_samples,
            "strings": settings.probe_strings,
            "windows": probe.windows,
            "prompt": settings.probe_prompt,
            "tail": settings.probe_tail,
            "sink_rows": settings.probe_sink_rows,
            "seed": settings.seed,
        },
    )


def decide(scores: Sequence[CandidateScore], prompts: int) -> tuple[str, str]:
    """Name of the candidate that the rule picks, and the reason.

    Args:
        scores: the plain maps first.
        prompts: how many prompts of the probe the exact model copies.
    """
    plain = scores[0]
    if plain.copied is None or prompts < FEWEST_PROMPTS:
        return (
            plain.name,
            f"the exact model itself copies {prompts} prompts of the probe, too few to choose by",
        )
    if plain.copied >= 1 - WORTH_HAVING:
        return plain.name, f"plain maps copy {plain.copied:.0%} of what the exact model copies"
    better = [score for score in scores[1:] if _copies_more(score)]
    sound = [score for score in better if score.loss_gain is None or not score.loss_gain.above_zero]
    if not sound:
        if better:
            return (
                plain.name,
                f"the loss of each of {len(better)} that copy more is higher, beyond the interval",
            )
        return plain.name, "none copies 3 points more than plain maps with an interval that excludes zero"
    best = max(score.copied or 0.0 for score in sound)
    near = [score for score in sound if (score.copied or 0.0) >= best - AS_GOOD]
    pick = min(near, key=lambda score: (score.macs, -score.keys))
    return pick.name, (
        f"copies {pick.copied:.0%} where plain copies {plain.copied:.0%} and the best candidate {best:.0%}, "
        f"for {pick.extra:.1%} more multiply-accumulates"
    )


def _copies_more(score: CandidateScore) -> bool:
    """Among many candidates some beat plain by a point by chance, so the interval alone is not enough."""
    gain = score.copied_gain
    return gain is not None and gain.above_zero and gain.mean >= WORTH_HAVING


def _score(
    split: int, solved: Solved, probed: Probed, plain: Solved, base: Probed, probe: Probe
) -> CandidateScore:
    settings = solved.settings
    loss = probed.gains(LOSS, probe.exact)
    return CandidateScore(
        name=settings.label,
        features=settings.features,
        rank=settings.rank,
        metric=None if settings.rank is None else settings.metric,
        energy=solved.energy,
        wide_layers=() if settings.plain else tuple(split + at for at in solved.wide),
        alphas=solved.choice.alphas,
        keys=_mean(solved.cosines.keys),
        values=_mean(solved.cosines.values),
        copied=probed.mean(COPIED),
        recalled=probed.mean(RECALLED),
        loss=_mean(tuple(loss.values())) if loss else None,
        copied_gain=None if solved is plain else _gain(probed, base, COPIED, probe),
        loss_gain=None if solved is plain else _gain(probed, base, LOSS, probe),
        macs=solved.macs,
        extra=solved.macs / plain.macs - 1,
    )


def _gain(probed: Probed, base: Probed, measure: str, probe: Probe) -> Gain | None:
    gains = probed.gains(measure, base)
    if not gains:
        return None
    interval = bca(list(gains.values()), [probe.groups[sample] for sample in gains])
    return Gain(mean=interval.mean, low=interval.low, high=interval.high, n=interval.n)


def _undominated(score: CandidateScore, scores: Sequence[CandidateScore]) -> bool:
    def worth(other: CandidateScore) -> tuple[float, float]:
        return other.copied if other.copied is not None else -1.0, -other.macs

    mine = worth(score)
    return not any(
        theirs != mine and theirs[0] >= mine[0] and theirs[1] >= mine[1] for theirs in map(worth, scores)
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
