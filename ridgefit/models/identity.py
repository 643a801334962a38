"""What names a model alike on every machine: its name without paths, its config without run settings."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ridgefit.files import canonical_json, names_a_path, sha256_bytes

# Differ between two copies of one checkpoint without any effect on what it computes.
_VOLATILE = frozenset(
    {"transformers_version", "_name_or_path", "dtype", "torch_dtype", "use_cache", "_attn_implementation"}
    | {"attn_implementation", "output_attentions", "output_hidden_states", "return_dict", "architectures"}
)


def config_sha256(config: Any) -> str:
    """Hash of a transformers config without what does not change the computation.

    Settings that a newer transformers adds with a default change it: a difference is a warning, no proof.
    """
    return sha256_bytes(canonical_json(_plain(config.to_dict())))


def public_name(ref: str) -> str:
    """A model's name without what is particular to a machine: of a folder, its last part."""
    return Path(ref).name if names_a_path(ref) else ref


def _plain(value: Any) -> Any:
    """JSON values only: config dictionaries may hold tuples, numbers of numpy and integer keys."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items() if str(key) not in _VOLATILE}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
