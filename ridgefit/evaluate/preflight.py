"""What an evaluation refuses from its settings and a model's config, before anything is loaded or scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from ridgefit import cost
from ridgefit.corpus import read_documents
from ridgefit.errors import BadInput
from ridgefit.evaluate.arms import Arm, reach_of
from ridgefit.evaluate.tasks import TASKS, task_names
from ridgefit.models import Port
from ridgefit.recipe import EvalSettings
from ridgefit.runtime.settings import require_settings


@dataclass(frozen=True)
class Known:
    """What settings are held against.

    Attributes:
        layers: of the model.
        vocab: its tokens.
        positions: it was made for; None where it does not say.
        attention: transformers' attention implementation.
    """

    layers: int
    vocab: int
    positions: int | None
    attention: str

    @classmethod
    def of_config(cls, config: Mapping[str, Any], attention: str) -> Self:
        """Of a model that is not loaded, from its parsed `config.json`.

        Raises:
            BadInput: the family is unknown, or a dimension is missing.
        """
        shape = cost.shape_from_config(config)
        inner = config.get("text_config")
        text = inner if isinstance(inner, Mapping) else config
        return cls(shape.layers, shape.vocab, text.get("max_position_embeddings"), attention)

    @classmethod
    def of(cls, port: Port) -> Self:
        """Of a loaded model."""
        positions = getattr(port.config, "max_position_embeddings", None)
        return cls(port.n_layers, port.vocab, positions, port.attention)


def require_possible(settings: EvalSettings, arms: Sequence[Arm], known: Known) -> None:
    """Refuse tasks and arms that no sample could make right.

    Args:
        settings: of the evaluation, with the arms that they ask for without naming them.
        arms: the same, resolved.
        known: the model.

    Raises:
        BadInput: an unknown task, prompts that leave nothing to fill or that the model has no positions for,
            text that is not there, or rows, corrections and splices that fit no fill of the tasks.
    """
    for task in settings.tasks:
        if task.task not in TASKS:
            raise BadInput(
                f"task {task.task} judges a draft, not an arm",
                "run it by itself: `ridgefit eval --tasks acceptance`",
            )
    for name, task in zip(task_names(settings.tasks), settings.tasks, strict=True):
        _require_text(task)
        _require_lengths(name, task, arms, known)
        for arm in arms:
            _require_arm(name, task, arm, known)


def _require_text(task: Any) -> None:
    """Look every source of text up."""
    if getattr(task, "data", ()):
        read_documents(task.data)
    if getattr(task, "haystack", "noise") != "noise":
        read_documents([task.haystack])


def _require_lengths(name: str, task: Any, arms: Sequence[Arm], known: Known) -> None:
    reach = reach_of(arms, task.tail)
    if reach.tail + reach.sink_rows >= task.prompt:
        rows = f"a tail of {reach.tail}" + (f" and {reach.sink_rows} sink rows" if reach.sink_rows else "")
        raise BadInput(
            f"task '{name}' has prompts of {task.prompt} tokens, of which {rows} would leave nothing to fill",
            "lengthen the prompt or shorten the tail",
        )
    after = getattr(task, "scored", None) or getattr(task, "new_tokens", 0)
    if known.positions is not None and task.prompt + after > known.positions:
        raise BadInput(
            f"task '{name}' needs {task.prompt + after} positions and the model has {known.positions}",
            "shorten the prompt",
        )


def _require_arm(name: str, task: Any, arm: Arm, known: Known) -> None:
    """Refuse what the runtime would refuse at the first sample."""
    if arm.fill is None:
        return
    tail = arm.tail_of(task.tail)
    try:
        require_settings(
            arm.fill.kind,
            arm.fill.split,
            attention=known.attention,
            vocab=known.vocab,
            tail=tail,
            sink_rows=arm.sink_rows,
            rows=arm.selectors or None,
            corrections=arm.corrections,
            splice=arm.splice,
            maps=arm.fill.maps.path if arm.fill.maps is not None else None,
        )
        for selector in arm.selectors:
            selector.check_prompt(task.prompt, task.prompt - tail)
    except BadInput as error:
        raise BadInput(f"arm '{arm.label}' in task '{name}': {error.what}", error.fix) from error
