"""The model that a capture was made with, as its record names it."""

from __future__ import annotations

from pathlib import Path

from ridgefit.capture import CaptureRecord
from ridgefit.errors import BadInput
from ridgefit.recipe import ModelSettings


def captured_model(folder: Path) -> ModelSettings:
    """Settings that load the captured model again: the same name, commit, dtype and attention.

    Raises:
        BadInput: the folder is no capture, or the model came from a folder, of which a record keeps only
            the last part.
    """
    record = CaptureRecord.read(folder)
    about, identity = record.about.get("model") or {}, record.identity.get("model") or {}
    name, revision = about.get("name"), about.get("revision")
    if not (name and (name.startswith("bundled:") or name.count("/") == 1)):
        raise BadInput(
            f"the capture in {folder} does not say where its model {name or ''!r} is", "pass --model"
        )
    return ModelSettings.model_validate(
        {
            "model": f"{name}@{revision}" if revision else name,
            **{key: identity[key] for key in ("dtype", "attention") if key in identity},
        }
    )
