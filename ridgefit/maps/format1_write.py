"""The format-1 folder, written: field by field and byte by byte as the published loader reads it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict
from torch import Tensor

from ridgefit.errors import BadInput
from ridgefit.files import new_folder, sha256_bytes, sha256_file, write_bytes
from ridgefit.maps.format1 import ENCODING, LAYOUTS, MANIFEST, read_manifest
from ridgefit.maps.int8 import error_in_steps, quantize_int8, require_groups
from ridgefit.maps.mapset import LayerMap, MapSet
from ridgefit.maps.names import feature_versions
from ridgefit.maps.tensorwrite import TensorSpec, write_tensors

_TENSOR_FORMAT = "ridgefill-projector-1"
_KINDS = {"full_attention": "full_attn"}
_FINAL = "final.safetensors"
_BOTTLENECK = "bottleneck.safetensors"
_DESCRIPTION = (
    "plugin_min_version",
    "adapter",
    "adapter_abi",
    "model",
    "split",
    "stream",
    "stream_width",
    "block_in_width",
    "features",
    "layers",
    "tail",
    "correction",
    "rowsel",
)

Progress = Callable[[int, int], None]


class Credit(BaseModel):
    """Who made the maps: written into the manifest and into the header of every file.

    Attributes:
        name: title of the maps.
        authors: joined by ", " in file headers.
        license: of the maps, which follows the base model's; "other" where it is not stated.
        doi: of the work to cite, or "".
        homepage: address, or "".
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = "ridgefit maps"
    authors: tuple[str, ...] = ()
    license: str = "other"
    doi: str = ""
    homepage: str = ""

    @property
    def header(self) -> dict[str, str]:
        """`__metadata__` of a folder's safetensors files, in written order."""
        return {
            "format": _TENSOR_FORMAT,
            "name": self.name,
            "authors": ", ".join(self.authors),
            "license": self.license,
            "doi": self.doi,
        }


class Format1Settings(BaseModel):
    """What the maps themselves do not say.

    Attributes:
        credit: None keeps the credit of a format-1 source, and is neutral otherwise.
        adapter: name of the engine's adapter; the model's family if None.
        model: replaces the manifest's `model` table, which an engine compares with its own.
        layer_kinds: replaces the manifest's `layers` table, layer number to "full_attn" or "recurrent".
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    credit: Credit | None = None
    adapter: str | None = None
    model: dict[str, Any] | None = None
    layer_kinds: dict[int, str] | None = None


class Format1Report(BaseModel):
    """What was written.

    Attributes:
        split: lowest layer.
        manifest_sha256: of `ridgefill.json`.
        files: sha256 by file name.
        steps: int8 only, largest |weight - code x scale| of each layer in units of its group's scale.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    split: int
    manifest_sha256: str
    files: dict[str, str]
    steps: dict[int, float] = {}


def write_format1(
    folder: Path,
    maps: MapSet,
    *,
    int8: bool,
    settings: Format1Settings | None = None,
    progress: Progress | None = None,
) -> Format1Report:
    """Write a split's maps as a format-1 folder, whole or not at all; one layer is in memory at a time.

    Maps that come from a format-1 folder keep its manifest and its other files (corrections, row scores).

    Args:
        folder: must not exist or be empty.
        maps: bf16 maps.
        int8: quantise; otherwise write bf16.
        settings: credit and engine names.
        progress: called with files done and files in all.

    Raises:
        BadInput: the maps are already int8, their width does not fill groups of 128, a value is not finite,
            or the folder is in use or cannot be written.
    """
    if maps.source == "format1-int8":
        raise BadInput(f"{maps.path} already holds int8 maps", "quantize the bf16 maps they were made from")
    if int8:
        for layer in maps.layers:
            require_groups(maps.width(layer), layer, through=maps.bottleneck is not None)
    settings = settings or Format1Settings()
    base = dict(maps.info) if maps.source == "format1-bf16" else None
    credit = settings.credit or (_credit_of(base) if base else Credit())
    steps: dict[int, float] = {}
    hashes: dict[str, str] = {}
    names = {layer: f"{'proj8' if int8 else 'proj'}.L{layer}.safetensors" for layer in maps.layers}
    with new_folder(folder) as partial:
        for layer, name in names.items():
            item = maps.layer(layer)
            tensors, steps_of = _tensors(layer, item, int8)
            hashes[name] = _write(partial / name, tensors, credit)
            steps.update(steps_of)
            if progress is not None:
                progress(len(hashes), len(names))
        if base is not None and maps.path is not None:
            hashes |= _copied(maps.path, maps.extras, partial)
        if maps.final is not None:
            final = maps.final()
            hashes[_FINAL] = _write(
                partial / _FINAL, {"final.weight": final.weight, "final.bias": final.bias}, credit
            )
        through = maps.bottleneck_weight()
        if through is not None:
            hashes[_BOTTLENECK] = _write(partial / _BOTTLENECK, {"bottleneck": through}, credit)
        manifest = _manifest(maps, base, settings, credit, int8=int8, names=names, hashes=hashes)
        raw = (json.dumps(manifest, indent=1) + "\n").encode()
        write_bytes(partial / MANIFEST, raw)
    return Format1Report(
        split=maps.split,
        manifest_sha256=sha256_bytes(raw),
        files=dict(sorted(hashes.items())),
        steps=steps,
    )


