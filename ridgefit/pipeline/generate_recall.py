"""Text with a recall policy applied, and what its steps read."""

from __future__ import annotations

import time

import torch
from pydantic import BaseModel, ConfigDict

from ridgefit.errors import BadInput
from ridgefit.hub import local_maps
from ridgefit.models.load import load_latent
from ridgefit.pipeline.prompting import OF_A_FILL, Clock, decoding, prompt_ids, prompt_text
from ridgefit.recipe import GenerateSettings, ModelSettings, refuse_idle
from ridgefit.runtime.recall import LayerReport, Recall


class LayerReads(BaseModel):
    """What steps read in one layer.

    Attributes:
        kept: closed rows that stayed attended.
        archived: the other closed rows.
        fetched: mean rows fetched per step.
        most: most rows fetched in one step.
        overflows: steps that read everything.
        share: cache entries read, as a share of what dense steps read.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kept: int
    archived: int
    fetched: float
    most: int
    overflows: int
    share: float


class Recalled(BaseModel):
    """What a prompt became.

    Attributes:
        text: the new text, special tokens left out.
        prompt_tokens: tokens of the prompt.
        new_tokens: tokens generated.
        first_token_seconds: from the call to the first new token.
        seconds: the whole call.
        layers: reads by layer.
        warnings: one line each.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str
    prompt_tokens: int
    new_tokens: int
    first_token_seconds: float
    seconds: float
    layers: dict[int, LayerReads]
    warnings: tuple[str, ...]


def generate_recall(model: ModelSettings, settings: GenerateSettings) -> Recalled:
    """Generate from one prompt, reading its cache through a policy.

    Raises:
        BadInput: no prompt, maps beside the policy, or a policy of another model.
    """
    if settings.policy is None or settings.maps is not None:
        raise BadInput("maps and a recall policy are not applied together", "leave one of them out")
    refuse_idle(settings, OF_A_FILL, "with --policy, which fills no rows")
    text = prompt_text(settings)
    recall = Recall.load(local_maps(settings.policy))
    loaded = load_latent(**model.load_options())
    warnings = recall.check(loaded.model, loaded.tokenizer)
    ids = prompt_ids(loaded, text, settings)
    clock = Clock()
    asked = decoding(ids, settings, loaded.tokenizer, clock)
    started = time.perf_counter()
    with torch.no_grad(), recall.applied(loaded.model) as report:
        sequence = loaded.model.generate(**asked)
    seconds = time.perf_counter() - started
    new = sequence[0, ids.shape[1] :]
    layers = {index: _reads(layer) for index, layer in report.layers.items()}
    if not any(layer.archived for layer in layers.values()):
        warnings.append(f"no row of the prompt's {ids.shape[1]} closed, so every step read everything")
    return Recalled(
        text=loaded.tokenizer.decode(new, skip_special_tokens=True),
        prompt_tokens=ids.shape[1],
        new_tokens=len(new),
        first_token_seconds=clock.first - started,
        seconds=seconds,
        layers=layers,
        warnings=tuple(warnings),
    )


def _reads(layer: LayerReport) -> LayerReads:
    return LayerReads(
        kept=layer.kept,
        archived=layer.archived,
        fetched=sum(layer.fetched) / max(1, layer.parted),
        most=max(layer.fetched, default=0),
        overflows=layer.overflowed,
        share=layer.dims_per_row / layer.width if layer.width else 1.0,
    )
