"""The format-1 folder, read: `ridgefill.json` and one safetensors file per late layer, bf16 or int8."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ridgefit.errors import BadInput
from ridgefit.maps.fingerprint import Fingerprint
from ridgefit.maps.int8 import GROUP, dequantize
from ridgefit.maps.mapset import Int8Planes, LayerMap, MapSet, contiguous
from ridgefit.maps.names import require_features
from ridgefit.maps.tensorfile import TensorFile
from ridgefit.maps.widths import Bottleneck, require_bottleneck, widths_of

MANIFEST = "ridgefill.json"
MANIFEST_LIMIT = 64 << 20
LAYOUTS = {"bf16": "plain_nk", "i8": "i8_row128"}
ENCODING = "i8*bf16[1x128]"
_BARE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LAYER = re.compile(r"0|[1-9][0-9]{0,4}")
_MEND = "fetch the folder again"


class Format1(NamedTuple):
    """A folder's checked manifest.

    Attributes:
        folder: where it is.
        manifest: parsed `ridgefill.json`, every field.
        layers: file name of each late layer.
        int8: codes and scales instead of bf16 weights.
        hashes: sha256 of every file that belongs to the folder.
        final: file name of the final map, if there is one.
        bottleneck: file name of the bottleneck, if there is one.
    """

    folder: Path
    manifest: dict[str, Any]
    layers: dict[int, str]
    int8: bool
    hashes: dict[str, str]
    final: str | None
    bottleneck: str | None

    @property
    def extras(self) -> tuple[str, ...]:
        """Listed files that hold no map: corrections, row scores, a chat template."""
        return tuple(sorted(set(self.hashes) - set(self.layers.values()) - {self.final, self.bottleneck}))


def read_manifest(folder: Path) -> Format1:
    """Parse and judge `ridgefill.json`; touches no other file.

    Raises:
        BadInput: the manifest is missing, is of another format, or names files outside its folder.
    """
    manifest = read_table(folder / MANIFEST)
    where = folder / MANIFEST
    if manifest.get("format") != 1 or isinstance(manifest.get("format"), bool):
        raise BadInput(f"{where} is of format {manifest.get('format')!r}, this ridgefit reads format 1")
    projector = _table(manifest, "projector", where)
    dtype = projector.get("dtype", "bf16")
    if not isinstance(dtype, str) or dtype not in LAYOUTS:
        raise BadInput(f"{where} holds maps of dtype {dtype!r}, known are bf16 and i8")
    layout, encoding = projector.get("layout", LAYOUTS[dtype]), projector.get("encoding", ENCODING)
    if layout != LAYOUTS[dtype] or (dtype == "i8" and encoding != ENCODING):
        raise BadInput(f"{where} lays out {dtype} maps as {layout!r} {encoding!r}, which is not known")
    hashes = {bare_name(name, where): sha for name, sha in _table(manifest, "files", where).items()}
    for name, sha in hashes.items():
        if not isinstance(sha, str) or not _SHA256.fullmatch(sha):
            raise BadInput(f"{where} gives no sha256 of {name}", _MEND)
    layers: dict[int, str] = {}
    for key, name in _table(projector, "files", where).items():
        if not _LAYER.fullmatch(key):
            raise BadInput(f"{where} names the layer {key[:20]!r}")
        layers[int(key)] = _listed(name, hashes, where)
    run = contiguous(layers, str(where))
    if manifest.get("split", run.start) != run.start:
        raise BadInput(f"{where} states split {manifest['split']!r} and its lowest layer is {run.start}")
    entry = manifest.get("final")
    final = _listed(entry.get("file"), hashes, where) if isinstance(entry, dict) else None
    entry = manifest.get("bottleneck")
    through = _listed(entry.get("file"), hashes, where) if isinstance(entry, dict) else None
    return Format1(folder, manifest, layers, dtype == "i8", hashes, final, through)


def read_format1(folder: Path) -> MapSet:
    """Open a folder, ours or published; each file is hashed before its weights are used.

    Corrections and row scores of the published folders are named in `extras` and otherwise left alone.

    Raises:
        BadInput: the folder is partial, a file is malformed or of the wrong shape, or two hold one tensor.
    """
    found = read_manifest(folder)
    for name in found.hashes:
        if not (folder / name).is_file():
            raise BadInput(f"{folder} is incomplete: {name} is missing", _MEND)
    files = {name: TensorFile(folder / name, sha) for name, sha in found.hashes.items() if _is_tensors(name)}
    _require_distinct(files, folder)
    if found.final is not None:
        _require_final(files[found.final])
    shapes = {layer: _shape_of(files[name], layer, found.int8) for layer, name in found.layers.items()}
    run = contiguous(found.layers, str(folder))
    features = _features(found)
    through = None if found.bottleneck is None else _bottleneck(files[found.bottleneck])
    widths = widths_of(shapes, features, through.shape if through else None, str(folder))
    out, width = widths.out_width, widths.in_width
    stated = (found.manifest.get("block_in_width", out), found.manifest.get("stream_width", width))
    if stated != (out, width):
        raise BadInput(f"{folder / MANIFEST} states [out, in] {stated}, its maps are {(out, width)}")

    def planes(layer: int) -> Int8Planes:
        file = files[found.layers[layer]]
        item = Int8Planes(*(file.read(f"proj.{layer}.{part}") for part in Int8Planes._fields))
        if not all(bool(torch.isfinite(part).all()) for part in item[1:]):
            raise BadInput(f"{file.path} holds values that are not finite")
        return item

    def read(layer: int) -> LayerMap:
        if found.int8:
            item = planes(layer)
            return LayerMap(dequantize(item.codes, item.scale).bfloat16(), item.bias)
        file = files[found.layers[layer]]
        return LayerMap(file.read(f"proj.{layer}.weight"), file.read(f"proj.{layer}.bias"))

    def final() -> LayerMap:
        file = files[str(found.final)]
        return LayerMap(file.read("final.weight"), file.read("final.bias"))

    return MapSet(
        layers=run,
        in_width=width,
        out_width=out,
        read=read,
        features=features,
        fingerprint=_fingerprint(found.manifest),
        source="format1-int8" if found.int8 else "format1-bf16",
        path=folder,
        planes=planes if found.int8 else None,
        final=final if found.final else None,
        info=found.manifest,
        extras=found.extras,
        bottleneck=through,
        state_only=widths.state_only,
    )


def read_table(path: Path) -> dict[str, Any]:
    """A JSON object from a file of bounded size.

    Raises:
        BadInput: the file is missing, too large, or not a JSON object.
    """
    try:
        if path.stat().st_size > MANIFEST_LIMIT:
            raise BadInput(f"{path} is too large for a manifest")
        table = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"cannot read {path} ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is not valid JSON", _MEND) from error
    if not isinstance(table, dict):
        raise BadInput(f"{path} is not a JSON object", _MEND)
    return table


def bare_name(name: object, where: Path) -> str:
    """A file name that cannot leave its folder.

    Raises:
        BadInput: it holds a separator or other characters that file names of a manifest do not use.
    """
    if not isinstance(name, str) or not _BARE.fullmatch(name):
        raise BadInput(f"{where} names the file {str(name)[:60]!r}, which is not a bare file name")
    return name


def _listed(name: object, hashes: Mapping[str, str], where: Path) -> str:
    bare = bare_name(name, where)
    if bare not in hashes or not _is_tensors(bare):
        raise BadInput(f"{where} gives no sha256 of {bare}", _MEND)
    return bare


def _is_tensors(name: str) -> bool:
    return name.endswith(".safetensors")


def _table(parent: Mapping[str, Any], key: str, where: Path) -> dict[str, Any]:
    table = parent.get(key)
    if not isinstance(table, dict):
        raise BadInput(f"{where} lacks the table {key!r}", _MEND)
    return table


def _require_distinct(files: Mapping[str, TensorFile], folder: Path) -> None:
    owner: dict[str, str] = {}
    for name, file in files.items():
        for tensor in file.tensors:
            if tensor in owner:
                raise BadInput(f"{folder} holds the tensor {tensor!r} twice, in {owner[tensor]} and {name}")
            owner[tensor] = name


def _require_final(file: TensorFile) -> None:
    shapes = {name: (entry.dtype, entry.shape) for name, entry in file.tensors.items()}
    dtype, shape = shapes.get("final.weight", (None, ()))
    if len(shape) != 2 or dtype != torch.bfloat16 or shapes.get("final.bias") != (dtype, shape[:1]):
        raise BadInput(f"{file.path} does not hold a final map in BF16", _MEND)


def _bottleneck(file: TensorFile) -> Bottleneck:
    entry = file.tensors.get("bottleneck")
    if entry is None or len(file.tensors) != 1 or entry.dtype != torch.bfloat16:
        raise BadInput(f"{file.path} does not hold a bottleneck in BF16", _MEND)
    return Bottleneck(require_bottleneck(entry.shape, str(file.path)), lambda: file.read("bottleneck"))


def _shape_of(file: TensorFile, layer: int, int8: bool) -> tuple[int, int]:
    """`(out, in)` of a layer's file, every tensor of it judged."""
    main = f"proj.{layer}.{'codes' if int8 else 'weight'}"
    entry = file.tensors.get(main)
    if entry is None or len(entry.shape) != 2 or min(entry.shape) < 1:
        raise BadInput(f"{file.path} holds no map {main!r} [out, in]", _MEND)
    out, width = entry.shape
    wanted: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {f"proj.{layer}.bias": (torch.bfloat16, (out,))}
    if int8:
        wanted |= {
            main: (torch.int8, (out, width)),
            f"proj.{layer}.scale": (torch.bfloat16, (out, width // GROUP)),
        }
    else:
        wanted[main] = (torch.bfloat16, (out, width))
    found = {name: (item.dtype, item.shape) for name, item in file.tensors.items()}
    if found != wanted or (int8 and width % GROUP):
        differing = sorted(name for name in found | wanted if found.get(name) != wanted.get(name))
        raise BadInput(f"{file.path} does not hold layer {layer} as described (tensors {differing or main})")
    return out, width


def _features(found: Format1) -> tuple[str, ...]:
    """Ours name them where they are not the plain split state; published manifests have no such field."""
    features = found.manifest.get("features", {"state": 1})
    where = found.folder / MANIFEST
    if not isinstance(features, dict) or not features:
        raise BadInput(f"{where} does not list its features as a table of name and version")
    return require_features(features, str(where))


def _fingerprint(manifest: Mapping[str, Any]) -> Fingerprint | None:
    """The little that both a published manifest and a checkpoint state: name, family, number of layers."""
    model = manifest.get("model")
    meta = model.get("meta") if isinstance(model, dict) else None
    if not isinstance(model, dict) or not isinstance(meta, dict):
        return None
    count = str(meta.get("n_layers", ""))[:6]
    return Fingerprint(
        family=str(meta.get("model_type") or model.get("arch_id", "")),
        name=str(model.get("name", "")),
        dims={"n_layers": int(count)} if count.isascii() and count.isdigit() else {},
    )
