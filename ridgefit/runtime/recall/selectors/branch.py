"""VestigeKV's selector: the branch alone, away from its slow course (section 4.1)."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from ridgefit.runtime.recall.residual import low_pass_residual
from ridgefit.runtime.recall.selectors.selector import Selector, Window


class BranchSelector(Selector):
    """Reads the branch, a ninth of a row, and no query."""

    name: ClassVar[str] = "branch"

    def scores(self, window: Window) -> Tensor:
        """Low-pass residual of the branch."""
        return low_pass_residual(window.rows[:, -window.branch :], window.kappa)
