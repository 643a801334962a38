"""What candidates' maps do to a model: what it still copies through them, and its loss on held-out text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from statistics import fmean
from typing import Any

from ridgefit.corpus import TokenStore
from ridgefit.evaluate.copying import CopyingTask
from ridgefit.evaluate.nll import NllTask
from ridgefit.evaluate.samples import Reach, Sample, Task
from ridgefit.models import LoadedModel
from ridgefit.recipe import CopyingSettings, NllSettings, SolveSettings
from ridgefit.runtime import RidgeFill

Progress = Callable[[int, int | None, str], None]
COPIED, RECALLED, LOSS = "copied", "recalled", "novel_nll"
TAIL_SHARE = 4
"""A window's prompt has one exact row at its end in so many."""
_SCORED = 256


@dataclass(frozen=True)
class Probed:
    """Scores of one fill by measure and sample, of the samples that have one.

    Attributes:
        scores: "copied" and "recalled" by copying prompt, shares 0 to 1; "novel_nll" by window, nats.
    """

    scores: Mapping[str, Mapping[str, float]]

    def mean(self, measure: str) -> float | None:
        """Mean over samples, None without any."""
        found = self.scores[measure]
        return fmean(found.values()) if found else None

    def gains(self, measure: str, other: Probed) -> dict[str, float]:
        """By sample, this fill's score minus another's."""
        mine, others = self.scores[measure], other.scores[measure]
        return {sample: mine[sample] - others[sample] for sample in mine if sample in others}


class Probe:
    """The same prompts and windows for every candidate of every split; the exact model runs on them once.

    Args:
        loaded: the model.
        store: text whose held-out windows give the loss.
        settings: sizes of the probe.
        progress: called with what is being done.

    Raises:
        BadInput: the copying prompts are too short for their strings.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        store: TokenStore,
        settings: SolveSettings,
        progress: Progress | None = None,
    ) -> None:
        self._loaded = loaded
        self._settings = settings
        self._progress = progress
        self._sinks = settings.probe_sink_rows
        copying = CopyingTask(
            CopyingSettings(
                prompt=settings.probe_prompt,
                tail=settings.probe_tail,
                samples=settings.probe_samples,
                strings=settings.probe_strings,
            )
        )
        reach = Reach(settings.probe_tail, self._sinks)
        samples = copying.samples(loaded, reach, settings.seed).samples
        self._parts: list[tuple[Task, Sequence[Sample]]] = [
            (copying, part) for part in _batches(samples, settings.probe_batch)
        ]
        held = held_samples(store, settings.probe_windows, self._sinks)
        for length, alike in groupby(held, key=lambda sample: sample.prompt.numel()):
            loss = NllTask(NllSettings(data=("held-out",), prompt=length, tail=length // TAIL_SHARE))
            self._parts += [(loss, part) for part in _batches(list(alike), settings.probe_batch)]
        self.groups = {sample.id: sample.group for sample in (*samples, *held)}
        self._carried: list[Sequence[Any] | None] = [None] * len(self._parts)
        self.exact = self._run("exact", lambda _: nullcontext())

    @property
    def windows(self) -> int:
        """Held-out windows behind the loss."""
        return len(self.exact.scores[LOSS])

    def score(self, label: str, fill: RidgeFill) -> Probed:
        """Apply a fill and score it on every prompt and window."""

        def apply(task: Task) -> AbstractContextManager[object]:
            return fill.applied(self._loaded.model, tail=task.tail, sink_rows=self._sinks)

        return self._run(label, apply)

    def _run(self, label: str, apply: Callable[[Task], AbstractContextManager[object]]) -> Probed:
        found: dict[str, dict[str, float]] = {COPIED: {}, RECALLED: {}, LOSS: {}}
        for at, (task, samples) in enumerate(self._parts):
            scored = task.score(self._loaded, samples, partial(apply, task), self._carried[at])
            if self._carried[at] is None:
                self._carried[at] = [item.carry for item in scored]
            for measure, scores in found.items():
                for sample, item in zip(samples, scored, strict=True):
                    value = item.scores.get(measure)
                    if value is not None:
                        scores[sample.id] = value
            if self._progress is not None:
                self._progress(at + 1, len(self._parts), f"probed: {label}")
        return Probed(found)


def held_samples(store: TokenStore, count: int, sink_rows: int) -> list[Sample]:
    """Held-out windows as a prompt and the tokens after it, longest windows first.

    The last eighth of a window, 256 tokens at most, is scored; a quarter of the prompt is the tail. Windows
    whose prompt would leave less than half to fill are left out.
    """
    manifest = store.manifest
    windows = sorted(manifest.held_windows, key=lambda window: (-manifest.window_tokens(window), window))
    found = []
    for window in windows[:count]:
        ids = store.window(window)
        scored = min(_SCORED, len(ids) // 8)
        prompt = ids[: len(ids) - scored]
        tail = len(prompt) // TAIL_SHARE
        if not scored or tail < 1 or len(prompt) - tail - sink_rows < len(prompt) // 2:
            continue
        found.append(
            Sample(
                id=f"window {window}",
                group="held-out text",
                prompt=prompt,
                target=ids[len(prompt) :],
            )
        )
    return found


def _batches(samples: Sequence[Sample], size: int) -> list[Sequence[Sample]]:
    return [samples[start : start + size] for start in range(0, len(samples), size)]
