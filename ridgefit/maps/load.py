"""One way in for maps of any layout: a MAPS folder, one source file, or a format-1 folder."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ridgefit.errors import BadInput
from ridgefit.maps import folder as maps_folder
from ridgefit.maps.format1 import MANIFEST as FORMAT1_MANIFEST
from ridgefit.maps.format1 import read_format1
from ridgefit.maps.mapset import MapSet
from ridgefit.maps.source import read_source


def kind_of(path: Path) -> Literal["maps", "source", "format1"]:
    """Which layout a path holds, by its names alone.

    Raises:
        BadInput: there is nothing, or nothing that looks like maps.
    """
    if path.is_file():
        return "source"
    if not path.is_dir():
        raise BadInput(f"{path} does not exist", "give a maps folder or a source file")
    if (path / maps_folder.MANIFEST).is_file():
        return "maps"
    if (path / FORMAT1_MANIFEST).is_file():
        return "format1"
    if (path / "capture.json").is_file():
        raise BadInput(f"{path} is a capture and holds no maps", "fit them with `ridgefit solve` first")
    inside = sorted(
        item.name
        for item in path.iterdir()
        if item.suffix == ".safetensors"
        or (item / FORMAT1_MANIFEST).is_file()
        or (item / maps_folder.MANIFEST).is_file()
    )
    raise BadInput(
        f"{path} holds neither {maps_folder.MANIFEST} nor {FORMAT1_MANIFEST}",
        f"name one of its maps, for example {path / inside[0]}" if inside else "give a maps folder",
    )


def load_maps(path: str | Path, split: int | None = None) -> MapSet:
    """Open maps; weights are read layer by layer later.

    Args:
        path: a MAPS folder, one source file, or a format-1 folder.
        split: which split of a MAPS folder; elsewhere it must be the only one.

    Raises:
        BadInput: nothing there, not that split, or files that are malformed, partial or of a newer version.
    """
    path = Path(path)
    kind = kind_of(path)
    if kind == "maps":
        return maps_folder.read_split(path, maps_folder.read_manifest(path), split)
    maps = read_source(path) if kind == "source" else read_format1(path)
    if split is not None and split != maps.split:
        raise BadInput(f"{path} holds split {maps.split}, not {split}", "leave --split out")
    return maps
