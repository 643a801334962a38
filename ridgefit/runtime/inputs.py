"""Where a late layer's input comes from for filled rows: the split state, or a map of it (paper table 3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from ridgefit.features import FeatureList
from ridgefit.maps.int8 import dequantize
from ridgefit.maps.mapset import MapSet
from ridgefit.models import Port

Placement = Literal["device", "host"]
Weights = tuple[Tensor, Tensor]


class LateInputs(Protocol):
    """Gives late layers' inputs for filled rows."""

    def read(self, state: Tensor, valid: Tensor) -> Tensor:
        """What is kept of the split state `[batch, rows, hidden]` for all late layers."""

    def predict(self, layer: int, kept: Tensor) -> Tensor:
        """Input `[batch, rows, hidden]` of `layer`, from what `read` kept of those rows."""


class IdentityInputs:
    """Every late layer gets the split state (POP's fill)."""

    def read(self, state: Tensor, valid: Tensor) -> Tensor:
        """The state."""
        del valid
        return state

    def predict(self, layer: int, kept: Tensor) -> Tensor:
        """The state."""
        del layer
        return kept


class MappedInputs:
    """Every late layer gets its own linear map of the features of the split state (paper section 2.2).

    Args:
        features: what the maps read.
        weights: gives a layer's weight `[hidden, width]` and bias `[hidden]` where the layer is.
    """

    def __init__(self, features: FeatureList, weights: Callable[[int], Weights]) -> None:
        self._features = features
        self._weights = weights

    def read(self, state: Tensor, valid: Tensor) -> Tensor:
        """Features of every row, computed once for all layers."""
        return self._features.compute(state, valid)

    def predict(self, layer: int, kept: Tensor) -> Tensor:
        """One matrix product with the bias in its epilogue."""
        weight, bias = self._weights(layer)
        return F.linear(kept, weight, bias)


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


def everything_valid(state: Tensor) -> Tensor:
    """`[batch, rows]` mask of a prompt without padding."""
    return torch.ones(state.shape[:2], dtype=torch.bool, device=state.device)