def _tensors(layer: int, item: LayerMap, int8: bool) -> tuple[dict[str, Tensor], dict[int, float]]:
    if not int8:
        return {f"proj.{layer}.weight": item.weight, f"proj.{layer}.bias": item.bias}, {}
    codes, scale = quantize_int8(item.weight)
    tensors = {f"proj.{layer}.codes": codes, f"proj.{layer}.scale": scale, f"proj.{layer}.bias": item.bias}
    return tensors, {layer: error_in_steps(item.weight, codes, scale)}


def _write(path: Path, tensors: Mapping[str, Tensor], credit: Credit) -> str:
    specs = [TensorSpec(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()]
    return write_tensors(path, specs, tensors.__getitem__, credit.header)


def _copied(source: Path, names: tuple[str, ...], target: Path) -> dict[str, str]:
    """Copy a format-1 folder's other files, byte for byte and only if they are what its manifest says."""
    wanted = read_manifest(source).hashes
    copied = {}
    for name in names:
        data = (source / name).read_bytes()
        if sha256_bytes(data) != wanted[name]:
            raise BadInput(f"{source / name} is not the file its manifest names", "fetch it again")
        write_bytes(target / name, data)
        copied[name] = wanted[name]
    return copied


def _manifest(
    maps: MapSet,
    base: dict[str, Any] | None,
    settings: Format1Settings,
    credit: Credit,
    *,
    int8: bool,
    names: Mapping[int, str],
    hashes: Mapping[str, str],
) -> dict[str, Any]:
    """`ridgefill.json` in its written order; a field that nothing is known of is left out."""
    base = base or {}
    dtype = "i8" if int8 else "bf16"
    projector: dict[str, Any] = {"dtype": dtype, "layout": LAYOUTS[dtype]}
    if int8:
        projector["encoding"] = ENCODING
    projector["files"] = {str(layer): name for layer, name in names.items()}
    if int8 and base and maps.path is not None:
        projector["source"] = _origin(maps.path)
    own = _described(maps) if not base else {}
    kept = {key: base.get(key, own.get(key)) for key in _DESCRIPTION}
    if settings.adapter is not None:
        kept["adapter"] = settings.adapter
    if settings.model is not None:
        kept["model"] = settings.model
    if settings.layer_kinds is not None:
        kept["layers"] = {str(layer): kind for layer, kind in sorted(settings.layer_kinds.items())}
    manifest = {
        "format": 1,
        "name": credit.name,
        "authors": list(credit.authors),
        "license": credit.license,
        "doi": credit.doi,
        "homepage": credit.homepage,
        **kept,
        "projector": projector,
        "bottleneck": _bottleneck_entry(maps),
        "final": _final_entry(maps, base),
        "marker": base.get("marker"),
        "fit": base.get("fit", own.get("fit")),
        "files": dict(sorted(hashes.items())),
        "rebuilt_from": _origin(maps.path)
        if base and maps.path and settings.credit
        else base.get("rebuilt_from"),
    }
    known = {key: value for key, value in manifest.items() if value is not None}
    return known | {key: value for key, value in base.items() if key not in manifest}


def _described(maps: MapSet) -> dict[str, Any]:
    """Manifest fields of maps that come from us or from a source file."""
    model = maps.fingerprint
    kinds = model.layer_kinds if model and len(model.layer_kinds) == maps.layers.stop else ()
    tail = maps.defaults.tail or 2048
    meta = {"n_layers": str(maps.layers.stop), "n_embd": str(maps.out_width)}
    if model is not None:
        meta = {"model_type": model.family, **meta, "n_vocab": str(model.dims.get("vocab", ""))}
        meta["layer_types"] = " ".join(model.layer_kinds)
    plain = maps.in_width == maps.out_width
    return {
        "plugin_min_version": "0.3.0",
        "adapter": model.family if model else "unknown",
        "adapter_abi": 1,
        "model": {
            "arch_id": model.family if model else "unknown",
            "name": model.name if model else str(maps.info.get("checkpoint", "unknown")),
            "meta": meta,
            "vocab_sha256": "",
            "encodings": {},
            "anchors": {},
        },
        "split": maps.split,
        "stream": "residual" if plain else "features" if maps.features != ("state",) else "hc",
        "stream_width": maps.in_width,
        "block_in_width": maps.out_width,
        "features": feature_versions(maps.features) if maps.features != ("state",) else None,
        "layers": {
            str(layer): _KINDS.get(kinds[layer], kinds[layer]) if kinds else "unknown"
            for layer in maps.layers
        },
        "tail": {"default": tail, "min": min(tail, 512), "table": [tail]},
        "fit": {"engine": "ridgefit"}
        | ({"proj_sha256": sha256_file(maps.path)} if maps.path and maps.path.is_file() else {}),
    }


def _bottleneck_entry(maps: MapSet) -> dict[str, Any] | None:
    if maps.bottleneck is None:
        return None
    return {"file": _BOTTLENECK, "dtype": "bf16", "shape": list(maps.bottleneck.shape)}


def _final_entry(maps: MapSet, base: Mapping[str, Any]) -> dict[str, Any] | None:
    if maps.final is None:
        return None
    entry = base.get("final")
    return {**(entry if isinstance(entry, dict) else {}), "file": _FINAL, "dtype": "bf16"}


def _credit_of(manifest: Mapping[str, Any]) -> Credit:
    authors = manifest.get("authors")
    text = {key: str(manifest.get(key, "")) for key in ("name", "license", "doi", "homepage")}
    return Credit(authors=tuple(map(str, authors)) if isinstance(authors, list) else (), **text)


def _origin(folder: Path) -> dict[str, str]:
    return {"folder": folder.resolve().name, "manifest_sha256": sha256_file(folder / MANIFEST)}
