"""Rows by their length."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ridgefit.runtime.recall.selectors.selector import Selector, Window


class NormSelector(Selector):
    """Length of the branch, without any filter: what the low-pass residual adds to it is the difference."""

    name: ClassVar[str] = "norm"

    def scores(self, window: Window) -> Tensor:
        """Euclidean norm of the branch; the latent's is fixed by its norm layer."""
        length: Tensor = torch.linalg.vector_norm(window.rows[:, -window.branch :].float(), dim=-1)
        return length
