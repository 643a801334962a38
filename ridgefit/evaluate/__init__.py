"""Arms and tasks on one model: paired results, their intervals, tables and a report."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ridgefit.evaluate.arms import arm_context
    from ridgefit.evaluate.intervals import bca, binomial_floor, wilson
    from ridgefit.evaluate.page import report
    from ridgefit.evaluate.result import EvalResult, load_result
    from ridgefit.evaluate.run import evaluate
    from ridgefit.evaluate.tables import render

__all__ = [
    "EvalResult",
    "arm_context",
    "bca",
    "binomial_floor",
    "evaluate",
    "load_result",
    "render",
    "report",
    "wilson",
]

# Loaded on first use: needle prompts and reports need neither a model nor torch.
_LAZY = {
    "EvalResult": "result",
    "arm_context": "arms",
    "bca": "intervals",
    "binomial_floor": "intervals",
    "evaluate": "run",
    "load_result": "result",
    "render": "tables",
    "report": "page",
    "wilson": "intervals",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module."""
    if name in _LAZY:
        return getattr(import_module(f"ridgefit.evaluate.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'ridgefit.evaluate' has no attribute {name!r}")
