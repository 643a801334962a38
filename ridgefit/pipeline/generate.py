"""Text with an arm applied, and the time to its first token."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict

from ridgefit import cost
from ridgefit.errors import BadInput
from ridgefit.evaluate.arms import Arm, resolve_arm
from ridgefit.hub import local_maps
from ridgefit.models import LoadedModel, load_model
from ridgefit.pipeline.plan import find_config
from ridgefit.pipeline.prompting import Clock, decoding, prompt_ids, prompt_text
from ridgefit.recipe import ArmSettings, GenerateSettings, ModelSettings, require_used
from ridgefit.runtime import FillReport
from ridgefit.versions import peak_memory


class Generated(BaseModel):
    """What a prompt became.

    Attributes:
        text: the new text, special tokens left out.
        arm: label of the arm.
        split: split layer, None for exact.
        tail: exact rows at the prompt's end, None for exact.
        prompt_tokens: tokens of the prompt.
        new_tokens: tokens generated.
        first_token_seconds: from the call to the first new token.
        seconds: the whole call.
        rows_filled: prompt rows whose late layers were skipped.
        rows_chosen: prefix rows that selectors chose to run exactly.
        peak_bytes: most memory so far: of the device on CUDA, else of the process.
        warnings: one line each.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str
    arm: str
    split: int | None
    tail: int | None
    sink_rows: int
    prompt_tokens: int
    new_tokens: int
    first_token_seconds: float
    seconds: float
    rows_filled: int
    rows_chosen: int
    peak_bytes: int
    warnings: tuple[str, ...]


def generate(model: ModelSettings, settings: GenerateSettings) -> Generated:
    """Generate from one prompt under an arm.

    The prompt and the maps are read first, so that what is wrong with them is said before a model is loaded.

    Raises:
        BadInput: settings that would do nothing, no prompt, a prompt longer than the model reads, an arm that
            does not fit, or a model whose scores are not numbers.
    """
    require_used(settings)
    if settings.maps is not None:
        settings = settings.model_copy(update={"maps": local_maps(settings.maps, settings.split)})
    text = prompt_text(settings)
    arm, tail = _arm(cost.shape_from_config(find_config(model.model, weights=True)).layers, settings)
    loaded = load_model(**model.load_options())
    ids = prompt_ids(loaded, text, settings)
    warnings = list(arm.fill.check(loaded.port, loaded.tokenizer)) if arm.fill else []
    if arm.fill and ids.shape[1] <= tail + arm.sink_rows:
        warnings.append(
            f"the prompt's {ids.shape[1]} tokens are no more than the tail of {tail} and "
            f"{arm.sink_rows} sink rows, so every row is exact"
        )
    clock = Clock()
    parts = ids.shape[1] if settings.prefill_chunk else None
    asked = decoding(ids, settings, loaded.tokenizer, clock) | _in_parts(settings.prefill_chunk)
    started = time.perf_counter()
    with torch.no_grad(), _applied(arm, loaded, tail, parts) as report:
        sequence = loaded.model.generate(**asked)
    seconds = time.perf_counter() - started
    new = sequence[0, ids.shape[1] :]
    return Generated(
        text=loaded.tokenizer.decode(new, skip_special_tokens=True),
        arm=arm.label,
        split=arm.split,
        tail=tail if arm.fill else None,
        sink_rows=arm.sink_rows,
        prompt_tokens=ids.shape[1],
        new_tokens=len(new),
        first_token_seconds=clock.first - started,
        seconds=seconds,
        rows_filled=report.rows_filled if report else 0,
        rows_chosen=report.rows_chosen if report else 0,
        peak_bytes=peak_memory(loaded.port.device.type),
        warnings=tuple(warnings),
    )


def _applied(
    arm: Arm, loaded: LoadedModel, tail: int, prompt_tokens: int | None
) -> AbstractContextManager[FillReport | None]:
    if arm.fill is None:
        return nullcontext()
    return arm.applied(loaded.model, tail, loaded.tokenizer, prompt_tokens=prompt_tokens)


def _in_parts(chunk: int | None) -> dict[str, Any]:
    """Options of transformers' own chunked prefill, which must not be compiled where a fill acts."""
    return {} if chunk is None else {"prefill_chunk_size": chunk, "disable_compile": True}


def _arm(n_layers: int, settings: GenerateSettings) -> tuple[Arm, int]:
    """The arm, with tail and sink rows from the maps where the user names none."""
    wanted = ArmSettings(
        kind=settings.arm,
        split=settings.split,
        tail=settings.tail,
        sink_rows=settings.sink_rows or 0,
        rows=settings.rows,
    )
    arm = resolve_arm(wanted, settings.maps, n_layers)
    if arm.fill is None:
        return arm, 0
    defaults = arm.fill.maps.defaults if arm.fill.maps else None
    if settings.sink_rows is None and defaults and defaults.sink_rows:
        arm = resolve_arm(
            wanted.model_copy(update={"sink_rows": defaults.sink_rows}), settings.maps, n_layers
        )
    tail = arm.tail if arm.tail is not None else (defaults.tail if defaults else None)
    if tail is None:
        raise BadInput(f"arm '{arm.label}' has no tail and the maps suggest none", "pass --tail")
    return arm, tail
