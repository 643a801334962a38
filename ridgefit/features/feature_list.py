"""Named features in order: the columns of a map's input."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ridgefit.features.average import Average
from ridgefit.features.controls import ControlNext, ControlRandom
from ridgefit.features.feature import Feature
from ridgefit.features.inputs import FeatureCarry, FeatureInputs, Opening, SplitShape
from ridgefit.features.lower import Lower
from ridgefit.features.mlp import Mlp
from ridgefit.features.previous import Previous
from ridgefit.features.state import State
from ridgefit.maps.names import feature_versions, parse_feature, require_state_first

# base name -> class, constructed with the name's number
FEATURES: dict[str, type[Feature]] = {
    kind.base: kind for kind in (State, Previous, Mlp, Lower, Average, ControlNext, ControlRandom)
}


class FeatureList:
    """What a map reads: the split state, then whatever else is named.

    Args:
        names: such as `["state", "previous-1"]`; `state` is the first.

    Attributes:
        names: as given.
        features: one object per name.

    Raises:
        BadInput: `state` is not the first, a name is there twice, or unknown (with the nearest known one).
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.features = tuple(FEATURES[found.base](found.number) for found in map(parse_feature, names))
        self.names = require_state_first(tuple(names), "the maps")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FeatureList) and self.names == other.names

    def __hash__(self) -> int:
        return hash(self.names)

    def __repr__(self) -> str:
        return f"FeatureList({list(self.names)})"

    @property
    def versions(self) -> dict[str, int]:
        """Version of each feature, for an artefact's identity."""
        return feature_versions(self.names)

    @property
    def controls(self) -> tuple[str, ...]:
        """Names of features that are for ablations only."""
        return tuple(feature.name for feature in self.features if feature.control)

    @property
    def lower(self) -> tuple[int, ...]:
        """How far below the split the states lie that must be kept on the way, each once."""
        return tuple(sorted({feature.lower for feature in self.features if feature.lower}))

    @property
    def ahead(self) -> int:
        """Rows after its own that a row reads; 0 but for controls."""
        return max(feature.ahead for feature in self.features)

    def widths(self, shape: SplitShape) -> tuple[int, ...]:
        """Columns of each feature.

        Raises:
            BadInput: the model lacks one of them at this split.
        """
        return tuple(feature.width(shape) for feature in self.features)

    def width(self, shape: SplitShape) -> int:
        """Columns of all features together; raises as `widths`."""
        return sum(self.widths(shape))

    def macs(self, shape: SplitShape) -> int:
        """Multiply-accumulates per row that computing all features costs."""
        return sum(feature.macs(shape) for feature in self.features)

    def parts(self, inputs: FeatureInputs, carry: FeatureCarry | None = None) -> list[Tensor]:
        """Each feature's values, `[batch, rows, its width]`.

        Args:
            inputs: some consecutive rows of each sample.
            carry: of a prompt that comes in parts; changed.

        Raises:
            BadInput: a control was asked for with a carry.
        """
        opening = Opening.of(inputs, carry)
        found = [feature.compute(inputs, opening, carry) for feature in self.features]
        if carry is not None:
            real = opening.real(inputs.rows, inputs.state.device).expand(len(inputs.state), 1)[:, 0]
            carry.rows = real if carry.rows is None else carry.rows + real
        return found

    def compute(self, inputs: FeatureInputs, carry: FeatureCarry | None = None) -> Tensor:
        """All features side by side, `[batch, rows, width]`; the state alone is not copied."""
        found = self.parts(inputs, carry)
        return found[0] if len(found) == 1 else torch.cat(found, dim=-1)
