"""Apply maps at inference: small, and free of everything that fits, judges or publishes them."""

from ridgefit.runtime.fill import RidgeFill
from ridgefit.runtime.report import FillReport

__all__ = ["FillReport", "RidgeFill"]
