"""The registry of tasks: settings in a recipe -> the object that makes and scores samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ridgefit.evaluate.agreement import AgreementTask
from ridgefit.evaluate.copying import CopyingTask
from ridgefit.evaluate.needle import NeedleTask
from ridgefit.evaluate.needle_two_turn import NeedleTwoTurnTask
from ridgefit.evaluate.nll import NllTask
from ridgefit.evaluate.samples import Task

TASKS: dict[str, Callable[[Any], Task]] = {
    "nll": NllTask,
    "needle": NeedleTask,
    "needle-two-turn": NeedleTwoTurnTask,
    "agreement": AgreementTask,
    "copying": CopyingTask,
}


def task_names(settings: Sequence[Any]) -> tuple[str, ...]:
    """A short name per task, unique within the evaluation: kind, lengths, needles or stretches, a count."""
    names: list[str] = []
    for task in settings:
        name = f"{task.task} {task.prompt}/{task.tail}"
        if getattr(task, "needles", 1) > 1:
            name += f" {task.needles} keys"
        if getattr(task, "haystack", "noise") != "noise":
            name += " text"
        if getattr(task, "stretches", 1) > 1:
            name += f" {task.stretches} stretches"
        twins = sum(other == name or other.startswith(f"{name} #") for other in names)
        names.append(f"{name} #{twins + 1}" if twins else name)
    return tuple(names)
