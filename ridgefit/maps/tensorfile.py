"""safetensors files, read with suspicion: the header is judged whole before a byte of the body is touched.

The format: 8 bytes little-endian header length, a JSON header (tensor name -> dtype, shape, data_offsets, and
`__metadata__` of strings), then the tensors' bytes without gaps. Map folders allow five dtypes; a file that
holds another, or whose spans do not fit its shapes or its size, is refused by name.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ridgefit.errors import BadInput
from ridgefit.files import sha256_file

DTYPES = {
    "I8": torch.int8,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "F32": torch.float32,
}
_CODES = {dtype: code for code, dtype in DTYPES.items()}

# A map file of a thousand layers has a header below 1 MiB; anything larger is not one.
HEADER_LIMIT = 8 << 20
_RANK_LIMIT = 8
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,199}")
_MEND = "fetch or write the file again"


@dataclass(frozen=True)
class TensorEntry:
    """Where a tensor lies in its file: `start` and `stop` count from the first byte of the body."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


class TensorFile:
    """One safetensors file: its checked header now, its tensors when asked for.

    Args:
        path: the file.
        sha256: expected lower-case hex; checked once, before the first tensor is read.

    Raises:
        BadInput: the file is missing, or is not a well-formed safetensors file.
    """

    def __init__(self, path: Path, sha256: str | None = None) -> None:
        self.path = path
        self._expected = sha256
        raw, size = _read_header(path)
        self._body = 8 + len(raw)
        self.metadata, self.tensors = parse_header(raw, size, str(path))

    def read(self, name: str) -> Tensor:
        """A fresh tensor on the CPU.

        Raises:
            BadInput: no such tensor, the file changed since it was opened, or its hash is another.
        """
        if name not in self.tensors:
            raise BadInput(f"{self.path} holds no tensor {name!r}", _MEND)
        self._require_hash()
        entry = self.tensors[name]
        buffer = torch.empty(entry.stop - entry.start, dtype=torch.uint8)
        view = buffer.numpy().data
        try:
            with self.path.open("rb", buffering=0) as stream:
                stream.seek(self._body + entry.start)
                while view and (count := stream.readinto(view)):
                    view = view[count:]
        except OSError as error:
            raise BadInput(f"cannot read {self.path} ({error.strerror or error})") from error
        if view:
            raise BadInput(f"{self.path} ends within tensor {name!r}", _MEND)
        return buffer.view(entry.dtype).reshape(entry.shape)

    def _require_hash(self) -> None:
        if self._expected is None:
            return
        found = sha256_file(self.path)
        if found != self._expected:
            raise BadInput(
                f"{self.path} is not the file its manifest names (sha256 {found[:12]}…, "
                f"expected {self._expected[:12]}…)",
                _MEND,
            )
        self._expected = None


def dtype_code(dtype: torch.dtype) -> str:
    """The format's name of a torch dtype.

    Raises:
        ValueError: map files do not hold this dtype.
    """
    if dtype not in _CODES:
        raise ValueError(f"map files do not hold {dtype}")
    return _CODES[dtype]


def header_length(prefix: bytes, size: int, where: str) -> int:
    """Length of the JSON header that the first 8 bytes of a file of `size` bytes announce.

    Raises:
        BadInput: the file cannot hold it, or no map file has one as long.
    """
    length = int.from_bytes(prefix[:8], "little")
    if len(prefix) < 8 or length > size - 8:
        raise BadInput(f"{where} is truncated or not a safetensors file", _MEND)
    if length > HEADER_LIMIT:
        raise BadInput(f"the header of {where} claims {length} bytes, too many for maps", _MEND)
    return length


def parse_header(raw: bytes, size: int, where: str) -> tuple[dict[str, str], dict[str, TensorEntry]]:
    """Metadata and tensors that a header describes; the body is not needed, so the file may be elsewhere.

    Args:
        raw: the JSON header, without the 8 bytes before it.
        size: bytes of the whole file.
        where: the file's name, for the sentence.

    Raises:
        BadInput: the header does not describe a file of that size.
    """
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"the header of {where} is not valid JSON ({_first_line(error)})", _MEND) from error
    if not isinstance(header, dict) or not raw.startswith(b"{"):
        raise BadInput(f"the header of {where} is not a JSON object", _MEND)
    metadata = _metadata_of(header.pop("__metadata__", {}), where)
    tensors = {name: _entry_of(name, fields, where) for name, fields in header.items()}
    _require_tiled(tensors, size - 8 - len(raw), where)
    return metadata, tensors


def _read_header(path: Path) -> tuple[bytes, int]:
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            return stream.read(header_length(stream.read(8), size, str(path))), size
    except OSError as error:
        raise BadInput(f"cannot read {path} ({error.strerror or error})") from error


def _metadata_of(value: object, path: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise BadInput(f"__metadata__ of {path} is not a table of strings", _MEND)
    return value


def _entry_of(name: str, fields: object, path: str) -> TensorEntry:
    if not _NAME.fullmatch(name):
        raise BadInput(f"{path} holds a tensor with the unusable name {name[:60]!r}", _MEND)
    if not isinstance(fields, dict) or set(fields) != {"dtype", "shape", "data_offsets"}:
        raise BadInput(f"tensor {name!r} of {path} is not described by dtype, shape and data_offsets", _MEND)
    code, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(code, str) or code not in DTYPES:
        raise BadInput(f"tensor {name!r} of {path} has dtype {code!r}, maps use {', '.join(DTYPES)}", _MEND)
    if not _counts(shape) or len(shape) > _RANK_LIMIT:
        raise BadInput(f"tensor {name!r} of {path} has an unusable shape", _MEND)
    if not _counts(offsets) or len(offsets) != 2:
        raise BadInput(f"tensor {name!r} of {path} has unusable data_offsets", _MEND)
    start, stop = offsets
    if stop - start != math.prod(shape) * DTYPES[code].itemsize:
        raise BadInput(f"tensor {name!r} of {path} spans {stop - start} bytes, not its shape's", _MEND)
    return TensorEntry(DTYPES[code], tuple(shape), start, stop)


def _require_tiled(tensors: dict[str, TensorEntry], size: int, path: str) -> None:
    """Spans follow each other without gap or overlap and end where the file ends."""
    at = 0
    for name, entry in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)):
        if entry.start != at:
            raise BadInput(f"tensor {name!r} of {path} overlaps another or leaves a gap", _MEND)
        at = entry.stop
    if at != size:
        state = "truncated" if at > size else "followed by other bytes"
        raise BadInput(f"{path} is {state}: its tensors take {at} bytes, {size} are there", _MEND)


def _counts(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 48 for item in value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"duplicate key {twice[:60]!r}")
    return table


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:120] if str(error) else type(error).__name__
