"""Corrections of filled keys and values, measured on every request from its own tail (RidgeFill sections 2.3
and 6.6, appendix I.1). Each removes an average error; none predicts a row's own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ridgefit.errors import BadInput
from ridgefit.models import Port, Written
from ridgefit.models.port import Rotary

TINY = 1e-12


@dataclass(frozen=True)
class Corrections:
    """Which corrections are on.

    Attributes:
        value_rescale: multiply each KV head's filled values by the mean ratio of exact to predicted norm.
        key_rescale: the same for keys; little is left to do where keys are normalised.
        key_shift: add each KV head's mean error to its filled keys, before rotary.
        key_temperature: multiply each KV head's filled keys by the slope of exact on predicted scores. The
            paper's is one per query head; one per KV head is the finest that a cache can hold.
        rows: first tail rows that are measured; fewer where the tail is shorter.
    """

    value_rescale: bool = False
    key_rescale: bool = False
    key_shift: bool = False
    key_temperature: bool = False
    rows: int = 512

    def __post_init__(self) -> None:
        """Refuse a measurement of nothing."""
        if self.rows < 1:
            raise BadInput(f"corrections measured on {self.rows} tail rows measure nothing", "use 512")

    @property
    def any(self) -> bool:
        """Whether one is on."""
        return self.value_rescale or self.key_rescale or self.key_shift or self.key_temperature

    @property
    def label(self) -> str:
        """What is on, in words."""
        names = {
            "value rescale": self.value_rescale,
            "key rescale": self.key_rescale,
            "key shift": self.key_shift,
            "key temperature": self.key_temperature,
        }
        return ", ".join(name for name, on in names.items() if on)


@dataclass(frozen=True)
class Amendment:
    """What the corrections of one layer do to its filled rows.

    Attributes:
        value_factor: fp32 `[batch, kv_heads]`, 1 where nothing is done.
        key_factor: the same for keys.
        key_shift: fp32 `[batch, kv_heads, head_dim]` added after the factor, before rotary; None for nothing.
    """

    value_factor: Tensor
    key_factor: Tensor
    key_shift: Tensor | None = None

    def values(self, values: Tensor) -> Tensor:
        """Filled values `[batch, kv_heads, rows, head_dim]` as they should be."""
        return (values * self.value_factor[..., None, None]).to(values.dtype)

    def keys(self, port: Port, layer: int, keys: Tensor, rotary: Rotary) -> Tensor:
        """Filled keys after rotary `[batch, kv_heads, rows, head_dim]` as they should be.

        A factor commutes with the rotation, and the rotated shift is added.
        """
        found = keys * self.key_factor[..., None, None]
        if self.key_shift is not None:
            shift = self.key_shift.to(keys.dtype)[:, :, None].expand(keys.shape)
            found = found + port.rotate(layer, shift, rotary)
        return found.to(keys.dtype)


def measured(
    corrections: Corrections,
    port: Port,
    layer: int,
    true: Tensor,
    predicted: Tensor,
    rotary: Rotary,
    valid: Tensor | None = None,
) -> Amendment:
    """Compare what `layer` writes for some rows from their own input and from the map's.

    Rescales come first, then the shift of what they leave, then the temperature of what that leaves.

    Args:
        corrections: which are wanted.
        port: the model.
        layer: layer number.
        true: `[batch, rows, hidden]` entering the layer.
        predicted: what the map says of the same rows.
        rotary: cosines and sines of these rows.
        valid: `[batch, rows]` bool, False for padding.
    """
    exact, filled = port.written(layer, true), port.written(layer, predicted)
    weight = torch.ones(true.shape[:2], device=true.device) if valid is None else valid.float()
    keys = filled.keys.float()
    ones = keys.new_ones(keys.shape[:2])
    value_factor = _ratio(exact.values, filled.values, weight) if corrections.value_rescale else ones
    key_factor = _ratio(exact.keys, filled.keys, weight) if corrections.key_rescale else ones
    keys = keys * key_factor[..., None, None]
    shift = None
    if corrections.key_shift:
        shift = _mean(exact.keys.float() - keys, weight)
        keys = keys + shift[:, :, None]
    if corrections.key_temperature:
        queries = port.queries(layer, true, rotary)
        slope = _slope(port, layer, queries, Written(exact.keys, keys), rotary, weight)
        key_factor = key_factor * slope
        shift = None if shift is None else shift * slope[..., None]
    return Amendment(value_factor, key_factor, shift)


def _mean(rows: Tensor, weight: Tensor) -> Tensor:
    """Mean over rows `[batch, heads, rows, width]` -> `[batch, heads, width]`."""
    total = weight.sum(dim=1).clamp(min=1)[:, None, None]
    return (rows * weight[:, None, :, None]).sum(dim=2) / total


def _ratio(exact: Tensor, filled: Tensor, weight: Tensor) -> Tensor:
    """Mean over rows of exact norm / predicted norm, `[batch, heads]`; 1 where no row is measured."""
    ratio = exact.float().norm(dim=-1) / filled.float().norm(dim=-1).clamp(min=TINY)
    found = _mean(ratio[..., None], weight)[..., 0]
    return torch.where(weight.sum(dim=1)[:, None] > 0, found, torch.ones_like(found))


def _slope(port: Port, layer: int, queries: Tensor, pair: Written, rotary: Rotary, weight: Tensor) -> Tensor:
    """Least-squares slope of exact on predicted scores, `[batch, kv_heads]`.

    Each query's scores are centred over the rows it sees, since a softmax does not see their mean. `pair`
    holds exact and predicted keys, before rotary.
    """
    exact, filled = (port.rotate(layer, part.to(queries.dtype), rotary).float() for part in pair)
    batch, kv_heads, rows, width = exact.shape
    grouped = queries.float().reshape(batch, kv_heads, -1, rows, width)
    seen = torch.ones(rows, rows, device=exact.device).tril() * weight[:, None, :] * weight[:, :, None]
    seen = seen[:, None, None]
    count = seen.sum(dim=-1, keepdim=True).clamp(min=1)

    def centred(keys: Tensor) -> Tensor:
        scores = grouped @ keys[:, :, None].transpose(-1, -2)
        return (scores - (scores * seen).sum(dim=-1, keepdim=True) / count) * seen

    true, predicted = centred(exact), centred(filled)
    above = (true * predicted).sum(dim=(2, 3, 4), dtype=torch.float64)
    below = (predicted * predicted).sum(dim=(2, 3, 4), dtype=torch.float64)
    return torch.where(below > TINY, above / below.clamp(min=TINY), torch.ones_like(below)).float()
