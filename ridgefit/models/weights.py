"""Checks on a checkpoint's weight files before anything reads them, and on weights once loaded."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn

from ridgefit.errors import BadInput

_MAX_HEADER = 100 << 20  # safetensors' own limit


def require_whole_weights(folder: Path) -> None:
    """Refuse weight files that are cut short, damaged or not safetensors, by name; reads headers only.

    Raises:
        BadInput: no safetensors file, a file the index names is missing, or a file is not whole.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise BadInput(
            f"{folder} holds no safetensors weights",
            "save the model with save_pretrained; pickled weights (.bin, .pt) are never read",
        )
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise BadInput(f"{index} is not a weight index", "download the model again") from error
        for name in sorted(named - {file.name for file in files}):
            raise BadInput(f"{folder} lacks the weight file {name}", "download the model again")
    for file in files:
        _require_whole(file)


def require_finite(model: nn.Module) -> None:
    """Refuse a model with a parameter that is not a number or infinite, by the parameter's name.

    Raises:
        BadInput: naming the first such parameter and how many of its entries are affected.
    """
    for name, parameter in model.named_parameters():
        bad = int((~torch.isfinite(parameter)).sum()) if parameter.is_floating_point() else 0
        if bad:
            raise BadInput(
                f"weight {name} has {bad} of {parameter.numel()} entries that are not finite numbers",
                "download the model again, or load it in bfloat16 if float16 overflowed",
            )


def _require_whole(file: Path) -> None:
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or not 0 < length <= min(size - 8, _MAX_HEADER):
            raise BadInput(f"{file} is cut short or is no safetensors file", "download the model again")
        try:
            header = json.loads(stream.read(length))
            ends = [entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"]
            body = max(ends, default=0)
        except (ValueError, KeyError, AttributeError, TypeError, IndexError, RecursionError) as error:
            raise BadInput(f"{file} has a damaged safetensors header", "download the model again") from error
    if size != 8 + length + body:
        raise BadInput(
            f"{file} has {size} bytes where its header promises {8 + length + body}",
            "download the model again",
        )
