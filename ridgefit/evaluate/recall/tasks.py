"""Tasks of a recall evaluation by name: how their samples are made, and what is measured on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ridgefit.evaluate.recall.samples import RecallSample, document_samples, needle_samples
from ridgefit.models.load import LoadedLatent
from ridgefit.recipe import RecallEvalSettings

NEEDLE = "needle"
CONTINUATION = "continuation"


@dataclass(frozen=True)
class RecallTask:
    """One kind of sample.

    Attributes:
        name: key in results.
        samples: from model and settings; none where the settings ask for none.
        mass: whether retained attention is measured too.
    """

    name: str
    samples: Callable[[LoadedLatent, RecallEvalSettings], tuple[RecallSample, ...]]
    mass: bool


RECALL_TASKS = {
    task.name: task
    for task in (
        RecallTask(NEEDLE, needle_samples, mass=False),
        RecallTask(CONTINUATION, document_samples, mass=True),
    )
}
