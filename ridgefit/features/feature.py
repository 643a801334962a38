"""What a map may read: one feature per file, found by name, concatenated in a stated order."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from ridgefit.errors import BadInput
from ridgefit.features.state import State


class Feature(Protocol):
    """Something computed from the split states of a row and the rows before it, never after it."""

    @property
    def name(self) -> str:
        """Name in recipes and artefacts."""

    @property
    def version(self) -> int:
        """Raised when the values change; part of an artefact's identity."""

    def width(self, hidden: int) -> int:
        """Columns the feature has in a model of width `hidden`."""

    def macs(self, hidden: int) -> int:
        """Multiply-accumulates per row that computing it costs."""

    def compute(self, state: Tensor, valid: Tensor) -> Tensor:
        """Values for every row.

        Args:
            state: `[batch, rows, hidden]`, the hidden state entering the split layer.
            valid: `[batch, rows]` bool, False for left padding.

        Returns:
            `[batch, rows, width]` in the dtype of `state`.
        """


FEATURES: dict[str, Feature] = {feature.name: feature for feature in (State(),)}


class FeatureList:
    """Named features in order: the columns of a map's input.

    Args:
        names: keys of `FEATURES`.

    Raises:
        BadInput: no name, a name twice, or an unknown name (with the nearest known one).
    """

    def __init__(self, names: Sequence[str]) -> None:
        if not names or len(set(names)) != len(names):
            raise BadInput(f"features {list(names)} must be named once each, and at least one", "use [state]")
        for name in names:
            if name not in FEATURES:
                near = difflib.get_close_matches(name, FEATURES, n=1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise BadInput(f"there is no feature {name!r}", f"{hint}known: {', '.join(FEATURES)}")
        self.names = tuple(names)
        self._features = tuple(FEATURES[name] for name in names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FeatureList) and self.names == other.names

    def __hash__(self) -> int:
        return hash(self.names)

    def __repr__(self) -> str:
        return f"FeatureList({list(self.names)})"

    @property
    def versions(self) -> dict[str, int]:
        """Version of each feature, for an artefact's identity."""
        return {feature.name: feature.version for feature in self._features}

    def width(self, hidden: int) -> int:
        """Columns of all features together."""
        return sum(feature.width(hidden) for feature in self._features)

    def macs(self, hidden: int) -> int:
        """Multiply-accumulates per row of all features together."""
        return sum(feature.macs(hidden) for feature in self._features)

    def compute(self, state: Tensor, valid: Tensor) -> Tensor:
        """All features side by side, `[batch, rows, width]`; one feature alone is not copied."""
        parts = [feature.compute(state, valid) for feature in self._features]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
