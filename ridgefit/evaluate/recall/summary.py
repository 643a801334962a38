"""From scores by sample and arm to intervals, costs and gates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from ridgefit.evaluate.intervals import bca, wilson
from ridgefit.evaluate.recall.arms import RecallArm
from ridgefit.evaluate.recall.result import ArmResult, Gate, Interval, LayerCost, RecallResult
from ridgefit.evaluate.recall.samples import RecallSample
from ridgefit.evaluate.recall.tasks import CONTINUATION, NEEDLE
from ridgefit.recipe import RecallEvalSettings
from ridgefit.runtime.recall import LayerReport

Records = Mapping[tuple[str, str, str], Mapping[str, Any]]
"""(task, sample, arm) -> what was scored."""
SAME = 1e-3
"""Nats per token by which an arm that keeps every row may differ from dense."""
RETRIEVES = 0.9
"""Share of needles that the dense model must find for the others to be compared with it."""


def summarised(
    identity: Mapping[str, Any],
    arms: Sequence[RecallArm],
    samples: Mapping[str, Sequence[RecallSample]],
    records: Records,
    settings: RecallEvalSettings,
) -> RecallResult:
    """Tables and gates of an evaluation."""
    table = _Table(samples, records, settings)
    roles = [("dense", "dense", 1.0), *((arm.label, arm.role, arm.ratio) for arm in arms)]
    results = tuple(
        ArmResult(
            arm=label,
            role=role,
            ratio=ratio,
            intact=table.share(label, lambda rise, _right: rise < settings.intact),
            retrieved=table.share(label, lambda _rise, right: right),
            loss=table.loss(label),
            mass=table.mass(label),
            layers=table.costs(label),
        )
        for label, role, ratio in roles
    )
    return RecallResult(
        identity=dict(identity),
        gates=tuple(_gates(arms, table, results)),
        dense_loss=table.dense_loss(),
        arms=results,
    )


def _gates(arms: Sequence[RecallArm], table: _Table, results: Sequence[ArmResult]) -> Iterator[Gate]:
    found = {result.role: result for result in results}
    for arm in arms:
        if arm.role == "identity":
            worst = table.worst_rise(arm.label)
            yield Gate(
                name="every row kept is dense",
                passed=worst <= SAME,
                detail=f"largest difference {worst:.1e} nats per token, at most {SAME:g}",
            )
    if found["dense"].retrieved is not None:
        share = found["dense"].retrieved.mean
        yield Gate(
            name="dense finds its needles",
            passed=share >= RETRIEVES,
            detail=f"{100 * share:.0f} %, at least {100 * RETRIEVES:.0f} %",
        )
        floor = found["floor"].intact
        share = 1.0 if floor is None else floor.mean
        yield Gate(
            name="sinks alone find none",
            passed=share == 0.0,
            detail=f"{100 * share:.0f} % intact without any other row of the prefix",
        )
    yield Gate(
        name="every arm read every layer",
        passed=True,
        detail="checked on each sample as it was scored, a miss stops the evaluation",
    )


class _Table:
    """Scores by task, sample and arm."""

    def __init__(
        self, samples: Mapping[str, Sequence[RecallSample]], records: Records, settings: RecallEvalSettings
    ) -> None:
        self._samples = samples
        self._records = records
        self._settings = settings

    def share(self, label: str, counts: Any) -> Interval | None:
        """Share of needle samples for which `counts(rise, right)` holds."""
        outcomes = [
            bool(counts(self._rise(NEEDLE, sample, label), self._record(NEEDLE, sample, label)["right"]))
            for sample in self._samples[NEEDLE]
        ]
        if not outcomes:
            return None
        low, high = wilson(sum(outcomes), len(outcomes))
        return Interval(mean=fmean(outcomes), low=low, high=high, n=len(outcomes))

    def loss(self, label: str) -> Interval | None:
        """Rise of the continuation's loss over dense, nats per token."""
        return self._mean([self._per_token(CONTINUATION, s, label) for s in self._samples[CONTINUATION]])

    def mass(self, label: str) -> Interval | None:
        """Retained attention."""
        return self._mean([self._record(CONTINUATION, s, label)["mass"] for s in self._samples[CONTINUATION]])

    def dense_loss(self) -> float | None:
        """The dense model's continuation loss, nats per token."""
        losses = [
            self._record(CONTINUATION, s, "dense")["nll"] / s.scored for s in self._samples[CONTINUATION]
        ]
        return fmean(losses) if losses else None

    def worst_rise(self, label: str) -> float:
        """Largest absolute difference from dense on any sample, nats per token."""
        return max(
            abs(self._per_token(task, sample, label))
            for task, found in self._samples.items()
            for sample in found
        )

    def costs(self, label: str) -> dict[int, LayerCost]:
        """What the arm read, by layer, over needle prompts or else documents."""
        task = NEEDLE if self._samples[NEEDLE] else CONTINUATION
        bodies = [self._record(task, sample, label)["layers"] for sample in self._samples[task]]
        return {
            int(index): _cost([body[index] for body in bodies]) for index in (bodies[0] if bodies else {})
        }

    def _mean(self, values: list[float]) -> Interval | None:
        if not values:
            return None
        found = bca(values, seed=self._settings.seed)
        return Interval(mean=found.mean, low=found.low, high=found.high, n=found.n)

    def _rise(self, task: str, sample: RecallSample, label: str) -> float:
        difference: float = (
            self._record(task, sample, label)["nll"] - self._record(task, sample, "dense")["nll"]
        )
        return difference

    def _per_token(self, task: str, sample: RecallSample, label: str) -> float:
        return self._rise(task, sample, label) / sample.scored

    def _record(self, task: str, sample: RecallSample, label: str) -> Mapping[str, Any]:
        return self._records[task, sample.id, label]


def _cost(counts: Sequence[Mapping[str, Any]]) -> LayerCost:
    """One layer's counts over all samples."""
    summed = LayerReport(**counts[-1])
    sums = ("queries", "parted", "attended", "scanned", "bounds", "seen", "fired", "overflowed")
    for name in sums:
        setattr(summed, name, sum(count[name] for count in counts))
    summed.fetched = [rows for count in counts for rows in count["fetched"]]
    steps = max(summed.parted, 1)
    return LayerCost(
        kept=summed.kept,
        archived=summed.archived,
        dims_per_row=summed.dims_per_row,
        fetched=sum(summed.fetched) / steps,
        p50=summed.quantile(0.5),
        p90=summed.quantile(0.9),
        p99=summed.quantile(0.99),
        fire_rate=summed.fired / steps,
        overflow_rate=summed.overflowed / steps,
        z=summed.z,
        gate=summed.gate,
        hard=summed.hard,
    )
