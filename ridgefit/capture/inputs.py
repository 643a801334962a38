"""What maps read, gathered while an unmodified model runs: states on the way up, features at each split."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from ridgefit.features import FeatureInputs, FeatureList, SplitShape
from ridgefit.models import Port


class SplitInputs:
    """Features of every split in one forward pass.

    Args:
        port: the model.
        splits: first late layer of each split.
        features: what the maps read.

    Attributes:
        first: lowest layer whose input is needed.
        widths: per split, columns of its maps' input.

    Raises:
        BadInput: the model lacks one of the features at one of the splits.
    """

    def __init__(self, port: Port, splits: Sequence[int], features: FeatureList) -> None:
        self._port = port
        self._features = features
        self._splits = tuple(sorted(splits))
        self.widths = {split: features.width(self.shape(split)) for split in self._splits}
        # layer -> splits that are still to read its input
        self._readers: dict[int, tuple[int, ...]] = {}
        for split in self._splits:
            for depth in features.lower:
                layer = split - depth
                self._readers[layer] = (*self._readers.get(layer, ()), split)
        self.first = min(self._splits[0], *self._readers) if self._readers else self._splits[0]
        self._valid: Tensor | None = None
        self._kept: dict[int, Tensor] = {}

    @property
    def lower_layers(self) -> int:
        """How many states below their splits are held at once, at most."""
        return len(self._readers)

    @property
    def held(self) -> tuple[int, ...]:
        """Layers whose inputs are held now for a split above them."""
        return tuple(self._kept)

    def shape(self, split: int) -> SplitShape:
        """What widths depend on."""
        return SplitShape.of(self._port, split)

    def open(self, valid: Tensor) -> None:
        """Begin a forward pass over a batch, `[batch, rows]` bool with False for padding."""
        self._kept = {}
        self._valid = None if bool(valid.all()) else valid

    def at(self, layer: int, state: Tensor) -> Tensor | None:
        """Take a layer's input `[batch, rows, hidden]`, in the order of execution.

        Returns:
            `[batch, rows, width]` where a split begins with this layer, else None.
        """
        found = self._compute(layer, state) if layer in self._splits else None
        if layer in self._readers:
            self._kept[layer] = state
        for below in [below for below in self._kept if max(self._readers[below]) <= layer]:
            del self._kept[below]
        return found

    def _compute(self, split: int, state: Tensor) -> Tensor:
        return self._features.compute(
            FeatureInputs(
                state=state,
                valid=None if self._valid is None else self._valid.to(state.device),
                lower={depth: self._kept[split - depth] for depth in self._features.lower},
                mlp=partial(self._port.mlp_activations, split),
            )
        )
