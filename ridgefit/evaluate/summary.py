"""From the lines of a results file to means, paired differences and their intervals (paper section 3.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ridgefit.errors import CheckFailed
from ridgefit.evaluate.contrasts import base_of, contrasted
from ridgefit.evaluate.intervals import Interval, bca, binomial_floor, wilson
from ridgefit.evaluate.ratios import bca_ratio
from ridgefit.evaluate.result import (
    ArmScore,
    Contrast,
    Difference,
    MeasureResult,
    Removed,
    Skipped,
    TaskResult,
)
from ridgefit.evaluate.samples import Measure, Sample
from ridgefit.files import canonical_json, sha256_bytes

if TYPE_CHECKING:
    from ridgefit.evaluate.arms import Arm

WEAK = 0.5
"""Share of needles below which the exact model is no ruler."""
FEW = 10
"""Units below which a bootstrap interval holds the truth less often than it says."""


@dataclass(frozen=True)
class TaskRun:
    """One task of an evaluation with its samples.

    Attributes:
        name: unique label.
        sha256: hash of the settings.
        settings: as in the recipe, JSON.
        measures: what its scores mean.
        samples: in order, after `fraction`.
        skipped: sample label and reason.
        macs: of an arm's prefill, by label, the exact one being 1.
    """

    name: str
    sha256: str
    settings: Mapping[str, Any]
    measures: tuple[Measure, ...]
    samples: tuple[Sample, ...]
    skipped: tuple[tuple[str, str], ...]
    macs: Mapping[str, float] = field(default_factory=dict)


def summarise_task(
    run: TaskRun,
    arms: Sequence[Arm],
    records: Mapping[tuple[str, str], Mapping[str, Any]],
    *,
    resamples: int,
    seed: int,
) -> TaskResult:
    """Means and paired differences of one task.

    Scores and differences are averaged within each unit first, and it is units that are resampled: the
    samples of one unit share its text, so counting each would make intervals too narrow.

    Args:
        run: the task.
        arms: exact first.
        records: (sample id, arm label) -> line of the results file; complete.
        resamples: bootstrap resamples.
        seed: bootstrap seed, the same for every interval.

    Raises:
        CheckFailed: a sample's arms were not run in one process.
    """
    for sample in run.samples:
        if len({records[sample.id, arm.label]["session"] for arm in arms}) != 1:
            raise CheckFailed(f"the arms of {sample.id} in {run.name} were not run in one process")
    counts: Counter[str] = Counter()
    for sample in run.samples:
        counts.update(records[sample.id, arms[0].label].get("counts", {}))
    table = _Table(run, records, resamples, seed)
    return TaskResult(
        name=run.name,
        task_sha256=run.sha256,
        prompts_sha256=prompts_sha256(run.samples),
        settings=dict(run.settings),
        samples=len(run.samples),
        groups=dict(sorted(Counter({s.unit: s.group for s in run.samples}.values()).items())),
        counts=dict(sorted(counts.items())),
        skipped=tuple(Skipped(sample=label, reason=reason) for label, reason in run.skipped),
        rows_chosen=table.rows_chosen(arms),
        measures=tuple(
            MeasureResult(
                name=measure.name,
                title=measure.title,
                unit=measure.unit,
                better=measure.better,
                arms=tuple(table.arm_score(measure, arm, arms[0]) for arm in arms),
                contrasts=tuple(table.contrast(measure, arm, other) for arm, other in contrasted(arms)),
                removed=tuple(
                    table.removed(measure, arm, base, arms[0])
                    for arm in arms
                    if (base := base_of(arm, arms)) is not None
                ),
            )
            for measure in run.measures
            if table.values(measure, arms[0])
        ),
        macs={label: round(share, 6) for label, share in run.macs.items()},
    )


def warnings_of(results: Sequence[TaskResult], exact: str) -> Iterator[str]:
    """Sentences that a reader of the tables must see."""
    for task in results:
        strict = task.measure("strict")
        score = strict.arm(exact) if strict else None
        if score is not None and score.mean < WEAK:
            yield (
                f"{task.name}: the exact model finds only {100 * score.mean:.0f} % of the needles, "
                "so retrieval on this task says little about any arm."
            )
        for label, rows in task.rows_chosen.items():
            if rows == 0:
                yield f"{task.name}: the selectors of '{label}' chose no row, so it is the fill without them."
        if task.skipped:
            yield f"{task.name}: {len(task.skipped)} documents were too short and are left out."
        rough = "intervals from so few are narrower than they should be."
        if task.units < FEW:
            yield f"{task.name}: {task.units} {task.counted}s only; {rough}"
        for measure in task.measures:
            n = measure.arms[0].n
            if n < min(FEW, task.units):
                yield f"{task.name}: {measure.title} rests on {n} of {task.units} {task.counted}s; {rough}"


def prompts_sha256(samples: Sequence[Sample]) -> str:
    """One hash over every sample's id, prompt and target, in order."""
    return sha256_bytes(canonical_json([[s.id, s.prompt_sha256, s.target_sha256] for s in samples]))


