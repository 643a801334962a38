"""One thing that a map may read: a file per feature, found by its base name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from ridgefit.features.inputs import FeatureCarry, FeatureInputs, Opening, SplitShape


class Feature(ABC):
    """Columns of a map's input, computed from what the exact lower layers produced.

    A row's values depend on that row and on rows before it in its sample, never on padding; controls alone
    may look ahead.

    Args:
        number: of a name such as `previous-2`; 0 where the name has none.

    Attributes:
        base: name in the registry.
        version: of the definition, raised when its values change; must be that of `maps.READABLE_FEATURES`.
        control: for ablations only: refused in chunked prefill and in published repositories.
    """

    base: ClassVar[str]
    version: ClassVar[int] = 1
    control: ClassVar[bool] = False

    def __init__(self, number: int = 0) -> None:
        self.number = number

    @property
    def name(self) -> str:
        """Name in recipes and artefacts."""
        return f"{self.base}-{self.number}" if self.number else self.base

    @property
    def lower(self) -> int:
        """K where it reads the state entering layer split - K, else 0."""
        return 0

    @property
    def ahead(self) -> int:
        """Rows after its own that it reads."""
        return 0

    def width(self, shape: SplitShape) -> int:
        """Columns.

        Raises:
            BadInput: the model has no such feature at this split.
        """
        return shape.hidden

    def macs(self, shape: SplitShape) -> int:
        """Multiply-accumulates per row; copies cost none."""
        del shape
        return 0

    @abstractmethod
    def compute(self, inputs: FeatureInputs, opening: Opening, carry: FeatureCarry | None) -> Tensor:
        """Values `[batch, rows, width]` in the dtype of the state; anything in padding rows.

        Args:
            inputs: consecutive rows of each sample.
            opening: where samples begin.
            carry: of a prompt that comes in parts: what the earlier rows left; left for the next ones.
        """
