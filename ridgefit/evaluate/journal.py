"""results.jsonl: a header line, then one line per sample and arm, appended while the evaluation runs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from ridgefit.errors import BadInput
from ridgefit.files import canonical_json, require_unused

RESULTS = "results.jsonl"
FORMAT = "ridgefit-results-1"


class Key(NamedTuple):
    """What makes a finished line reusable: the same task settings, sample, prompt and arm."""

    task_sha256: str
    sample: str
    prompt_sha256: str
    arm: str


class Journal:
    """The results file of one evaluation, opened for appending.

    A line is written and flushed to disk in one go. What a kill leaves of an unfinished last line is
    cut off when the file is opened again. The `identity` of the header must then be the same.

    Args:
        folder: output folder, created if absent.
        identity: everything that decides the results; compared field by field on reopening.
        context: kept in the header for the reader, not compared (paths, machine, threads).

    Raises:
        BadInput: the folder holds other things or results of another identity (the field is named), or
            a line before the last one is damaged.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        self.path = folder / RESULTS
        self.records: dict[Key, dict[str, Any]] = {}
        self.session = 0
        if self.path.exists():
            self._reopen(json.loads(json.dumps(identity)))
        else:
            require_results_folder(folder)
            folder.mkdir(parents=True, exist_ok=True)
        self._handle = _open(self.path)
        try:
            if self.session == 0:
                self._write({"kind": "header", "format": FORMAT, "identity": identity, "context": context})
            else:
                self._write({"kind": "resumed", "session": self.session, "context": context})
        except BaseException:
            os.close(self._handle)
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._handle)
        # Settings that the first sample refuses will be changed, and then its lines would be in the way.
        first = len({(key.task_sha256, key.sample) for key in self.records}) <= 1
        if isinstance(error, BadInput) and self.session == 0 and first:
            self.path.unlink(missing_ok=True)

    def append(self, key: Key, body: Mapping[str, Any]) -> None:
        """Add one line; a later line with the same key replaces it.

        Raises:
            BadInput: the disk is full or the file cannot be written.
        """
        record = {"kind": "sample", **key._asdict(), "session": self.session, **body}
        self._write(record)
        self.records[key] = record

    def _write(self, record: Mapping[str, Any]) -> None:
        line = canonical_json(record) + b"\n"
        try:
            # A short write can only be the last line, which the next opening drops.
            written = os.write(self._handle, line)
            if written != len(line):
                raise OSError("the disk is full")
            os.fsync(self._handle)
        except OSError as error:
            raise BadInput(
                f"cannot write {self.path} ({error.strerror or error})",
                "free disk space and run the same command again",
            ) from error

    def _reopen(self, identity: Any) -> None:
        whole = _drop_torn_line(self.path)
        lines = whole.splitlines()
        if not lines:
            return
        records = [self._parsed(number, line) for number, line in enumerate(lines, 1)]
        header = records[0]
        if header.get("format") != FORMAT or "identity" not in header:
            raise BadInput(f"{self.path} is not a results file of ridgefit", "choose another --out")
        require_same(self.path.parent, header["identity"], identity)
        for record in records[1:]:
            if record.get("kind") == "sample":
                self.records[Key(*(record[name] for name in Key._fields))] = record
        self.session = 1 + sum(record.get("kind") == "resumed" for record in records)

    def _parsed(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            raise BadInput(
                f"line {number} of {self.path} is damaged", "remove the line, or the folder to start over"
            )
        return record


def require_same(folder: Path, there: Any, now: Any) -> None:
    """Refuse to go on in a folder whose results were made under another identity.

    Args:
        folder: of the results.
        there: their identity, as JSON.
        now: that of what would join them, as JSON.

    Raises:
        BadInput: naming the first field that differs, and both values.
    """
    if difference := first_difference(there, now):
        field, before, after = difference
        raise BadInput(
            f"{folder} holds results with another {field} ({_short(before)} there, {_short(after)} now)",
            "choose another --out, or remove the folder to start over",
        )


def first_difference(there: Any, now: Any, path: str = "") -> tuple[str, Any, Any] | None:
    """The first field in which two JSON values differ, as a dotted name, with both values."""
    if isinstance(there, dict) and isinstance(now, dict):
        # In the order of `now`, which puts causes (settings, model) before effects (prompts).
        for name in [*now, *(name for name in there if name not in now)]:
            found = first_difference(there.get(name), now.get(name), f"{path}.{name}" if path else name)
            if found:
                return found
        return None
    if isinstance(there, list) and isinstance(now, list) and len(there) == len(now):
        for index, (left, right) in enumerate(zip(there, now, strict=True)):
            found = first_difference(left, right, f"{path}[{index}]")
            if found:
                return found
        return None
    return None if there == now and type(there) is type(now) else (path, there, now)


def _drop_torn_line(path: Path) -> bytes:
    """The file without an unfinished or unreadable last line, on disk too."""
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    start = whole.rfind(b"\n", 0, -1) + 1
    try:
        json.loads(whole[start:] or b"{}")
    except ValueError:
        whole = whole[:start]
    if len(whole) != len(data):
        with path.open("r+b") as stream:
            stream.truncate(len(whole))
    return whole


def require_results_folder(folder: Path) -> None:
    """Refuse a folder that holds anything but results, before a lock or a line is put into it.

    Raises:
        BadInput: it does.
    """
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if RESULTS not in names and names != {".lock"}:
        require_unused(folder)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    except OSError as error:
        raise BadInput(f"cannot write {path} ({error.strerror})", "choose another --out") from error


def _short(value: Any) -> str:
    text = "nothing" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
