"""StreamingLLM: sinks and the newest rows (Xiao et al. 2024)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ridgefit.runtime.recall.selectors.selector import Selector, Window


class StreamingSelector(Selector):
    """Keeps the newest closed rows; sinks come on top as for every selector."""

    name: ClassVar[str] = "streaming"

    def scores(self, window: Window) -> Tensor:
        """A row's number."""
        count = window.rows.shape[0]
        return torch.arange(window.first, window.first + count, device=window.rows.device).float()
