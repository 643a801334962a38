"""Rows by chance: what any selector has to beat."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ridgefit.runtime.recall.selectors.selector import Selector, Window


class RandomSelector(Selector):
    """The same rows for the same seed, layer and window."""

    name: ClassVar[str] = "random"

    def scores(self, window: Window) -> Tensor:
        """Uniform numbers."""
        generator = torch.Generator().manual_seed(
            (window.seed * 1_000_003 + window.layer) * 1_000_003 + window.first
        )
        return torch.rand(window.rows.shape[0], generator=generator).to(window.rows.device)
