"""What a capture's bits depend on: compared field by field before anything is resumed or merged."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

import torch
from torch import nn

from ridgefit.corpus import TokenStore
from ridgefit.errors import BadInput
from ridgefit.features import FeatureList
from ridgefit.models import LoadedModel
from ridgefit.moments import LEAVES, Product
from ridgefit.recipe import CaptureSettings
from ridgefit.versions import library_versions

_LIBRARIES = ("ridgefit", "torch", "transformers")
_SAMPLE = 256
_ABSENT = "(absent)"


def identity_of(
    loaded: LoadedModel, store: TokenStore, settings: CaptureSettings, product: Product
) -> dict[str, Any]:
    """Everything that must be the same for two captures to give the same sums, as JSON values.

    A model's name and revision are not in it, its weights, config and tokenizer are: a folder may move.
    The number of CPU threads is, because it decides the order in which a product is added up.
    """
    port, features = loaded.port, FeatureList(settings.features)
    model = {key: value for key, value in loaded.identity().items() if key not in ("name", "revision")}
    versions = library_versions()
    return {
        "model": {**model, "weights_sha256": weights_sha256(port.decoder), "attention": port.attention},
        "text": store.manifest.sha256,
        "split": sorted(settings.split),
        "features": [[name, version] for name, version in features.versions.items()],
        "precision": product,
        "lead": settings.lead,
        "batch": settings.batch,
        "leaves": LEAVES,
        "device": port.device.type,
        "threads": torch.get_num_threads() if port.device.type == "cpu" else None,
        "versions": {name: versions.get(name) for name in _LIBRARIES},
    }


def weights_sha256(module: nn.Module) -> str:
    """Hash of every parameter's name, shape, dtype and up to 256 evenly spaced values.

    Reading all weights of a large model would take longer than the pass it protects; training touches every
    matrix it touches all over.
    """
    digest = sha256()
    for name, parameter in sorted(module.named_parameters()):
        flat = parameter.detach().flatten()
        picked = torch.linspace(0, len(flat) - 1, min(len(flat), _SAMPLE), dtype=torch.float64).long()
        values = flat[picked.to(flat.device)].double().cpu().tolist()
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode())
        digest.update(struct.pack(f"<{len(values)}d", *values))
    return digest.hexdigest()


def require_same(
    before: Mapping[str, Any], now: Mapping[str, Any], what: str, fix: str, *, skip: tuple[str, ...] = ()
) -> None:
    """Refuse the first field in which two identities differ, in the order of `now`.

    Args:
        before: identity on disk.
        now: identity asked for.
        what: the sentence's subject, "the capture in work/capture".
        fix: what mends it.
        skip: top-level fields that may differ.

    Raises:
        BadInput: naming the field and both values.
    """
    old = dict(_flat({key: value for key, value in before.items() if key not in skip}))
    new = dict(_flat({key: value for key, value in now.items() if key not in skip}))
    for field in [*new, *(name for name in old if name not in new)]:
        left, right = old.get(field, _ABSENT), new.get(field, _ABSENT)
        if left != right:
            raise BadInput(f"{what} has {field} {left!r}, this run has {right!r}", fix)


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _flat(inner, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", inner
