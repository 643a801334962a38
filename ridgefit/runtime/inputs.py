"""Where a late layer's input comes from for filled rows: the split state, or a map of it (paper table 3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from ridgefit.errors import BadInput
from ridgefit.features import FeatureCarry, FeatureInputs, FeatureList, SplitShape
from ridgefit.maps.int8 import dequantize
from ridgefit.maps.mapset import MapSet
from ridgefit.models import Port

Placement = Literal["device", "host"]
Weights = tuple[Tensor, Tensor]


class LateInputs(Protocol):
    """Gives late layers' inputs for filled rows."""

    @property
    def features(self) -> FeatureList:
        """What is read of a row."""

    def read(self, inputs: FeatureInputs, carry: FeatureCarry | None = None) -> Tensor:
        """What is kept of some rows `[batch, rows, kept]` for all late layers.

        Args:
            inputs: what the exact lower layers made of these rows.
            carry: of a prompt that comes in parts; changed.
        """

    def predict(self, layer: int, kept: Tensor) -> Tensor:
        """Input `[batch, rows, hidden]` of `layer`, from what `read` kept of those rows."""


class IdentityInputs:
    """Every late layer gets the split state (POP's fill)."""

    features = FeatureList(("state",))

    def read(self, inputs: FeatureInputs, carry: FeatureCarry | None = None) -> Tensor:
        """The state."""
        del carry
        return inputs.state

    def predict(self, layer: int, kept: Tensor) -> Tensor:
        """The state."""
        del layer
        return kept


class MappedInputs:
    """Every late layer gets its own linear map of the features of the split state (paper section 2.2).

    Args:
        features: what the maps read.
        weights: gives a layer's weight `[hidden, columns]` and bias `[hidden]` where the layer is; a weight
            reads the first columns of what is kept, the state's alone or all.
        bottleneck: `[rest, rank]` on the split layer's device, which all features but the state go through.
    """

    def __init__(
        self, features: FeatureList, weights: Callable[[int], Weights], bottleneck: Tensor | None = None
    ) -> None:
        self.features = features
        self._weights = weights
        self._bottleneck = bottleneck

    def read(self, inputs: FeatureInputs, carry: FeatureCarry | None = None) -> Tensor:
        """Features of every row, computed once for all layers; the state alone is not copied."""
        state, *rest = self.features.parts(inputs, carry)
        if not rest:
            return state
        if self._bottleneck is not None:
            rest = [torch.cat(rest, dim=-1) @ self._bottleneck]
        return torch.cat((state, *rest), dim=-1)

    def predict(self, layer: int, kept: Tensor) -> Tensor:
        """One matrix product with the bias in its epilogue."""
        weight, bias = self._weights(layer)
        if weight.shape[1] == kept.shape[2]:
            return F.linear(kept, weight, bias)
        # The product takes rows at a stride, so columns are cut without a copy; F.linear would make one.
        rows = kept[..., : weight.shape[1]].flatten(0, 1)
        return torch.addmm(bias, rows, weight.T).view(*kept.shape[:2], len(weight))


def place_bottleneck(maps: MapSet, port: Port) -> Tensor | None:
    """The bottleneck in the model's dtype beside the split layer, which it is needed at once per prompt."""
    found = maps.bottleneck_weight()
    return None if found is None else found.to(port.layer_device(maps.split), port.dtype)


def place(maps: MapSet, port: Port, placement: Placement) -> Callable[[int], Weights]:
    """Put maps where they will be used.

    bf16 maps are converted to the model's dtype once. int8 maps stay int8 and are multiplied out in fp32,
    then rounded to the model's dtype, each time a layer needs them.

    Args:
        maps: one split's maps.
        port: the model.
        placement: "device" keeps every map beside its layer; "host" copies one map at a time from host
            memory (pinned where CUDA will read it).

    Returns:
        Gives weight and bias of a layer on that layer's device.
    """
    dtype = port.dtype
    parts: dict[int, tuple[Tensor, ...]] = {}
    for layer in maps.layers:
        found: tuple[Tensor, ...]
        if maps.planes is None:
            found = tuple(part.to(dtype) for part in maps.layer(layer))
        else:
            found = tuple(maps.planes(layer))
        device = port.layer_device(layer)
        if placement == "device":
            found = tuple(part.to(device) for part in found)
        elif device.type == "cuda":
            found = tuple(part.pin_memory() for part in found)
        parts[layer] = found

    def weights(layer: int) -> Weights:
        device = port.layer_device(layer)
        here = [part.to(device, non_blocking=True) for part in parts[layer]]
        if len(here) == 2:
            return here[0], here[1]
        codes, scale, bias = here
        return dequantize(codes, scale).to(dtype), bias.to(dtype)

    return weights


def require_widths(maps: MapSet, port: Port) -> None:
    """Refuse maps whose columns are not those that their features have in this model.

    Raises:
        BadInput: with both widths; or the model lacks a feature at this split.
    """
    names = list(maps.features)
    width = FeatureList(names).width(SplitShape.of(port, maps.split))
    rest = width - port.hidden
    if maps.bottleneck is not None and maps.bottleneck.shape[0] != rest:
        raise BadInput(
            f"the maps' bottleneck reads {maps.bottleneck.shape[0]} columns and their features "
            f"{names[1:]} have {rest} in this model",
            "use maps fitted on this model",
        )
    wanted = width if maps.bottleneck is None else port.hidden + maps.bottleneck.rank
    if maps.in_width != wanted:
        raise BadInput(
            f"the maps read {maps.in_width} columns and their features {names} have {wanted} in this model",
            "use maps fitted on this model",
        )
