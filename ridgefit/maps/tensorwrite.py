"""safetensors files, the same bytes on every run: fixed header order, one tensor in memory, whole or not."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ridgefit.files import writing
from ridgefit.maps.tensorfile import DTYPES, dtype_code

_RANK = {code: rank for rank, code in enumerate(DTYPES)}


@dataclass(frozen=True)
class TensorSpec:
    """A tensor that a file will hold."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the body that it takes."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def written_order(specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """The safetensors library's own order: wider dtypes first, then by name."""
    return sorted(specs, key=lambda spec: (-_RANK[dtype_code(spec.dtype)], spec.name))


def header_bytes(specs: Sequence[TensorSpec], metadata: Mapping[str, str]) -> bytes:
    """Length prefix and compact JSON header, space-padded to 8 bytes.

    The library writes `__metadata__` in hash order, which changes from run to run; here it keeps its order.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for spec in written_order(specs):
        header[spec.name] = {
            "dtype": dtype_code(spec.dtype),
            "shape": list(spec.shape),
            "data_offsets": [at, at + spec.nbytes],
        }
        at += spec.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_tensors(
    path: Path,
    specs: Sequence[TensorSpec],
    read: Callable[[str], Tensor],
    metadata: Mapping[str, str],
) -> str:
    """Write a file in one step and return its sha256.

    Args:
        path: the file to replace or create.
        specs: what it will hold; written in the library's order whatever their order here.
        read: gives a tensor by name, called once per tensor in written order.
        metadata: strings, in the order they shall have.

    Raises:
        BadInput: the disk is full or the folder cannot be written.
        ValueError: `read` gives another shape or dtype than announced.
    """
    digest = hashlib.sha256()
    with writing(path) as partial, partial.open("wb") as stream:

        def put(data: bytes | memoryview) -> None:
            stream.write(data)
            digest.update(data)

        put(header_bytes(specs, metadata))
        for spec in written_order(specs):
            tensor = read(spec.name)
            if (tensor.dtype, tuple(tensor.shape)) != (spec.dtype, spec.shape):
                raise ValueError(f"{spec.name}: {tensor.dtype} {tuple(tensor.shape)} is not {spec}")
            put(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
