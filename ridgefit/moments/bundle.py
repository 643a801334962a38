"""Moments on disk: several by key in one safetensors file of float64, the same bytes for the same sums.

A key is a path such as `s11.body` or `lead`; its tensors are named `<key>.<field>`. The header is written
here, in the order of the tensors, because the library's own order of metadata changes from run to run. Files
are written and merged one `[width, hidden]` block at a time, so they may be larger than memory.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ridgefit.errors import BadInput
from ridgefit.files import canonical_json, writing
from ridgefit.moments.moments import MergeStep, Moments, merge_blocks, shapes_of

FORMAT = "ridgefit-moments-1"
_HEADER_LIMIT = 1 << 20
_BYTES = 8
_FIX = "capture again into a new folder"


@dataclass(frozen=True)
class Shape:
    """Dimensions and number of rows of one bundled `Moments`."""

    n: int
    width: int
    layers: int
    hidden: int

    @classmethod
    def of(cls, moments: Moments) -> Shape:
        """Shape of moments in memory."""
        return cls(moments.n, moments.width, moments.layers, moments.hidden)

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Field name to tensor shape, in the order of files."""
        return shapes_of(self.width, self.layers, self.hidden)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return _BYTES * sum(math.prod(shape) for shape in self.tensors().values())


class BundleFile:
    """A bundle on disk: checked header now, tensors when asked for.

    Args:
        path: the file.

    Raises:
        BadInput: it is missing, cut short, or not a bundle of moments.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.shapes: dict[str, Shape] = {}
        self.extra: dict[str, Any] = {}
        self._starts: dict[str, int] = {}
        try:
            self._parse()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise BadInput(f"{path} is not a whole file of moments ({reason})", _FIX) from error

    def moments(self, key: str) -> Moments:
        """All tensors of one key, on the CPU.

        Raises:
            BadInput: there is no such key.
        """
        shape = self._shape(key)
        tensors = (self._read(f"{key}.{field}", 0, size) for field, size in shape.tensors().items())
        return Moments(shape.n, *tensors)

    def small(self, key: str) -> Moments:
        """`moments` with the large tensors `sxx` and `sxy` left on the meta device."""
        shape = self._shape(key)
        moments = Moments.zeros(shape.width, shape.layers, shape.hidden, meta=True)
        moments.n = shape.n
        for field in ("mean_x", "mean_y", "syy"):
            setattr(moments, field, self._read(f"{key}.{field}", 0, shape.tensors()[field]))
        return moments

    def block(self, key: str, field: str, layer: int = 0) -> Tensor:
        """`sxx`, or one layer of `sxy`."""
        size = self._shape(key).tensors()[field][-2:]
        return self._read(f"{key}.{field}", layer * math.prod(size), size)

    def _shape(self, key: str) -> Shape:
        if key not in self.shapes:
            raise BadInput(f"{self.path} holds no moments {key!r} (it holds {', '.join(self.shapes)})")
        return self.shapes[key]

    def _parse(self) -> None:
        size = self.path.stat().st_size
        with self.path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if not 2 <= length <= min(_HEADER_LIMIT, size - 8):
                raise ValueError("it is cut short or has no header")
            raw = stream.read(length)
        about = json.loads(json.loads(raw)["__metadata__"]["ridgefit"])
        if about["format"] != FORMAT:
            raise ValueError(f"its format is {about['format']!r}, this ridgefit reads {FORMAT!r}")
        self.shapes = {key: Shape(*(int(part) for part in about["moments"][key])) for key in about["keys"]}
        self.extra = about["extra"]
        header = _header(self.shapes, self.extra)
        if header[8:] != raw:
            raise ValueError("its header does not describe its moments")
        at = len(header)
        for key, shape in self.shapes.items():
            for field, dimensions in shape.tensors().items():
                self._starts[f"{key}.{field}"] = at
                at += _BYTES * math.prod(dimensions)
        if at != size:
            raise ValueError(f"it should have {at} bytes and has {size}")

    def _read(self, name: str, skip: int, shape: tuple[int, ...]) -> Tensor:
        out = torch.empty(shape, dtype=torch.float64)
        view = out.view(-1).numpy().data.cast("B")
        with self.path.open("rb", buffering=0) as stream:
            stream.seek(self._starts[name] + _BYTES * skip)
            while view and (count := stream.readinto(view)):
                view = view[count:]
        if view:
            raise BadInput(f"{self.path} ends within {name}", _FIX)
        return out


def write_bundle(path: Path, moments: Mapping[str, Moments], extra: Mapping[str, Any]) -> str:
    """Write moments in one step.

    Args:
        path: the file to replace or create.
        moments: by key, on any device; written one block at a time.
        extra: JSON values to keep with them.

    Returns:
        Lower-case hex sha256 of the file.

    Raises:
        BadInput: the disk is full or the folder cannot be written.
    """

    def blocks() -> Iterator[Tensor]:
        for part in moments.values():
            for field, tensor in part.tensors():
                yield from tensor if field == "sxy" else (tensor,)

    return _write(path, {key: Shape.of(part) for key, part in moments.items()}, extra, blocks())


def merge_bundles(
    path: Path,
    first: BundleFile,
    second: BundleFile | None,
    extra: Mapping[str, Any],
    *,
    keys: Mapping[str, str] | None = None,
) -> str:
    """Merge two files into a third, with the bits that `Moments.merge_` gives and the memory of two blocks.

    Args:
        path: the file to write; neither of the two.
        first: the left one.
        second: the right one; None copies the left one.
        extra: JSON values to keep with the result.
        keys: key in the result -> key in the files; all keys under their own names if absent.

    Returns:
        Lower-case hex sha256 of the result.

    Raises:
        BadInput: the files do not hold the same sums, or the result cannot be written.
    """
    names = dict(keys) if keys is not None else {key: key for key in first.shapes}
    shapes = {}
    for name, key in names.items():
        shape = first.shapes.get(key)
        added = shape if second is None else second.shapes.get(key)
        if shape is None or added is None or shape.tensors() != added.tensors():
            raise BadInput(f"{path.name} cannot be made: {key!r} has not the same shape in its parts", _FIX)
        shapes[name] = shape if second is None else Shape(shape.n + added.n, *_dimensions(shape))

    def blocks() -> Iterator[Tensor]:
        for name, key in names.items():
            if second is None:
                left = first.small(key)
                yield from (left.mean_x, left.mean_y, first.block(key, "sxx"))
                yield from (first.block(key, "sxy", layer) for layer in range(shapes[name].layers))
                yield left.syy
                continue
            step = MergeStep(first.small(key), second.small(key))
            yield from (step.mean_x, step.mean_y)
            yield merge_blocks(first.block(key, "sxx"), second.block(key, "sxx"), step.weighted_x, step.dx)
            for layer in range(shapes[name].layers):
                part = first.block(key, "sxy", layer), second.block(key, "sxy", layer)
                yield merge_blocks(*part, step.weighted_x, step.dy[layer])
            yield step.syy

    return _write(path, shapes, extra, blocks())


def _dimensions(shape: Shape) -> tuple[int, int, int]:
    return shape.width, shape.layers, shape.hidden


def _header(shapes: Mapping[str, Shape], extra: Mapping[str, Any]) -> bytes:
    """Length and JSON, padded so that the tensors start at a multiple of 8."""
    about = {
        "format": FORMAT,
        "keys": list(shapes),
        "moments": {key: [shape.n, *_dimensions(shape)] for key, shape in shapes.items()},
        "extra": dict(extra),
    }
    table: dict[str, Any] = {"__metadata__": {"ridgefit": canonical_json(about).decode()}}
    at = 0
    for key, shape in shapes.items():
        for field, dimensions in shape.tensors().items():
            stop = at + _BYTES * math.prod(dimensions)
            table[f"{key}.{field}"] = {"dtype": "F64", "shape": list(dimensions), "data_offsets": [at, stop]}
            at = stop
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _write(
    path: Path, shapes: Mapping[str, Shape], extra: Mapping[str, Any], blocks: Iterator[Tensor]
) -> str:
    digest = hashlib.sha256()
    with writing(path) as partial, partial.open("wb") as stream:
        header = _header(shapes, extra)
        stream.write(header)
        digest.update(header)
        for block in blocks:
            data = block.detach().cpu().contiguous().view(-1).numpy().data.cast("B")
            stream.write(data)
            digest.update(data)
    return digest.hexdigest()
