"""Apply maps at inference: small, and free of everything that fits, judges or publishes them."""

from ridgefit.runtime.checks import Check, check_model
from ridgefit.runtime.fill import RidgeFill
from ridgefit.runtime.report import FillReport

__all__ = ["Check", "FillReport", "RidgeFill", "check_model"]
