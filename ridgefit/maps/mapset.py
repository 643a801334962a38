"""The maps of one split: shapes and origin at once, each layer's weights when asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from ridgefit.errors import BadInput
from ridgefit.maps.fingerprint import Fingerprint
from ridgefit.maps.widths import Bottleneck, require_finite, widths_of

Layout = Literal["memory", "source", "format1-bf16", "format1-int8"]


class LayerMap(NamedTuple):
    """One late layer's map: predicted input = weight @ kept + bias.

    Attributes:
        weight: bf16 `[out, in]`.
        bias: bf16 `[out]`.
    """

    weight: Tensor
    bias: Tensor


class Int8Planes(NamedTuple):
    """One late layer's map as an int8 file holds it.

    Attributes:
        codes: int8 `[out, in]`.
        scale: bf16 `[out, in / 128]`.
        bias: bf16 `[out]`.
    """

    codes: Tensor
    scale: Tensor
    bias: Tensor


class Defaults(BaseModel):
    """Settings that the maps' author suggests."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tail: int | None = Field(None, ge=1)
    sink_rows: int = Field(0, ge=0)


@dataclass(frozen=True)
class MapSet:
    """Maps of every late layer of one split.

    Attributes:
        layers: late layers, split layer included.
        in_width: columns of what is kept of a row: its split state, then its other features, as they are or
            through the bottleneck.
        out_width: rows of a map, the width of a layer's input.
        read: gives one layer's map; may read a file.
        features: names of what a map reads, in order.
        fingerprint: the model they belong to, if the files say so.
        defaults: suggested tail and sink rows.
        source: on-disk layout they come from.
        path: the file or folder, if any.
        planes: gives one layer's int8 planes, for `format1-int8` only.
        final: gives the map of the stream after the last layer, where the files hold one.
        info: metadata or manifest of the files, as found.
        bottleneck: what the features other than the state go through, shared by the layers; None without.
        state_only: layers whose map reads the state alone, where others read more.
        extras: further files of the folder that maps do not need (corrections, row scores).
    """

    layers: range
    in_width: int
    out_width: int
    read: Callable[[int], LayerMap] = field(repr=False)
    features: tuple[str, ...] = ("state",)
    fingerprint: Fingerprint | None = None
    defaults: Defaults = field(default_factory=Defaults)
    source: Layout = "memory"
    path: Path | None = None
    planes: Callable[[int], Int8Planes] | None = field(default=None, repr=False)
    final: Callable[[], LayerMap] | None = field(default=None, repr=False)
    info: Mapping[str, Any] = field(default_factory=dict, repr=False)
    extras: tuple[str, ...] = ()
    bottleneck: Bottleneck | None = None
    state_only: tuple[int, ...] = ()

    @classmethod
    def of(cls, maps: Mapping[int, LayerMap], *, bottleneck: Tensor | None = None, **settings: Any) -> MapSet:
        """Maps that are already in memory, keyed by layer number.

        Args:
            maps: contiguous layers; weights of any dtype are rounded to bf16. Where the maps read more than
                the state, a layer's weight may have the state's columns only.
            bottleneck: `[rest_width, rank]`, rounded to bf16.
            settings: further attributes of `MapSet`.

        Raises:
            BadInput: layers are missing between the first and the last, or shapes do not go together.
        """
        layers = contiguous(maps, "the maps")
        shapes = {(tuple(item.weight.shape), tuple(item.bias.shape)) for item in maps.values()}
        if any(len(weight) != 2 or bias != weight[:1] for weight, bias in shapes):
            raise BadInput(f"the maps do not share one shape [out, in] with a bias [out]: {sorted(shapes)}")
        through = None if bottleneck is None else Bottleneck.of(bottleneck)
        widths = widths_of(
            {layer: (item.weight.shape[0], item.weight.shape[1]) for layer, item in maps.items()},
            settings.get("features", ("state",)),
            through.shape if through else None,
            "memory",
        )

        def read(layer: int) -> LayerMap:
            return LayerMap(maps[layer].weight.bfloat16(), maps[layer].bias.bfloat16())

        return cls(
            layers,
            widths.in_width,
            widths.out_width,
            read,
            bottleneck=through,
            state_only=widths.state_only,
            **settings,
        )

    @property
    def split(self) -> int:
        """The split layer: the first that has a map."""
        return self.layers.start

    @property
    def hidden(self) -> int:
        """Width of a layer's input."""
        return self.out_width

    def width(self, layer: int) -> int:
        """Columns of one layer's map: the first so many of what is kept of a row."""
        return self.out_width if layer in self.state_only else self.in_width

    def bottleneck_weight(self) -> Tensor | None:
        """bf16 `[rest_width, rank]` on the CPU, None without a bottleneck.

        Raises:
            BadInput: its file is corrupt or holds non-finite values.
        """
        return None if self.bottleneck is None else require_finite(self.bottleneck.read(), self._where)

    def layer(self, layer: int) -> LayerMap:
        """Map of layer number `layer`, bf16 weight `[out, width(layer)]` and bias `[out]` on the CPU.

        Raises:
            BadInput: there is no map of that layer, or its file is corrupt or holds non-finite values.
        """
        if layer not in self.layers:
            raise BadInput(
                f"there is no map of layer {layer}, only of {self.layers.start} to {self.layers.stop - 1}"
            )
        found = self.read(layer)
        if not all(bool(torch.isfinite(part).all()) for part in found):
            raise BadInput(f"the map of layer {layer}{self._where} holds values that are not finite")
        return found

    def check(self, identity: Mapping[str, Any]) -> list[str]:
        """Compare with the model they shall be applied to; see `Fingerprint.check`.

        Raises:
            BadInput: width, depth, layer kinds or tokenizer do not fit.
        """
        dims = Fingerprint.of(identity).dims
        for name, wanted in (("hidden", self.out_width), ("n_layers", self.layers.stop)):
            if dims.get(name, wanted) != wanted:
                raise BadInput(
                    f"the maps do not belong to this model: {name} is {wanted} in the maps "
                    f"and {dims[name]} in the model",
                    "use maps fitted on this model",
                )
        if self.fingerprint is None:
            return [f"maps{self._where} name no base model: only their shapes were checked"]
        return self.fingerprint.check(identity)

    @property
    def _where(self) -> str:
        return f" in {self.path}" if self.path else ""


def contiguous(layers: Mapping[int, object] | set[int], where: str) -> range:
    """The run of layer numbers, lowest first.

    Raises:
        BadInput: there are none, or some are missing between the first and the last.
    """
    if not layers:
        raise BadInput(f"{where} holds no map of any layer")
    run = range(min(layers), max(layers) + 1)
    missing = [layer for layer in run if layer not in layers]
    if missing:
        raise BadInput(f"{where} lacks the map of layer {missing[0]}", "fetch or write it again")
    return run
