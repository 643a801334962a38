"""Text and a model's name to moments: what can be refused is refused before the model is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from ridgefit import cost
from ridgefit.capture import CaptureResult, Progress, estimate
from ridgefit.capture import capture as stream
from ridgefit.capture.checks import record_to_resume
from ridgefit.capture.estimate import require_room
from ridgefit.corpus import Document, TokenStore, build_store, read_documents
from ridgefit.errors import BadInput
from ridgefit.models import LoadedModel, device_of, load_model
from ridgefit.moments import product_for
from ridgefit.pipeline.plan import find_config
from ridgefit.recipe import CaptureSettings, DataSettings, ModelSettings


def capture(
    model: ModelSettings,
    data: DataSettings,
    settings: CaptureSettings,
    out: Path,
    progress: Progress | None = None,
) -> CaptureResult:
    """Capture the moments of one or several splits.

    Splits, memory and disk are checked from the model's config, the text and the folder are looked at, and
    only then is the model loaded.

    Raises:
        BadInput: a split outside the model, too little memory or disk, text that cannot be read, or anything
            `ridgefit.capture.capture` refuses.
        Interrupted: stopped by a signal; everything done is saved.
    """
    check_plan(model, data, settings, out)
    record_to_resume(out, settings)
    documents = open_text(data)
    loaded = load_model(**model.load_options())
    return stream(loaded, token_store(loaded, data, documents), settings, out, progress=progress)


def open_text(data: DataSettings) -> Iterator[Document]:
    """Documents of a recipe's text; every source is looked up at once, rows stream later."""
    return read_documents(data.data, text_field=data.text_field, messages_field=data.messages_field)


def token_store(loaded: LoadedModel, data: DataSettings, documents: Iterable[Document]) -> TokenStore:
    """The frozen token manifest of a recipe's text."""
    return build_store(
        documents,
        loaded.tokenizer,
        window=data.window,
        min_tokens=data.min_tokens,
        max_windows=data.max_windows,
        held_out=data.held_out,
        max_document_tokens=data.max_document_tokens,
    )


def check_plan(model: ModelSettings, data: DataSettings, settings: CaptureSettings, out: Path) -> None:
    """Refuse what the config alone shows cannot work.

    Raises:
        BadInput: a split outside the model, a window past its positions, or too little memory or disk.
    """
    config = find_config(model.model, weights=True)
    shape = cost.shape_from_config(config)
    for split in settings.split:
        if not 1 <= split < shape.layers:
            raise BadInput(
                f"split {split} is outside this model, whose layers are 0 to {shape.layers - 1}",
                f"use splits from 1 to {shape.layers - 1}",
            )
    if len(set(settings.split)) < len(settings.split):
        raise BadInput(f"splits {list(settings.split)} name one twice", "name each split once")
    positions = int(config.get("max_position_embeddings") or 0)
    if positions and data.window > positions:
        raise BadInput(
            f"windows of {data.window} tokens pass the {positions} positions this model was made for",
            f"use --window {positions} or less",
        )
    device = device_of(model.device)
    needs = estimate(
        shape,
        settings,
        longest=data.window,
        tokens=data.window * (data.max_windows or 0),
        product=product_for(settings.precision, device),
    )
    require_room(needs, out, device, workers=settings.workers, model_bytes=cost.model_bytes(shape))
