"""An earlier row's state: what a key must know to be found by the token before it (induction)."""

from __future__ import annotations

import torch
from torch import Tensor

from ridgefit.features.feature import Feature
from ridgefit.features.inputs import FeatureCarry, FeatureInputs, Opening


class Previous(Feature):
    """`previous-K`: row t - K's split state; rows 0 to K - 1 of a sample repeat its row 0."""

    base = "previous"

    def compute(self, inputs: FeatureInputs, opening: Opening, carry: FeatureCarry | None) -> Tensor:
        """A shifted copy; padding before a sample's first row is stepped over, never read."""
        state, back = inputs.state, self.number
        first = opening.first_state(state)
        before = None if carry is None else carry.held.get(self.name)
        if before is None:
            before = first.expand(-1, back, -1)
        joined = torch.cat((before, state), dim=1)
        shifted = joined[:, : inputs.rows]
        if opening.first is not None:
            row = torch.arange(inputs.rows, device=state.device)
            # Row t - K of the sample is in its padding: its first row stands there.
            early = (row >= opening.first) & (row < opening.first + back)
            shifted = torch.where(early[:, :, None], first, shifted)
        if carry is not None:
            kept = joined[:, -back:]
            if opening.first is not None:
                row = torch.arange(inputs.rows - back, inputs.rows, device=state.device)
                started_here = (opening.first >= 0) & (row < opening.first)
                kept = torch.where(started_here[:, :, None], first, kept)
            carry.held[self.name] = kept.clone()
        return shifted
