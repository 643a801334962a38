"""The same residual over whole rows (VestigeKV, table 3)."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from ridgefit.runtime.recall.residual import low_pass_residual
from ridgefit.runtime.recall.selectors.selector import Selector, Window


class FullRowSelector(Selector):
    """Reads latent and branch, and no query."""

    name: ClassVar[str] = "full-row"

    def scores(self, window: Window) -> Tensor:
        """Low-pass residual of the row."""
        return low_pass_residual(window.rows, window.kappa)
