"""Apply maps at inference: small, and free of everything that fits, judges or publishes them."""

from ridgefit.runtime.checks import Check, check_model
from ridgefit.runtime.corrections import Corrections
from ridgefit.runtime.fill import RidgeFill
from ridgefit.runtime.report import FillReport
from ridgefit.runtime.selectors import SELECTORS, Selector
from ridgefit.runtime.splice import SPLICES, Splice

__all__ = [
    "SELECTORS",
    "SPLICES",
    "Check",
    "Corrections",
    "FillReport",
    "RidgeFill",
    "Selector",
    "Splice",
    "check_model",
]
