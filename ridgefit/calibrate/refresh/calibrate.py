"""Collect, fit, select in closed loop, freeze, test once (RIFT section 4.3; splits by document)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ridgefit.calibrate.refresh.closed import (
    ClosedJob,
    Comparison,
    Outcome,
    Schedule,
    compare,
    run_schedules,
    spacing_at_rate,
)
from ridgefit.calibrate.refresh.rules import Candidate, candidates
from ridgefit.calibrate.refresh.traces import Trace, TraceJob, trace
from ridgefit.corpus import read_documents
from ridgefit.corpus.prompts import Prompt, cut_prompts, documents_of, split_documents
from ridgefit.errors import BadInput
from ridgefit.files import require_unused
from ridgefit.maps.refresh import NoRule, RefreshController, save_controller
from ridgefit.recipe import require_used
from ridgefit.recipe.drafting import CalibrateRefreshSettings
from ridgefit.runtime.draft import CacheSettings
from ridgefit.runtime.draft.controllers import Pace
from ridgefit.runtime.speculative import require_whole_round
from ridgefit.runtime.speculative.pair import Pair, PairPool, load_pair, require_positions
from ridgefit.versions import library_versions, machine

SWEEP = (0.5, 2)
"""Intervals of the periodic frontier that a controller is drawn against, times the policy's own."""
FEWEST = 3
_TEXTS = {"prompt", "new_tokens", "forced", "instruction"}
Progress = Callable[[int, int, str], None]


def calibrate_refresh(
    target: dict[str, Any],
    settings: CalibrateRefreshSettings,
    out: Path,
    *,
    progress: Progress | None = None,
) -> RefreshController:
    """A frozen controller in `out/controller.json`, tested once on documents of its own.

    The rule is `none`, with the periodic interval, where no candidate keeps the periodic policy's acceptance
    length on the selection documents with fewer refreshes.

    Args:
        target: keyword arguments of `load_decoder`.
        settings: draft, prompts, cache sizes, splits.
        out: a new folder.
        progress: called after each prompt.

    Raises:
        BadInput: settings that would do nothing, too few documents, models that do not fit, a folder in use.
    """
    require_used(settings)
    require_unused(out)
    CacheSettings(**settings.cache())
    require_whole_round(settings.drafted, settings.new_tokens)
    read_documents(settings.data)
    pair = load_pair(target, settings.draft)
    fit, select, test = _splits(pair, settings)
    work = _Work(PairPool(target, settings.draft, pair, settings.workers), settings, progress)
    traces = work.traces(fit)
    if not traces:
        raise BadInput(
            f"the outputs are too short for a check every {settings.interval} tokens",
            "raise --new-tokens or lower --interval",
        )
    tried = candidates(
        traces, interval=settings.interval, every=settings.every, kept=settings.candidates_kept
    )
    periodic = Schedule("periodic", every=settings.every)
    schedules = [periodic, *(_schedule(candidate, settings) for candidate in tried)]
    outcomes = work.outcomes(select, schedules, "select")
    judged = [
        compare(own, outcomes[0], resamples=settings.resamples, seed=settings.seed) for own in outcomes[1:]
    ]
    chosen = choose(tried, judged, settings.tolerance)
    scores: dict[str, Any] = {
        "traces": _about(traces),
        "tried": len(tried),
        "tolerance": settings.tolerance,
        "passed": sum(_passes(one, settings.tolerance) for one in judged),
        "machine": machine(),
    }
    rule = NoRule(every=settings.every) if chosen is None else tried[chosen].rule
    frozen = RefreshController(
        rule=rule,
        interval=settings.interval,
        min_gap=settings.interval if chosen is None else tried[chosen].min_gap,
        max_gap=None if chosen is None else tried[chosen].max_gap,
        horizon=settings.horizon,
        cache=settings.cache(),
        drafted=settings.drafted,
        temperature=settings.temperature,
        target=pair.target.identity(),
        draft=pair.draft.identity(),
        fit=documents_of(fit),
        select=documents_of(select),
        test=documents_of(test),
        texts=settings.model_dump(mode="json", include=_TEXTS),
        scores=scores,
        versions=library_versions(),
    )
    # Frozen before the test split is read by anything.
    save_controller(frozen, out)
    if chosen is not None:
        scores["selected"] = asdict(judged[chosen])
    found = work.test(test, None if chosen is None else _schedule(tried[chosen], settings))
    frozen = frozen.model_copy(
        update={"scores": scores | {"test": found, "frozen_sha256": frozen.frozen_sha256}}
    )
    save_controller(frozen, out)
    return frozen


def choose(tried: Sequence[Candidate], judged: Sequence[Comparison], tolerance: float) -> int | None:
    """The passing candidate with fewest refreshes, then fewest signals; None if none passes.

    It passes if the one-sided 95 % bound of its loss against the periodic policy stays within the tolerance,
    and it refreshes less.
    """
    passing = [
        (one.refreshes, tried[place].signals, place)
        for place, one in enumerate(judged)
        if _passes(one, tolerance) and one.refreshes < one.other_refreshes
    ]
    return min(passing)[2] if passing else None


def _passes(one: Comparison, tolerance: float) -> bool:
    return one.bound >= -tolerance * one.other


def _schedule(candidate: Candidate, settings: CalibrateRefreshSettings) -> Schedule:
    pace = Pace(settings.interval, candidate.min_gap, candidate.max_gap)
    return Schedule("adaptive", rule=candidate.rule, pace=pace)


