"""Maps looked at without a model: are the files what their manifests say, and what is in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from ridgefit.errors import BadInput
from ridgefit.files import sha256_file
from ridgefit.maps import folder as maps_folder
from ridgefit.maps import format1
from ridgefit.maps.load import kind_of, load_maps
from ridgefit.maps.mapset import MapSet
from ridgefit.maps.names import reads_text
from ridgefit.maps.tensorfile import TensorFile


class FileCheck(BaseModel):
    """One thing that was looked at.

    Attributes:
        subject: file name within the maps, or the maps themselves.
        check: what was looked at.
        ok: whether it holds.
        detail: what was found, or the sentence that says what is wrong.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    subject: str
    check: str
    ok: bool
    detail: str


def verify_files(path: str | Path, split: int | None = None) -> list[FileCheck]:
    """Check headers, hashes, shapes, the run of layers, and that every weight is finite.

    Reads every byte of the maps, one layer at a time. A failed check is a result, not an exception.

    Args:
        path: the maps.
        split: look at this one alone; the others need not be there.

    Raises:
        BadInput: there is nothing at `path` that looks like maps, or not that split.
    """
    path = Path(path)
    kind = kind_of(path)
    if kind == "source":
        return list(_opened(path.name, lambda: load_maps(path, split)))
    if kind == "format1":
        return [*_hashes(path, ""), *_opened(path.name, lambda: load_maps(path, split))]
    try:
        manifest = maps_folder.read_manifest(path)
    except BadInput as error:
        return [FileCheck(subject=maps_folder.MANIFEST, check="manifest", ok=False, detail=str(error))]
    found = [_passed(maps_folder.MANIFEST, "manifest", f"splits {', '.join(map(str, manifest.splits))}")]
    if split is not None and split not in manifest.splits:
        known = ", ".join(map(str, manifest.splits))
        raise BadInput(f"{path} holds no split {split}, only {known}", "choose one with --split")
    for number, record in manifest.splits.items():
        if split not in (None, number):
            continue
        target = path / record.file
        if not target.exists():
            detail = "not here; look at the others one by one with --split, or fetch it"
            found.append(FileCheck(subject=record.file, check="present", ok=False, detail=detail))
            continue
        if record.layout == "source":
            found.append(_hash(target, record.sha256, record.file))
        else:
            found += _hashes(target, f"{record.file}/")
        found += _opened(record.file, partial(maps_folder.read_split, path, manifest, number))
    return found


def inspect(path: str | Path) -> dict[str, Any]:
    """Summary of maps from manifests and headers alone: layout, splits, shapes, bytes, origin, scores.

    Raises:
        BadInput: the maps cannot be opened.
    """
    path = Path(path)
    if kind_of(path) != "maps":
        maps = load_maps(path)
        return {"layout": maps.source, "fingerprint": _plain(maps), "splits": {maps.split: _summary(maps)}}
    manifest = maps_folder.read_manifest(path)
    return {
        "layout": "maps",
        "fingerprint": manifest.fingerprint.model_dump(mode="json") if manifest.fingerprint else None,
        "provenance": manifest.provenance,
        "splits": {
            split: _summary(maps_folder.read_split(path, manifest, split))
            | record.model_dump(mode="json", include={"alphas", "penalty", "rows", "scores", "sha256"})
            for split, record in manifest.splits.items()
        },
    }


def _opened(subject: str, load: Callable[[], MapSet]) -> Iterator[FileCheck]:
    try:
        maps = load()
        yield _passed(
            subject,
            "headers",
            f"{len(maps.layers)} maps [{maps.out_width}, {maps.in_width}] of layers "
            f"{maps.layers.start} to {maps.layers.stop - 1}, {maps.source}{_reads(maps)}",
        )
        maps.bottleneck_weight()
        for layer in maps.layers:
            maps.layer(layer)
        yield _passed(subject, "weights", "all finite")
    except BadInput as error:
        yield FileCheck(subject=subject, check="headers and weights", ok=False, detail=str(error))


def _hashes(folder: Path, prefix: str) -> Iterator[FileCheck]:
    try:
        found = format1.read_manifest(folder)
    except BadInput as error:
        yield FileCheck(subject=prefix + format1.MANIFEST, check="manifest", ok=False, detail=str(error))
        return
    yield _passed(prefix + format1.MANIFEST, "manifest", f"{len(found.hashes)} files")
    for name, sha256 in found.hashes.items():
        yield _hash(folder / name, sha256, prefix + name)


def _hash(path: Path, wanted: str, subject: str) -> FileCheck:
    try:
        found = sha256_file(path)
    except OSError as error:
        return FileCheck(subject=subject, check="sha256", ok=False, detail=error.strerror or str(error))
    return FileCheck(
        subject=subject,
        check="sha256",
        ok=found == wanted,
        detail=found if found == wanted else f"{found}, its manifest says {wanted}",
    )


def _passed(subject: str, check: str, detail: str) -> FileCheck:
    return FileCheck(subject=subject, check=check, ok=True, detail=detail)


def _summary(maps: MapSet) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "layout": maps.source,
        "layers": [maps.layers.start, maps.layers.stop],
        "shape": [maps.out_width, maps.in_width],
        "features": list(maps.features),
        "defaults": maps.defaults.model_dump(),
        "bytes": _size(maps.path),
        "extras": list(maps.extras),
    }
    if maps.bottleneck is not None:
        summary["bottleneck"] = list(maps.bottleneck.shape)
    if maps.state_only:
        summary["state_only"] = list(maps.state_only)
    if maps.source == "source":
        summary["metadata"] = {key: value for key, value in maps.info.items() if key != "fingerprint"}
        summary["header_bytes"] = _header_size(maps.path)
    else:
        keys = ("name", "authors", "license", "doi", "homepage", "adapter", "stream", "tail")
        summary["credit"] = {key: maps.info[key] for key in keys if key in maps.info}
    return summary


def _reads(maps: MapSet) -> str:
    """What the maps read, where it is more than the state."""
    if maps.features == ("state",):
        return ""
    rank = maps.bottleneck.rank if maps.bottleneck else None
    return f", reading {reads_text(maps.features, rank, len(maps.state_only))}"


def _plain(maps: MapSet) -> dict[str, Any] | None:
    return maps.fingerprint.model_dump(mode="json") if maps.fingerprint else None


def _size(path: Path | None) -> int:
    if path is None:
        return 0
    if path.is_file():
        return path.stat().st_size
    return sum(item.stat().st_size for item in path.iterdir() if item.is_file())


def _header_size(path: Path | None) -> int:
    if path is None:
        return 0
    file = TensorFile(path)
    return path.stat().st_size - max(entry.stop for entry in file.tensors.values())
