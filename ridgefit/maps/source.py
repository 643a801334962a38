"""The source file: one safetensors file per split, a BF16 tensor `layer.<L>` `[out, in + 1]` a late layer.

Rows are outputs, columns the inputs, the last column the bias. Layers are one run from the split layer to the
last. An optional tensor `final` has the same layout for the stream after the last layer.
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
from ridgefit.maps.mapset import READABLE_FEATURES, LayerMap, MapSet, contiguous, require_features
from ridgefit.maps.tensorfile import TensorFile
from ridgefit.maps.tensorwrite import TensorSpec, write_tensors

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
    shape = (maps.out_width, maps.in_width + 1)
    specs = [TensorSpec(f"layer.{layer}", torch.bfloat16, shape) for layer in maps.layers]
    if maps.final is not None:
        final = maps.final()
        specs.append(TensorSpec("final", torch.bfloat16, (final.weight.shape[0], final.weight.shape[1] + 1)))
    header = {"split": str(maps.split), **(metadata or {})}
    header["features"] = ",".join(f"{name}:{READABLE_FEATURES[name]}" for name in maps.features)
    if maps.fingerprint is not None:
        header["fingerprint"] = canonical_json(maps.fingerprint.model_dump(mode="json")).decode()

    def read(name: str) -> Tensor:
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
    other = sorted(set(file.tensors) - set(layers.values()) - {"final"})
    if other:
        raise BadInput(f"{path} is not a source file of maps, it holds the tensor {other[0]!r}")
    run = contiguous(layers, str(path))
    shapes = {file.tensors[name].shape for name in layers.values()}
    shape = next(iter(shapes))
    if len(shapes) != 1 or len(shape) != 2 or min(shape) < 1 or shape[1] < 2:
        raise BadInput(f"the maps in {path} do not share one shape [out, in + 1]: {sorted(shapes)}")
    for name, entry in file.tensors.items():
        if entry.dtype != torch.bfloat16 or len(entry.shape) != 2 or entry.shape[1] < 2:
            raise BadInput(f"tensor {name!r} of {path} is not a BF16 map")
    stated = file.metadata.get("split", str(run.start))
    if stated != str(run.start):
        raise BadInput(f"{path} states split {stated[:20]!r} and its lowest layer is {run.start}")

    def reader(name: str) -> Callable[[], LayerMap]:
        return lambda: _parted(file.read(name))

    return MapSet(
        layers=run,
        in_width=shape[1] - 1,
        out_width=shape[0],
        read=lambda layer: reader(layers[layer])(),
        features=_features(file),
        fingerprint=_fingerprint(file),
        source="source",
        path=path,
        final=reader("final") if "final" in file.tensors else None,
        info=file.metadata,
    )


def _features(file: TensorFile) -> tuple[str, ...]:
    """Published files state none and read the split state."""
    pairs = (item.partition(":") for item in file.metadata.get("features", "state:1").split(","))
    return require_features(
        {name: int(version) if re.fullmatch("[0-9]{1,4}", version) else 0 for name, _, version in pairs},
        str(file.path),
    )


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
