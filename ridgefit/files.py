"""Files that are either whole or absent: atomic writes, folders in use, hashes, free space, references."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ridgefit.errors import BadInput

_BLOCK = 1 << 20
_SPARE = 64 << 20  # left free on a disk beside what is about to be written

# What a repository's name does not end in, and a file's does.
_SUFFIXES = (
    ".safetensors",
    ".json",
    ".jsonl",
    ".gguf",
    ".bin",
    ".pt",
    ".pth",
    ".npz",
    ".yaml",
    ".yml",
    ".txt",
    ".zip",
)


def names_a_path(text: str) -> bool:
    """Whether a reference means a place on this machine, there or not, since no Hub repository is called so.

    It begins like a path (`.`, `/`, `~`), has another number of slashes than `org/name`, what follows an @
    not counted, or ends like a file.
    """
    name = text.partition("@")[0]
    return (
        text.startswith((".", "/", "~")) or name.count("/") != 1 or text.lower().endswith((*_SUFFIXES, "/"))
    )


def canonical_json(value: object) -> bytes:
    """UTF-8 JSON with sorted keys and no spaces: equal values have equal bytes on every machine."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def sha256_bytes(data: bytes) -> str:
    """Lower-case hex sha256 of `data`."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """Lower-case hex sha256 of a file, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def write_bytes(path: Path, data: bytes) -> None:
    """Replace `path` by `data` in one step; readers see the old file or the new one, never a part.

    Raises:
        BadInput: the disk is full or the folder cannot be written.
    """
    with writing(path) as partial:
        partial.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """`write_bytes` for UTF-8 text."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: object) -> None:
    """Indented, sorted JSON with a final newline, written in one step."""
    write_text(path, json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Parsed JSON of a file.

    Raises:
        BadInput: the file is missing, is not UTF-8 or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BadInput(f"{path} does not exist") from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise BadInput(f"{path} is not valid JSON ({error})", "write it again or delete it") from error


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling of `path`; on success flush it to disk and rename it over `path`.

    The file mode follows the umask (libraries that write through mkstemp leave 0600 behind).

    Raises:
        BadInput: the operating system refused the write (disk full, read-only, no such folder).
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        _flush(partial)
        partial.chmod(0o666 & ~_umask())
        partial.replace(path)
        _flush(path.parent)
    except OSError as error:
        raise _refused(path, error) from error
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling folder; on success rename it to `path`, on failure remove it.

    Raises:
        BadInput: `path` exists and is not empty, or cannot be written.
    """
    require_unused(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent))
    except OSError as error:
        raise _refused(path, error) from error
    try:
        yield partial
        partial.chmod(0o777 & ~_umask())
        if path.is_dir():
            path.rmdir()
        partial.replace(path)
        _flush(path.parent)
    except OSError as error:
        raise _refused(path, error) from error
    finally:
        if partial.exists():
            shutil.rmtree(partial)


def require_unused(path: Path) -> None:
    """Refuse an output path that already holds something or may not be written.

    Raises:
        BadInput: `path` is a file or a folder that is not empty, or its place is read-only.
    """
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise BadInput(f"{path} already exists and is not empty", "choose another --out or remove it")
    if not os.access(_existing(path.absolute()), os.W_OK | os.X_OK):
        raise _refused(path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def require_space(path: Path, needed: int, what: str) -> None:
    """Refuse to start work whose result does not fit on the disk of `path`.

    Args:
        path: the output, which need not exist yet.
        needed: bytes.
        what: what needs them, for the sentence.

    Raises:
        BadInput: less than `needed` bytes plus 64 MiB are free.
    """
    free, wanted = shutil.disk_usage(_existing(path.absolute())).free, needed + _SPARE
    if free < wanted:
        raise BadInput(
            f"{_size(wanted)} are needed on the disk of {path} for {what}, {_size(free)} are free",
            "free disk space or choose another --out",
        )


def _existing(path: Path) -> Path:
    return next(place for place in (path, *path.parents) if place.exists())


def _refused(path: Path, error: OSError) -> BadInput:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    fix = "free disk space or choose another folder" if full else "choose a folder that you may write to"
    return BadInput(f"cannot write {path} ({error.strerror or error})", fix)


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold `folder` for one process; the lock vanishes with the process, however it dies.

    Raises:
        BadInput: another live process holds it, or it may not be written.
    """
    import fcntl

    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise _refused(folder, error) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BadInput(
                f"{folder} is in use by another ridgefit process", "wait for it or choose another --out"
            ) from error
        yield
    finally:
        os.close(handle)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    current = os.umask(0o077)
    os.umask(current)
    return current
