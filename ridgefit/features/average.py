"""A moving average of the states so far: what the text around a row has been about."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ridgefit.features.feature import Feature
from ridgefit.features.inputs import FeatureCarry, FeatureInputs, Opening, SplitShape

# A row that far back weighs 2^-32 of the present one, less than float32 can add.
_HALVINGS = 32


class Average(Feature):
    """`average-H`: mean of the states of rows 0 to t of a sample, a row H rows back weighing half as much.

    Sums are float32 whatever the state's dtype. The weights are divided by their sum, so that a sample's
    first rows are means too.
    """

    base = "average"

    def macs(self, shape: SplitShape) -> int:
        """One per channel and doubling of the window."""
        return self._doublings * shape.hidden

    def compute(self, inputs: FeatureInputs, opening: Opening, carry: FeatureCarry | None) -> Tensor:
        """Windowed sums by doubling: after step j a row holds the weighted sum of the last 2^j rows.

        Padding adds zeros, which change no bit, so a sample's values do not depend on how it is padded.
        """
        state, rows, half = inputs.state, inputs.rows, self.number
        total = state.float()
        if inputs.valid is not None:
            total = total.masked_fill(~inputs.valid[:, :, None], 0)
        for doubling in range(self._doublings):
            reach = 1 << doubling
            if reach >= rows:
                break
            later = total[:, reach:] + 0.5 ** (reach / half) * total[:, :-reach]
            total = torch.cat((total[:, :reach], later), dim=1)
        row = torch.arange(rows, device=state.device)
        count = row[None] + 1
        if opening.first is not None:
            count = count - opening.first.clamp(min=0)
        if opening.past is not None:
            count = count + opening.past
            if carry is not None and self.name in carry.held:
                faded = 0.5 ** ((row.double() + 1) / half)
                total = total + faded.float()[None, :, None] * carry.held[self.name]
        if carry is not None:
            carry.held[self.name] = total[:, -1:].clone()
        decay = 0.5 ** (1 / half)
        weights = (1 - decay ** count.clamp(min=1).double()) / (1 - decay)
        mean: Tensor = total / weights.float()[:, :, None]
        return mean.to(state.dtype)

    @property
    def _doublings(self) -> int:
        return math.ceil(math.log2(_HALVINGS * self.number))
