"""Training that makes a draft keep its aim under a compressed cache (RIFT section 5)."""

from ridgefit.calibrate.compress.train import train_draft

__all__ = ["train_draft"]
