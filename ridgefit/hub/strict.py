"""JSON of strangers: bounded in size and depth, no key twice, no numbers that JSON does not have."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from ridgefit.errors import BadInput

SIZE_LIMIT = 64 << 20
DEPTH_LIMIT = 64
_MEND = "fetch or write the file again"
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


def read_strict(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        BadInput: the file is missing, too large, nested too deeply, names a key twice, or is no JSON object.
    """
    try:
        size = path.stat().st_size
        if size > SIZE_LIMIT:
            raise BadInput(f"{path} has {size} bytes, too many for JSON of maps", _MEND)
        data = path.read_bytes()
        text = data.decode("utf-8")
    except OSError as error:
        raise BadInput(f"cannot read {path} ({error.strerror or error})", _MEND) from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 text", _MEND) from error
    # Counted before it is parsed; brackets inside strings can only make the bound stricter.
    depth = deepest = 0
    for byte in data.translate(None, delete=_NO_BRACKETS):
        depth += 1 if byte in b"[{" else -1
        deepest = max(deepest, depth)
    if deepest > DEPTH_LIMIT:
        raise BadInput(f"{path} is nested {deepest} deep, more than {DEPTH_LIMIT}", _MEND)
    try:
        table = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is not valid JSON ({str(error).splitlines()[0][:120]})", _MEND) from error
    if not isinstance(table, dict):
        raise BadInput(f"{path} is not a JSON object", _MEND)
    return table


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise ValueError(f"duplicate key {key[:60]!r}")
        table[key] = value
    return table


def _refuse(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is out of range")
    return value
