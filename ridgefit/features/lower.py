"""A lower layer's state, which the exact layers computed on the way to the split."""

from __future__ import annotations

from torch import Tensor

from ridgefit.errors import BadInput
from ridgefit.features.feature import Feature
from ridgefit.features.inputs import FeatureCarry, FeatureInputs, Opening, SplitShape


class Lower(Feature):
    """`lower-K`: row t's hidden state entering layer split - K; K = split is the embedding."""

    base = "lower"

    @property
    def lower(self) -> int:
        """How far below the split."""
        return self.number

    def width(self, shape: SplitShape) -> int:
        """Width of the hidden state."""
        if self.number > shape.split:
            raise BadInput(
                f"the feature {self.name} lies below the first layer when the split is {shape.split}",
                f"use lower-{shape.split} or less",
            )
        return shape.hidden

    def compute(self, inputs: FeatureInputs, opening: Opening, carry: FeatureCarry | None) -> Tensor:
        """The state as it was kept, on the split layer's device."""
        del opening, carry
        return inputs.lower[self.number].to(inputs.state.device)
