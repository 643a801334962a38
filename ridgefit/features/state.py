"""The split state itself: the paper's input of a map (RidgeFill section 2.2)."""

from __future__ import annotations

from torch import Tensor

from ridgefit.features.feature import Feature
from ridgefit.features.inputs import FeatureCarry, FeatureInputs, Opening


class State(Feature):
    """Row t's hidden state entering the split layer, not copied."""

    base = "state"

    def compute(self, inputs: FeatureInputs, opening: Opening, carry: FeatureCarry | None) -> Tensor:
        """The state as it is."""
        del opening, carry
        return inputs.state
