"""ridgefit: fit small artefacts to a frozen language model, prove their worth, apply them at inference."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ridgefit.pipeline.fill import RidgeFill
    from ridgefit.runtime.recall import Recall

try:
    __version__ = version("ridgefit")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["Recall", "RidgeFill", "__version__"]

_LAZY = {"Recall": "ridgefit.runtime.recall", "RidgeFill": "ridgefit.pipeline.fill"}


def __getattr__(name: str) -> Any:
    """Import the runtime on first use, so that `ridgefit --help` never pays for torch."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'ridgefit' has no attribute {name!r}")
