"""The source file: one safetensors file per split, a BF16 tensor `layer.<L>` `[out, in + 1]` a late layer.

Rows are outputs, columns the inputs, the last column the bias. Layers are one run from the split layer to the
last. An optional tensor `final` has the same layout for the stream after the last layer. Where maps read more
than the split state (`features` in the header), a layer may have the state's columns alone, and an optional
tensor `bottleneck` `[rest, rank]` stands between the other features and the maps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from pydantic import ValidationError
from torch import Tensor

from ridgefit.errors import BadInput
from ridgefit.files import canonical_json
from ridgefit.maps.fingerprint import Fingerprint
from ridgefit.maps.mapset import LayerMap, MapSet, contiguous
from ridgefit.maps.names import features_text, parse_features_text
from ridgefit.maps.tensorfile import TensorFile
from ridgefit.maps.tensorwrite import TensorSpec, write_tensors
from ridgefit.maps.widths import Bottleneck, require_bottleneck, widths_of

_BOTTLENECK = "bottleneck"
_LAYER = re.compile(r"layer\.(0|[1-9][0-9]{0,4})")


def write_source(path: Path, maps: MapSet, metadata: Mapping[str, str] | None = None) -> str:
    """Write a split's maps and return the file's sha256; one layer is in memory at a time.

    Args:
        path: the file.
        maps: read layer by layer, in the order of the file (by name, so layer 10 before layer 9).
        metadata: strings between `split` and ours (`features` and, where known, `fingerprint`) in the header.

    Raises:
        BadInput: the file cannot be written, or a map holds values that are not finite.
    """
    specs = [
        TensorSpec(f"layer.{layer}", torch.bfloat16, (maps.out_width, maps.width(layer) + 1))
        for layer in maps.layers
    ]
    through = maps.bottleneck_weight()
    if through is not None:
        specs.append(TensorSpec(_BOTTLENECK, torch.bfloat16, tuple(through.shape)))
    if maps.final is not None:
        final = maps.final()
        specs.append(TensorSpec("final", torch.bfloat16, (final.weight.shape[0], final.weight.shape[1] + 1)))
    header = {"split": str(maps.split), **(metadata or {})}
    header["features"] = features_text(maps.features)
    if maps.fingerprint is not None:
        header["fingerprint"] = canonical_json(maps.fingerprint.model_dump(mode="json")).decode()

    def read(name: str) -> Tensor:
        if name == _BOTTLENECK and through is not None:
            return through
        if name == "final" and maps.final is not None:
            return _joined(maps.final())
        return _joined(maps.layer(int(name.removeprefix("layer."))))

    return write_tensors(path, specs, read, header)


def read_source(path: Path, sha256: str | None = None) -> MapSet:
    """Open a source file, ours or published; weights are read layer by layer later.

    Args:
        path: the file.
        sha256: expected hash, checked before the first layer is read.

    Raises:
        BadInput: not a well-formed source file: missing layers, other tensors, shapes that differ, another
            split in the metadata than the lowest layer, features this version does not know.
    """
    file = TensorFile(path, sha256)
    layers = {int(found[1]): name for name in file.tensors if (found := _LAYER.fullmatch(name))}
    other = sorted(set(file.tensors) - set(layers.values()) - {"final", _BOTTLENECK})
    if other:
        raise BadInput(f"{path} is not a source file of maps, it holds the tensor {other[0]!r}")
    run = contiguous(layers, str(path))
    for name, entry in file.tensors.items():
        bare = name == _BOTTLENECK
        if entry.dtype != torch.bfloat16 or len(entry.shape) != 2 or min(entry.shape) < 1:
            raise BadInput(f"tensor {name!r} of {path} is not a BF16 {'matrix' if bare else 'map'}")
        if not bare and entry.shape[1] < 2:
            raise BadInput(f"tensor {name!r} of {path} has no column but its bias")
    features = parse_features_text(file.metadata.get("features", "state:1"), str(path))
    through = _bottleneck(file)
    widths = widths_of(
        {layer: _without_bias(file.tensors[name].shape) for layer, name in layers.items()},
        features,
        through.shape if through else None,
        str(path),
    )
    stated = file.metadata.get("split", str(run.start))
    if stated != str(run.start):
        raise BadInput(f"{path} states split {stated[:20]!r} and its lowest layer is {run.start}")

    def reader(name: str) -> Callable[[], LayerMap]:
        return lambda: _parted(file.read(name))

    return MapSet(
        layers=run,
        in_width=widths.in_width,
        out_width=widths.out_width,
        read=lambda layer: reader(layers[layer])(),
        features=features,
        fingerprint=_fingerprint(file),
        source="source",
        path=path,
        final=reader("final") if "final" in file.tensors else None,
        info=file.metadata,
        bottleneck=through,
        state_only=widths.state_only,
    )


def _bottleneck(file: TensorFile) -> Bottleneck | None:
    if _BOTTLENECK not in file.tensors:
        return None
    shape = require_bottleneck(file.tensors[_BOTTLENECK].shape, str(file.path))
    return Bottleneck(shape, lambda: file.read(_BOTTLENECK))


def _without_bias(shape: tuple[int, ...]) -> tuple[int, int]:
    return shape[0], shape[1] - 1


def _fingerprint(file: TensorFile) -> Fingerprint | None:
    text = file.metadata.get("fingerprint")
    if text is None:
        return None
    try:
        return Fingerprint.model_validate_json(text)
    except ValidationError as error:
        raise BadInput(f"the fingerprint in {file.path} is not readable", "upgrade ridgefit") from error


def _joined(item: LayerMap) -> Tensor:
    return torch.cat([item.weight, item.bias[:, None]], 1)


def _parted(tensor: Tensor) -> LayerMap:
    return LayerMap(tensor[:, :-1].contiguous(), tensor[:, -1].contiguous())
