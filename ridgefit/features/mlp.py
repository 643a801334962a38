"""The split layer's MLP activations: functions of the state that the model already has weights for."""

from __future__ import annotations

from torch import Tensor

from ridgefit.errors import BadInput
from ridgefit.features.feature import Feature
from ridgefit.features.inputs import FeatureCarry, FeatureInputs, Opening, SplitShape


class Mlp(Feature):
    """`mlp`: norm, gate, up and activation of the split layer on the state itself; no attention before it."""

    base = "mlp"

    def width(self, shape: SplitShape) -> int:
        """The MLP's inner width."""
        if shape.mlp is None:
            raise BadInput(
                f"layer {shape.split} has no single gated MLP whose activations a map could read",
                "leave the feature mlp out",
            )
        return shape.mlp

    def macs(self, shape: SplitShape) -> int:
        """Gate and up products."""
        return 2 * shape.hidden * self.width(shape)

    def compute(self, inputs: FeatureInputs, opening: Opening, carry: FeatureCarry | None) -> Tensor:
        """Row by row, so nothing is carried."""
        del opening, carry
        if inputs.mlp is None:
            raise ValueError("the feature mlp needs the split layer's MLP")
        return inputs.mlp(inputs.state)
