"""The split state itself: the paper's input of a map (RidgeFill section 2.2)."""

from __future__ import annotations

from torch import Tensor


class State:
    """Row t's hidden state entering the split layer, `[batch, rows, hidden]`."""

    name = "state"
    version = 1

    def width(self, hidden: int) -> int:
        """Columns of the feature."""
        return hidden

    def macs(self, hidden: int) -> int:
        """Multiply-accumulates per row."""
        del hidden
        return 0

    def compute(self, state: Tensor, valid: Tensor) -> Tensor:
        """The state as it is, not copied."""
        del valid
        return state