def _splits(pair: Pair, settings: CalibrateRefreshSettings) -> list[list[Prompt]]:
    """Prompts to fit, to select, to test; they share no document."""
    prompts = cut_prompts(
        pair.target.tokenizer,
        settings.data,
        lengths=settings.prompt,
        per_document=settings.per_document,
        stride=max(settings.prompt) + settings.new_tokens,
        instruction=settings.instruction,
        text_field=settings.text_field,
    )
    if settings.fraction < 1:
        documents = documents_of(prompts)
        kept = set(documents[: max(FEWEST, round(settings.fraction * len(documents)))])
        prompts = [prompt for prompt in prompts if prompt.document in kept]
    for prompt in prompts:
        require_positions(pair, prompt.id, len(prompt.tokens) + settings.new_tokens)
    shares = (settings.fit_share, settings.select_share)
    parts = split_documents(prompts, (*shares, 1 - sum(shares)))
    if any(len(documents_of(part)) < 1 for part in parts) or len(documents_of(prompts)) < FEWEST:
        raise BadInput(
            f"{len(documents_of(prompts))} documents are too few for three splits",
            "name more --data, or shorten --prompt so that more documents are long enough",
        )
    return parts


def _about(traces: Sequence[Trace]) -> dict[str, float]:
    gains = [trace.gain for trace in traces]
    return {
        "checks": len(traces),
        "mean_gain": sum(gains) / len(gains),
        "share_with_gain": sum(gain > 0 for gain in gains) / len(gains),
        "mean_changed": sum(trace.changed for trace in traces) / len(traces),
    }


class _Work:
    """Runs the stages over prompts."""

    def __init__(self, pool: PairPool, settings: CalibrateRefreshSettings, progress: Progress | None) -> None:
        self._pool = pool
        self._settings = settings
        self._progress = progress

    def traces(self, prompts: Sequence[Prompt]) -> list[Trace]:
        """All checks of the prompts, in their order."""
        jobs = [TraceJob(prompt, self._settings, self._settings.seed) for prompt in prompts]
        found: dict[int, list[Trace]] = {}
        for index, traces in self._pool.map(trace, jobs):
            found[index] = traces
            self._say(len(found), len(jobs), "traces")
        return [one for index in sorted(found) for one in found[index]]

    def outcomes(
        self, prompts: Sequence[Prompt], schedules: Sequence[Schedule], what: str, *, real: bool = False
    ) -> list[list[Outcome]]:
        """Per schedule, the outcome of every prompt."""
        # With more processes than prompts, several share a prompt's schedules.
        parts = max(1, min(self._settings.workers // len(prompts), len(schedules)))
        places = [list(range(part, len(schedules), parts)) for part in range(parts)]
        jobs = [
            ClosedJob(prompt, self._settings, tuple(schedules[place] for place in some), real)
            for prompt in prompts
            for some in places
        ]
        found: dict[int, list[Outcome]] = {}
        for index, row in self._pool.map(run_schedules, jobs):
            found[index] = row
            self._say(len(found), len(jobs), what)
        return [
            [found[number * parts + place % parts][place // parts] for number in range(len(prompts))]
            for place in range(len(schedules))
        ]

    def test(self, prompts: Sequence[Prompt], own: Schedule | None) -> dict[str, Any]:
        """Once, in the real loop: the controller against the periodic policy; controls are replayed.

        Greedy replays are the real loop. Sampled ones share their text and luck, the real loops do not: there
        the controls, and the controller once more, stand against a replay of the periodic policy.
        """
        settings = self._settings
        periodic = Schedule("periodic", every=settings.every)
        real = self.outcomes(prompts, [periodic, *([own] if own else [])], "test", real=True)
        found: dict[str, Any] = {
            "equal": None if settings.temperature else all(outcome.equal for row in real for outcome in row),
            "verdict": "no controller",
        }
        spacings = [max(1, round(times * settings.every)) for times in SWEEP]
        sweep = [Schedule("periodic", every=every) for every in spacings]
        controls = [Schedule("never"), *sweep]
        names = ["never", *(f"periodic {every}" for every in spacings)]
        if own is not None:
            against = compare(real[1], real[0], resamples=settings.resamples, seed=settings.seed)
            found["ada"] = asdict(against)
            matched = _passes(against, settings.tolerance)
            found["verdict"] = "matched" if matched else "not matched"
            checks = sum(outcome.tokens // settings.interval for outcome in real[1]) or 1
            refreshes = sum(outcome.refreshes for outcome in real[1])
            share = min(1.0, refreshes / checks)
            tokens = sum(outcome.tokens for outcome in real[1])
            spacing = max(1, spacing_at_rate(refreshes / len(prompts), tokens / len(prompts)))
            pace = Pace(settings.interval)
            controls += [Schedule("periodic", every=spacing), Schedule("random", share=share, pace=pace)]
            names += ["periodic at its rate", "random at its rate"]
        if settings.temperature:
            controls += [periodic, *([own] if own else [])]
            names += ["periodic replayed", *(["replayed"] if own else [])]
        rows = self.outcomes(prompts, controls, "controls")
        against_row = rows[names.index("periodic replayed")] if settings.temperature else real[0]
        found["controls"] = {
            name: asdict(compare(row, against_row, resamples=settings.resamples, seed=settings.seed))
            for name, row in zip(names, rows, strict=True)
            if name != "periodic replayed"
        }
        return found

    def _say(self, done: int, total: int, what: str) -> None:
        if self._progress:
            self._progress(done, total, what)
