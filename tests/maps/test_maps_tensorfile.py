"""Our safetensors writer against the library's, and our reader against files that lie."""

from __future__ import annotations

import hashlib
import json
import os
import random
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from ridgefit.errors import BadInput
from ridgefit.maps import TensorFile, TensorSpec, write_tensors
from ridgefit.maps import tensorfile as reader

DTYPES = (torch.int8, torch.float16, torch.bfloat16, torch.int32, torch.float32)


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    found = {}
    for number, dtype in enumerate(DTYPES * 2):
        values = torch.randn(number + 1, 3, generator=generator) * 50
        found[f"t.{number}"] = values.to(dtype)
    found["layer.9"], found["layer.10"] = torch.zeros(2, 2), torch.ones(1)
    found["empty"] = torch.zeros(0, 4)
    return found


def write(path: Path, content: dict[str, torch.Tensor], metadata: dict[str, str]) -> str:
    specs = [TensorSpec(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in content.items()]
    return write_tensors(path, specs, content.__getitem__, metadata)


@pytest.mark.parametrize("metadata", [{}, {"format": 'ridgefill-projector-1 é " \\ \n'}])
def test_bytes_equal_the_library(tmp_path: Path, metadata: dict[str, str]) -> None:
    """One metadata key is the most that the library writes in a stable order."""
    content = tensors()
    sha256 = write(tmp_path / "ours", content, metadata)
    save_file(content, tmp_path / "theirs", metadata or None)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert sha256 == hashlib.sha256((tmp_path / "ours").read_bytes()).hexdigest()


def test_metadata_stands_first_in_the_order_given(tmp_path: Path) -> None:
    metadata = {key: key.upper() for key in ("format", "name", "authors", "license", "doi")}
    path = tmp_path / "file"
    shas = {write(path, tensors(), metadata) for _ in range(3)}
    assert len(shas) == 1
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    assert length % 8 == 0
    header = raw[8 : 8 + length].decode()
    assert header.startswith(
        '{"__metadata__":{"format":"FORMAT","name":"NAME","authors":"AUTHORS","license":"LICENSE","doi":"DOI"},'
    )
    assert json.dumps(json.loads(header), separators=(",", ":")) == header.rstrip(" ")
    with safe_open(path, "pt") as file:
        assert file.metadata() == metadata


def test_mode_follows_the_umask_and_nothing_is_left_behind(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write(tmp_path / "file", tensors(), {})
    finally:
        os.umask(old)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640

    def fail(name: str) -> torch.Tensor:
        raise BadInput(f"no {name}")

    before = (tmp_path / "file").read_bytes()
    with pytest.raises(BadInput, match=r"no a"):
        write_tensors(tmp_path / "file", [TensorSpec("a", torch.int8, (1,))], fail, {})
    with pytest.raises(ValueError, match="is not TensorSpec"):
        write_tensors(tmp_path / "file", [TensorSpec("a", torch.int8, (1,))], lambda _: torch.zeros(2), {})
    assert (tmp_path / "file").read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


def test_reader_equals_the_library(tmp_path: Path) -> None:
    path = tmp_path / "file"
    save_file(tensors(), path, {"a": "b"})
    file = TensorFile(path)
    assert file.metadata == {"a": "b"}
    wanted = load_file(path)
    assert set(file.tensors) == set(wanted)
    for name, tensor in wanted.items():
        assert file.read(name).dtype == tensor.dtype
        assert torch.equal(file.read(name), tensor)
    with pytest.raises(BadInput, match="holds no tensor 'nothing'"):
        file.read("nothing")


def raw_file(path: Path, header: Any, body: bytes = b"\0" * 8, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + body)
    return path


def entry(**changes: Any) -> dict[str, Any]:
    return {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]} | changes


LIES = {
    "empty": (b"", "header of"),
    "array": (b"[]", "not a JSON object"),
    "space first": (b' {"a": 1}', "not a JSON object"),
    "not utf-8": (b'{"\xff": 1}', "not valid JSON"),
    "not json": (b"{", "not valid JSON"),
    "nan": (b'{"a": NaN}', "NaN is not JSON"),
    "deep": (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not valid JSON"),
    "huge number": (b'{"a":' + b"9" * 5000 + b"}", "not valid JSON"),
    "duplicate": (b'{"a":{"dtype":"I8","dtype":"F32"}}', "duplicate key 'dtype'"),
    "duplicate tensor": (b'{"a":1,"a":2}', "duplicate key 'a'"),
    "metadata": ({"__metadata__": {"a": 1}, "a": entry()}, "not a table of strings"),
    "metadata list": ({"__metadata__": [], "a": entry()}, "not a table of strings"),
    "slash": ({"../a": entry()}, "unusable name"),
    "backslash": ({"a\\b": entry()}, "unusable name"),
    "control": ({"a\n": entry()}, "unusable name"),
    "no name": ({"": entry()}, "unusable name"),
    "long name": ({"a" * 300: entry()}, "unusable name"),
    "number": ({"a": 5}, "not described"),
    "extra key": ({"a": entry(more=1)}, "not described"),
    "missing key": ({"a": {"dtype": "BF16", "shape": [2, 2]}}, "not described"),
    "float64": ({"a": entry(dtype="F64", data_offsets=[0, 32])}, "dtype 'F64'"),
    "dtype list": ({"a": entry(dtype=[])}, "dtype"),
    "shape text": ({"a": entry(shape="22")}, "unusable shape"),
    "shape float": ({"a": entry(shape=[2.0, 2])}, "unusable shape"),
    "shape bool": ({"a": entry(shape=[True, 4])}, "unusable shape"),
    "shape negative": ({"a": entry(shape=[-2, -2])}, "unusable shape"),
    "shape absurd": ({"a": entry(shape=[1 << 60, 1 << 60])}, "unusable shape"),
    "shape overflow": ({"a": entry(shape=[1 << 40, 1 << 24, 4])}, "spans 8 bytes"),
    "rank": ({"a": entry(shape=[1] * 9 + [4])}, "unusable shape"),
    "offsets short": ({"a": entry(data_offsets=[8])}, "unusable data_offsets"),
    "offsets negative": ({"a": entry(data_offsets=[-8, 0])}, "unusable data_offsets"),
    "offsets backwards": ({"a": entry(data_offsets=[8, 0])}, "spans -8 bytes"),
    "span": ({"a": entry(data_offsets=[0, 6])}, "spans 6 bytes"),
    "gap": ({"a": entry(data_offsets=[8, 16])}, "leaves a gap"),
    "overlap": ({"a": entry(), "b": entry(data_offsets=[4, 12])}, "overlaps another"),
    "same span": ({"a": entry(), "b": entry()}, "overlaps another"),
    "past the end": ({"a": entry(shape=[4, 4], data_offsets=[0, 32])}, "truncated"),
    "bytes after": ({"a": entry(shape=[1], data_offsets=[0, 2])}, "followed by other bytes"),
    "nothing described": ({}, "followed by other bytes"),
}


@pytest.mark.parametrize("case", LIES)
def test_lies_are_refused_by_file_name(tmp_path: Path, case: str) -> None:
    header, words = LIES[case]
    path = raw_file(tmp_path / "proj.L7.safetensors", header)
    with pytest.raises(BadInput, match=words) as caught:
        TensorFile(path)
    assert "proj.L7.safetensors" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_status == 2


def test_header_length_is_judged_before_it_is_read(tmp_path: Path) -> None:
    for length in (9, 1 << 40, (1 << 64) - 1):
        with pytest.raises(BadInput, match="truncated"):
            TensorFile(raw_file(tmp_path / "file", b"{}", b"", length))
    sparse = tmp_path / "sparse"
    with sparse.open("wb") as stream:
        stream.write(struct.pack("<Q", reader.HEADER_LIMIT + 1))
        stream.truncate(reader.HEADER_LIMIT + 100)
    with pytest.raises(BadInput, match="too many for maps"):
        TensorFile(sparse)
    with pytest.raises(BadInput, match="cannot read"):
        TensorFile(tmp_path / "absent")
    with pytest.raises(BadInput, match="cannot read"):
        TensorFile(tmp_path)


def test_every_truncation_and_many_flips(tmp_path: Path) -> None:
    """A file cut anywhere is refused; a flipped header byte is refused or still describes the file."""
    path = tmp_path / "file"
    write(path, {"a": torch.zeros(2, 3), "b": torch.ones(4, dtype=torch.int8)}, {"k": "v"})
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(BadInput):
            TensorFile(path)
    rng = random.Random(5)
    header = len(whole) - 28
    refused = 0
    for _ in range(1500):
        changed = bytearray(whole)
        changed[rng.randrange(header)] = rng.randrange(256)
        path.write_bytes(changed)
        try:
            file = TensorFile(path)
        except BadInput:
            refused += 1
            continue
        assert sum(file.read(name).nbytes for name in file.tensors) == 28
    assert refused > 1000


def test_body_is_not_touched_before_it_is_asked_for(tmp_path: Path) -> None:
    """8 GiB of holes open at once; a file that shrinks afterwards is refused, not a crash."""
    path = tmp_path / "file"
    size = 8 << 30
    text = json.dumps({"a": {"dtype": "I8", "shape": [size], "data_offsets": [0, size]}}).encode()
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        stream.truncate(8 + len(text) + size)
    assert TensorFile(path).tensors["a"].shape == (size,)
    write(path, {"a": torch.ones(4), "b": torch.ones(4)}, {})
    file = TensorFile(path)
    os.truncate(path, path.stat().st_size - 4)
    assert torch.equal(file.read("a"), torch.ones(4))
    with pytest.raises(BadInput, match="ends within tensor 'b'"):
        file.read("b")
    path.unlink()
    with pytest.raises(BadInput, match="cannot read"):
        file.read("a")


def test_expected_hash(tmp_path: Path) -> None:
    path = tmp_path / "file"
    sha256 = write(path, {"a": torch.ones(4)}, {})
    assert torch.equal(TensorFile(path, sha256).read("a"), torch.ones(4))
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    assert TensorFile(path).read("a").shape == (4,)
    with pytest.raises(BadInput, match="is not the file its manifest names"):
        TensorFile(path, sha256).read("a")
