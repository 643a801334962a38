"""Configs of well-known dimensions that ship with the package, so that costs need no download."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from ridgefit.errors import BadInput

_SUFFIX = ".json"


def preset_names() -> tuple[str, ...]:
    """Names that `preset_config` knows, sorted."""
    names = (entry.name for entry in files(__name__).iterdir())
    return tuple(sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)))


def preset_config(name: str) -> dict[str, Any]:
    """Parsed config of a preset, in the form of a checkpoint's `config.json`.

    Raises:
        BadInput: there is no such preset.
    """
    if name not in preset_names():
        raise BadInput(f"there is no preset {name!r}", f"choose one of {', '.join(preset_names())}")
    config: dict[str, Any] = json.loads((files(__name__) / f"{name}{_SUFFIX}").read_text(encoding="utf-8"))
    return config
