"""Documents from files on this machine: JSONL, plain text, parquet, and folders of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ridgefit.corpus.documents import Columns, Document
from ridgefit.errors import BadInput

_BOM = b"\xef\xbb\xbf"
_LARGEST = 256 << 20  # bytes of one document; more than that is a file that somebody forgot to cut
_PARQUET_ROWS = 128  # rows decoded at a time


def local_files(path: Path) -> list[Path]:
    """Files that `path` stands for, in name order: itself, or all readable ones below a folder.

    Hidden files and `README.md` (a data set's card) are left out of folders.

    Raises:
        BadInput: nothing there, an empty file, an unknown suffix, a folder with nothing readable.
    """
    known = ", ".join(sorted(_READERS))
    if path.is_dir():
        files = [file for file in sorted(path.rglob("*")) if _is_data(file, path)]
        if not files:
            raise BadInput(f"folder {path} holds no {known} file", "name another folder or the files")
        return files
    if not path.exists():
        raise BadInput(f"{path} does not exist", "check the path, or write a Hub data set as 'hub:org/name'")
    if path.suffix.lower() not in _READERS:
        raise BadInput(f"{path} is none of {known}", "convert it or rename it")
    if path.stat().st_size == 0:
        raise BadInput(f"{path} is empty", "name a file with text in it")
    return [path]


def read_file(path: Path, columns: Columns) -> Iterator[Document]:
    """Stream the documents of one file that `local_files` returned.

    Raises:
        BadInput: naming the file and the line, row or byte that cannot be read.
    """
    try:
        yield from _READERS[path.suffix.lower()](path, columns)
    except OSError as error:
        raise BadInput(
            f"cannot read {path} ({_first_line(error)})", "check its permissions and fetch it again"
        ) from error


def _read_jsonl(path: Path, columns: Columns) -> Iterator[Document]:
    with path.open("rb") as stream:
        offset = 0
        number = 0
        while line := _limited(stream.readline, path):
            number += 1
            text = _decoded(line, offset, path)
            offset += len(line)
            if text.strip():
                where = f"{path} line {number}"
                yield columns.document(_parsed(text, where), where, f"{path.name}:{number}")


def _read_text(path: Path, _columns: Columns) -> Iterator[Document]:
    with path.open("rb") as stream:
        yield Document(text=_decoded(_limited(stream.read, path), 0, path), source=path.name)


def _read_parquet(path: Path, columns: Columns) -> Iterator[Document]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            names = table.schema_arrow.names
            columns.require_any(names, str(path))
            wanted = [n for n in (columns.text, columns.messages, "domain", "source") if n in names]
            number = 0
            for batch in table.iter_batches(batch_size=_PARQUET_ROWS, columns=wanted):
                for row in batch.to_pylist():
                    number += 1
                    yield columns.document(row, f"{path} row {number}", f"{path.name}:{number}")
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise BadInput(
            f"{path} is not a whole parquet file of UTF-8 text ({_first_line(error)})", "fetch it again"
        ) from error


_READERS: dict[str, Callable[[Path, Columns], Iterator[Document]]] = {
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".txt": _read_text,
    ".text": _read_text,
    ".md": _read_text,
    ".rst": _read_text,
    ".parquet": _read_parquet,
}


def _is_data(file: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
    return file.suffix.lower() in _READERS and not hidden and file.name != "README.md" and file.is_file()


def _limited(read: Callable[[int], bytes], path: Path) -> bytes:
    data = read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise BadInput(
            f"a document in {path} is larger than {_LARGEST >> 20} MiB", "cut it into several documents"
        )
    return data


def _decoded(data: bytes, offset: int, path: Path) -> str:
    start = len(_BOM) if offset == 0 and data.startswith(_BOM) else 0
    try:
        return data[start:].decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{path} is not UTF-8 at byte {offset + start + error.start}",
            "convert it, for instance with iconv -t UTF-8",
        ) from error


def _parsed(text: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{where} is not JSON ({_first_line(error)})", "mend or delete the line") from error
    if not isinstance(row, dict):
        raise BadInput(f"{where} is not a JSON object", "write one object with a text field on each line")
    return row


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
