"""Data in, frozen policy file out: recall thresholds and refresh controllers."""
