"""Controls for ablations: inputs of the same width that must not help. Never for use.

Published repositories and chunked prefill refuse them by name.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from ridgefit.errors import BadInput
from ridgefit.features.feature import Feature
from ridgefit.features.inputs import FeatureCarry, FeatureInputs, Opening

_MIX, _SEED = 0x2545F4914F6CDD1D, 0x5851F42D4C957F2D


class _Control(Feature):
    """Gathers one row of the same sample for each row."""

    control = True

    @abstractmethod
    def source(self, row: Tensor, last: Tensor) -> Tensor:
        """Which row of its sample each row reads.

        Args:
            row: `[batch or 1, rows]` int64, counted from the sample's first row; negative in padding.
            last: `[batch or 1, 1]` the sample's last row.
        """

    def compute(self, inputs: FeatureInputs, opening: Opening, carry: FeatureCarry | None) -> Tensor:
        """Rows gathered by `source`."""
        if carry is not None:
            raise BadInput(
                f"the feature {self.name} is a control, which a prompt in chunks cannot be filled with",
                "use maps without control features",
            )
        state = inputs.state
        first = torch.zeros_like(opening.real(0, state.device)) if opening.first is None else opening.first
        row = torch.arange(inputs.rows, device=state.device)[None] - first
        last = opening.real(inputs.rows, state.device) - 1
        columns = (self.source(row, last).clamp(min=0) + first).clamp(0, inputs.rows - 1)
        return state.gather(1, columns[:, :, None].expand(len(state), -1, state.shape[2]))


class ControlNext(_Control):
    """`control-next-K`: row t + K instead of row t - K, the last row repeated."""

    base = "control-next"

    @property
    def ahead(self) -> int:
        """Rows after its own that it reads."""
        return self.number

    def source(self, row: Tensor, last: Tensor) -> Tensor:
        """K rows on."""
        return torch.minimum(row + self.number, last)


class ControlRandom(_Control):
    """`control-random`: one of the rows before, always the same for a position; row 0 reads itself."""

    base = "control-random"

    def source(self, row: Tensor, last: Tensor) -> Tensor:
        """A fixed hash of the position, modulo the position; a table that no library's generator decides."""
        del last
        mixed = (row + 1) * _SEED
        mixed = (mixed ^ (mixed >> 29)) * _MIX
        return ((mixed >> 32) & 0x7FFFFFFF) % row.clamp(min=1)
