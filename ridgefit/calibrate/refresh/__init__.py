"""Refresh controllers for compressed draft caches: traces in, one frozen file out (RIFT section 4.3)."""

from ridgefit.calibrate.refresh.calibrate import calibrate_refresh

__all__ = ["calibrate_refresh"]
