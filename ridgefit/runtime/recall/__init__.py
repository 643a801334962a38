"""Recall policies for latent caches: rows are kept or archived, and fetched again when they matter."""

from ridgefit.runtime.recall.recall import Recall, require_premise
from ridgefit.runtime.recall.report import LayerReport, RecallReport
from ridgefit.runtime.recall.selectors import SELECTORS, selector_of

__all__ = ["SELECTORS", "LayerReport", "Recall", "RecallReport", "require_premise", "selector_of"]