class _Table:
    """Scores of one task, by measure and arm."""

    def __init__(
        self, run: TaskRun, records: Mapping[tuple[str, str], Mapping[str, Any]], resamples: int, seed: int
    ) -> None:
        self._run = run
        self._records = records
        self._resamples = resamples
        self._seed = seed

    def scores(self, measure: Measure, arm: Arm) -> dict[str, float]:
        """Sample id -> score, where the sample has one."""
        found = {}
        for sample in self._run.samples:
            score = self._records[sample.id, arm.label]["scores"][measure.name]
            if score is not None:
                found[sample.id] = float(score)
        return found

    def values(self, measure: Measure, arm: Arm) -> dict[str, float]:
        """Unit -> mean score of its samples, where one of them has one."""
        return self._by_unit(self.scores(measure, arm))

    def arm_score(self, measure: Measure, arm: Arm, exact: Arm) -> ArmScore:
        values = self.values(measure, arm)
        n = len(values)
        total = sum(values.values())
        wide = wilson(total, n) if measure.binary else None
        if arm is exact:
            return ArmScore(arm=arm.label, n=n, mean=total / n, wilson=wide)
        interval = self._interval(measure, arm, exact)
        bound, floor = _bound(measure, interval)
        return ArmScore(
            arm=arm.label,
            n=n,
            mean=total / n,
            wilson=wide,
            difference=_difference(interval),
            floor=floor,
            bound=bound,
        )

    def contrast(self, measure: Measure, arm: Arm, other: Arm) -> Contrast:
        interval = self._interval(measure, arm, other)
        return Contrast(arm=arm.label, against=other.label, difference=_difference(interval))

    def removed(self, measure: Measure, arm: Arm, base: Arm, exact: Arm) -> Removed:
        """Share of the base arm's loss to exact that `arm` gives back."""
        own, plain, true = (self.scores(measure, one) for one in (arm, base, exact))
        gained = self._by_unit({name: score - own[name] for name, score in plain.items()})
        lost = self._by_unit({name: score - true[name] for name, score in plain.items()})
        found = bca_ratio(
            list(gained.values()),
            list(lost.values()),
            self._groups(lost),
            resamples=self._resamples,
            seed=self._seed,
            positive=measure.better == "lower",
        )
        return Removed(
            arm=arm.label,
            against=base.label,
            share=found.ratio,
            low=found.low,
            high=found.high,
            n=found.n,
        )

    def rows_chosen(self, arms: Sequence[Arm]) -> dict[str, float]:
        """Mean rows that selectors chose, by arm."""
        return {
            arm.label: fmean(
                self._records[sample.id, arm.label].get("rows_chosen", 0.0) for sample in self._run.samples
            )
            for arm in arms
            if arm.selectors and self._run.samples
        }

    def _groups(self, units: Mapping[str, float]) -> list[str]:
        groups = {sample.unit: sample.group for sample in self._run.samples}
        return [groups[unit] for unit in units]

    def _interval(self, measure: Measure, arm: Arm, other: Arm) -> Interval:
        left, right = self.scores(measure, arm), self.scores(measure, other)
        differences = self._by_unit({name: score - right[name] for name, score in left.items()})
        return bca(
            list(differences.values()),
            self._groups(differences),
            resamples=self._resamples,
            seed=self._seed,
        )

    def _by_unit(self, found: Mapping[str, float]) -> dict[str, float]:
        """Unit -> mean over those of its samples that are in `found`, units in the order of samples."""
        members: dict[str, list[float]] = {}
        for sample in self._run.samples:
            if sample.id in found:
                members.setdefault(sample.unit, []).append(found[sample.id])
        return {unit: fmean(values) for unit, values in members.items()}


def _bound(measure: Measure, interval: Interval) -> tuple[float | None, float | None]:
    """One-sided bound on the harmful side, and the binomial floor where it has a say.

    Where every sample gives the same difference the bootstrap has no width at all, which proves nothing:
    a share then has the floor, and a loss has no bound.
    """
    bound = interval.lower_bound if measure.better == "higher" else interval.upper_bound
    equal = interval.n > 1 and interval.low == interval.high
    if measure.unit == "share" and (measure.binary or equal):
        floor = binomial_floor(interval.n)
        return (None if bound is None else min(bound, -floor)), floor
    return (None if equal else bound), None


def _difference(interval: Interval) -> Difference:
    return Difference(mean=interval.mean, low=interval.low, high=interval.high, n=interval.n)
