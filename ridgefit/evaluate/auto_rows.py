"""Which exact rows pay on this model: every selector against as many random rows (design rule 6).

The paper has no rule for it: attention rows restore retrieval on Llama-3.1-8B and Qwen3.5-9B and lower it on
Qwen3-8B (RidgeFill section 6.5).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from ridgefit.evaluate.result import Difference, EvalResult, MeasureResult, RowsChoice, RowsTrial, TaskResult
from ridgefit.maps.frequencies import FREQUENCIES
from ridgefit.recipe import ArmSettings, EvalSettings
from ridgefit.recipe.rows import RowSettings, row_label, selector_settings

SINKS = 4
"""First rows that nearly every head rests on; what they are worth is measured by default."""
POOL = 31
"""Rows over which attention is pooled in one of the trials: a sentence or two."""
_PAPER_LAYERS_FROM = 4  # the first split above layer 3


@dataclass(frozen=True)
class Trial:
    """A selector and the random rows that are as many."""

    base: ArmSettings
    arm: ArmSettings
    control: ArmSettings


def expanded(settings: EvalSettings, maps: Path | None) -> tuple[EvalSettings, tuple[Trial, ...]]:
    """The settings with the arms that they ask for without naming them, and the trials among these."""
    arms = with_sink_rows(settings.arms) if settings.sink_effect else settings.arms
    tried: tuple[Trial, ...] = ()
    if settings.auto_rows:
        tried = trials(settings, maps, min(task.tail for task in settings.fill_tasks))
    arms = tuple(dict.fromkeys((*arms, *arms_of(tried))))
    return settings.model_copy(update={"arms": arms}), tried


def with_sink_rows(arms: Sequence[ArmSettings]) -> tuple[ArmSettings, ...]:
    """Each plain ridge arm followed by the same with sink rows, unless the arms hold one already."""
    found: list[ArmSettings] = []
    for arm in arms:
        found.append(arm)
        if not _plain(arm) or arm.sink_rows:
            continue
        twins = (other for other in arms if _plain(other) and _place(other) == _place(arm))
        if not any(twin.sink_rows for twin in twins):
            name = None if arm.name is None else f"{arm.name} +{SINKS} sink rows"
            found.append(arm.model_copy(update={"sink_rows": SINKS, "name": name}))
    return tuple(found)


def trials(settings: EvalSettings, maps: Path | None, tail: int) -> tuple[Trial, ...]:
    """Every selector to try on every plain ridge arm, with its control.

    Args:
        settings: of the evaluation.
        maps: beside which a frequency table may lie.
        tail: shortest tail of any task, in which a probe must fit.
    """
    return tuple(
        Trial(base, _with(base, rows), _with(base, control))
        for base in settings.arms
        if _plain(base)
        for rows, control in _candidates(base, settings.auto_share, maps, tail)
    )


def arms_of(tried: Sequence[Trial]) -> tuple[ArmSettings, ...]:
    """The arms of all trials, each once."""
    return tuple(dict.fromkeys(arm for trial in tried for arm in (trial.arm, trial.control)))


def choices(tried: Sequence[Trial], result: EvalResult) -> tuple[RowsChoice, ...]:
    """For each base arm the selector that pays, or None.

    Judged on the first measure of every task. A selector pays if it beats as many random rows on one of
    them, its interval excluding zero, and is not worse than those or than no rows on any, interval excluding
    zero. Of several that pay, the one that gives back most of the fill's loss, on average over tasks; of
    equal ones, the one with the fewest rows.
    """
    return tuple(
        _choice(base, [trial for trial in tried if trial.base == base], result)
        for base in dict.fromkeys(trial.base for trial in tried)
    )


def _choice(base: ArmSettings, tried: Sequence[Trial], result: EvalResult) -> RowsChoice:
    judged = [_judged(trial, result) for trial in tried]
    paying = [(one, trial) for one, trial in zip(judged, tried, strict=True) if one.pays]
    if not paying:
        return RowsChoice(base=base.label, chosen=None, rows=(), trials=tuple(judged))
    best, trial = max(paying, key=lambda pair: (pair[0].gives_back, -pair[0].rows))
    rows = tuple(
        {"select": one.select, **one.model_dump(mode="json", exclude_defaults=True)} for one in trial.arm.rows
    )
    return RowsChoice(base=base.label, chosen=best.arm, rows=rows, trials=tuple(judged))


def _judged(trial: Trial, result: EvalResult) -> RowsTrial:
    measures = [task.measures[0] for task in result.tasks if task.measures]
    against_random = [_difference(m, trial.arm.label, trial.control.label) for m in measures]
    against_base = [_difference(m, trial.arm.label, trial.base.label) for m in measures]
    better = any(_side(m, d) > 0 for m, d in zip(measures, against_random, strict=True))
    worse = any(
        _side(m, d) < 0
        for differences in (against_random, against_base)
        for m, d in zip(measures, differences, strict=True)
    )
    shares = [
        found.share if found.share is not None else 0.0
        for measure in measures
        for found in measure.removed
        if found.arm == trial.arm.label
    ]
    chosen = [task.rows_chosen.get(trial.arm.label, 0.0) for task in result.tasks]
    return RowsTrial(
        arm=trial.arm.label,
        control=trial.control.label,
        selector=row_label(trial.arm.rows),
        rows=fmean(chosen) if chosen else 0.0,
        pays=better and not worse,
        gives_back=fmean(shares) if shares else 0.0,
        tasks=tuple(task.name for task in _measured(result)),
        against_random=tuple(against_random),
        against_base=tuple(against_base),
    )


def _measured(result: EvalResult) -> Iterator[TaskResult]:
    return (task for task in result.tasks if task.measures)


def _difference(measure: MeasureResult, arm: str, other: str) -> Difference:
    return next(c.difference for c in measure.contrasts if (c.arm, c.against) == (arm, other))


def _side(measure: MeasureResult, found: Difference) -> int:
    """1 where the difference is surely good, -1 where it is surely bad, 0 where it may be either."""
    if found.low is None or found.high is None:
        return 0
    sign = 1 if measure.better == "higher" else -1
    if found.low > 0 or found.high < 0:
        return sign if found.low > 0 else -sign
    return 0


def _candidates(
    base: ArmSettings, share: float, maps: Path | None, tail: int
) -> Iterator[tuple[RowSettings, RowSettings]]:
    window = min(256, base.tail or tail)
    random = selector_settings(f"random share={share}")
    below = "/".join(map(str, range(base.split or 0)))
    if base.split is None or base.split >= _PAPER_LAYERS_FROM:
        yield selector_settings(f"attention share={share}"), random
    else:
        yield selector_settings(f"attention share={share} layers={below}"), random
    if base.split is not None:
        yield selector_settings(f"attention share={share} layers={below} pool={POOL}"), random
    yield selector_settings(f"probe share={share} window={window}"), random
    natural = ["digits", "special", "lexical_net"]
    if maps is not None and any((place / FREQUENCIES).is_file() for place in (maps, maps.parent)):
        natural.append("protected")
    for name in natural:
        yield selector_settings(name), selector_settings(f"random like={name}")


def _plain(arm: ArmSettings) -> bool:
    return arm.kind == "ridge" and not (arm.rows or arm.corrections or arm.splice)


def _place(arm: ArmSettings) -> tuple[object, ...]:
    return arm.kind, arm.split, arm.tail, arm.maps


def _with(base: ArmSettings, rows: RowSettings) -> ArmSettings:
    name = None if base.name is None else f"{base.name} + {row_label((rows,))}"
    return base.model_copy(update={"rows": (rows,), "name": name})
