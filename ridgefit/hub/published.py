"""Repositories that others published: source files and format-1 folders, without ridgefit's own manifest.

Known ones put `<name>-s<split>.safetensors` into a folder `safetensors/`, or one format-1 folder at the
top or one level below it. Nothing in them names a base model, so only shapes can be checked when maps are
applied; bytes are compared with the hashes that the Hub states, and in a format-1 folder with its manifest's.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ridgefit.errors import BadInput
from ridgefit.files import require_space
from ridgefit.hub.calls import Hub
from ridgefit.hub.reference import RepoRef
from ridgefit.hub.remote import RemoteFile, remote_header, require_small, sound_file
from ridgefit.maps import load_maps
from ridgefit.maps.folder import MANIFEST
from ridgefit.maps.format1 import MANIFEST as FOLDER_MANIFEST
from ridgefit.maps.format1 import read_manifest as read_folder
from ridgefit.maps.mapset import contiguous
from ridgefit.maps.names import parse_features_text
from ridgefit.maps.recall import POLICY
from ridgefit.maps.refresh import CONTROLLER

_PART = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}"
_PATH = re.compile(rf"(?:(?P<folder>{_PART})/)?(?P<name>{_PART})")
_LAYER = re.compile(r"layer\.(0|[1-9][0-9]{0,4})")
_FILES_LIMIT = 64
_MEND = "`hf download` it and give the folder or file that holds the maps"


@dataclass(frozen=True)
class PublishedMaps:
    """One split that a repository holds.

    Attributes:
        split: split layer.
        layout: how it is stored.
        root: path of the file or folder within the repository; "" is the top.
        layers: late layers.
        shape: rows and columns of the first layer's map.
        features: what the maps read, in order.
        files: what has to be fetched.
    """

    split: int
    layout: Literal["source", "format1"]
    root: str
    layers: range
    shape: tuple[int, int]
    features: tuple[str, ...]
    files: tuple[RemoteFile, ...]

    @property
    def size(self) -> int:
        """Bytes to fetch."""
        return sum(file.size for file in self.files)


def is_foreign(files: Mapping[str, RemoteFile]) -> bool:
    """Whether `ridgefit push` did not write a repository; one of ours that lost a file is not foreign."""
    tensors = (path for path in files if path.endswith((".safetensors", FOLDER_MANIFEST)))
    return not {MANIFEST, POLICY, CONTROLLER} & set(files) and any(tensors)


def published_maps(
    hub: Hub, ref: RepoRef, sha: str, files: Mapping[str, RemoteFile]
) -> dict[int, PublishedMaps]:
    """Splits of a repository that others published; only manifests and headers of tensor files are fetched.

    Args:
        hub: which Hub.
        ref: the repository.
        sha: its commit.
        files: every file of that commit.

    Raises:
        BadInput: it holds no maps, two files hold one split, or a name, size, header or manifest is not that
            of maps.
    """
    found: dict[int, PublishedMaps] = {}
    folders = [path.rpartition("/")[0] for path in files if path.rpartition("/")[2] == FOLDER_MANIFEST]
    alone = [
        path for path in files if path.endswith(".safetensors") and path.rpartition("/")[0] not in folders
    ]
    if len(folders) + len(alone) > _FILES_LIMIT:
        raise BadInput(f"{ref} holds {len(folders) + len(alone)} candidates for maps, too many", _MEND)
    for item in (
        *(_format1(hub, ref, sha, files, folder) for folder in sorted(folders)),
        *(_source(hub, ref, sha, files[path]) for path in sorted(alone)),
    ):
        if item.split in found:
            raise BadInput(
                f"{ref} holds split {item.split} twice, in {found[item.split].root or 'its top folder'} "
                f"and {item.root}",
                _MEND,
            )
        found[item.split] = item
    if not found:
        raise BadInput(f"{ref} holds no maps", "check the name")
    return found


def chosen_splits(there: Collection[int], wanted: Collection[int], ref: RepoRef) -> list[int]:
    """The splits asked for, or all.

    Raises:
        BadInput: one of them is not there.
    """
    absent = next((split for split in wanted if split not in there), None)
    if absent is not None:
        known = ", ".join(map(str, sorted(there)))
        raise BadInput(f"{ref} holds no split {absent}, only {known}", "choose one with --split")
    return sorted(wanted or there)


def require_one(splits: Collection[int], ref: RepoRef) -> None:
    """Refuse several splits where each is in a place of its own and one place is wanted.

    Raises:
        BadInput: there are several.
    """
    if len(splits) > 1:
        known = ", ".join(map(str, sorted(splits)))
        raise BadInput(f"{ref} holds the splits {known}", "choose one with --split")


def cached_maps(folder: Path) -> dict[int, Path]:
    """Where each split is in a snapshot of a repository that others published.

    Raises:
        BadInput: a file in it is damaged.
    """
    if any((folder / name).exists() for name in (MANIFEST, POLICY, CONTROLLER)):
        return {}
    found: dict[int, Path] = {}
    for item in [folder, *sorted(folder.glob("*")), *sorted(folder.glob("*/*.safetensors"))]:
        if (item / FOLDER_MANIFEST).is_file() or (
            item.suffix == ".safetensors" and not (item.parent / FOLDER_MANIFEST).is_file()
        ):
            found[load_maps(item).split] = item
    return found


def fetch_published(hub: Hub, ref: RepoRef, sha: str, maps: PublishedMaps) -> Path:
    """Fetch one split into the Hub's cache, every file compared with the hash that the Hub states.

    Returns:
        The file or folder that `ridgefit.maps.load_maps` opens.

    Raises:
        BadInput: no network, too little disk, or bytes that are not those.
    """
    at = [sound_file(hub, ref.name, sha, file) for file in _small_first(hub, ref, maps)]
    return at[0] if maps.layout == "source" else at[0].parent


def _small_first(hub: Hub, ref: RepoRef, maps: PublishedMaps) -> list[RemoteFile]:
    """Files in order of size, once there is room for all of them."""
    from huggingface_hub import constants

    cache = hub.cache or Path(constants.HF_HUB_CACHE)
    require_space(cache, maps.size, f"the download of {ref}")
    return sorted(maps.files, key=lambda file: (file.size, file.path))


def _source(hub: Hub, ref: RepoRef, sha: str, file: RemoteFile) -> PublishedMaps:
    """Split of a source file, read from its header.

    Raises:
        BadInput: it holds other tensors.
    """
    _judged(file.path, ref)
    metadata, tensors = remote_header(hub, ref.name, sha, file)
    found = {int(match[1]): name for name in tensors if (match := _LAYER.fullmatch(name))}
    if not found:
        raise BadInput(f"{file.path} of {ref} holds no maps", _MEND)
    layers = contiguous(found, f"{file.path} of {ref}")
    shape = tensors[found[layers.start]].shape
    if len(shape) != 2:
        raise BadInput(f"{file.path} of {ref} holds a map of shape {shape}", _MEND)
    features = parse_features_text(metadata.get("features", "state:1"), f"{file.path} of {ref}")
    return PublishedMaps(
        layers.start, "source", file.path, layers, (shape[0], shape[1] - 1), features, (file,)
    )


def _format1(hub: Hub, ref: RepoRef, sha: str, files: Mapping[str, RemoteFile], folder: str) -> PublishedMaps:
    """Files of a format-1 folder, as its manifest lists them, which is fetched.

    Raises:
        BadInput: a listed file is missing or is another one.
    """
    prefix = f"{folder}/" if folder else ""
    manifest = files[prefix + FOLDER_MANIFEST]
    _judged(manifest.path, ref)
    require_small(manifest, ref)
    listed = read_folder(sound_file(hub, ref.name, sha, manifest).parent)
    own = [manifest]
    for name, sha256 in listed.hashes.items():
        file = files.get(prefix + name)
        if file is None:
            raise BadInput(f"{ref} lacks {prefix + name}, which its manifest lists", _MEND)
        if file.sha256 is not None and file.sha256 != sha256:
            raise BadInput(f"{file.path} of {ref} is not the file that its manifest names", "do not use it")
        own.append(file)
    layers = contiguous(listed.layers, f"{manifest.path} of {ref}")
    first = files[prefix + listed.layers[layers.start]]
    _, tensors = remote_header(hub, ref.name, sha, first)
    part = f"proj.{layers.start}.{'codes' if listed.int8 else 'weight'}"
    shape = tensors[part].shape if part in tensors else ()
    if len(shape) != 2:
        raise BadInput(f"{first.path} of {ref} holds no map {part}", "do not use it")
    features = tuple(listed.manifest.get("features") or ("state",))
    return PublishedMaps(layers.start, "format1", folder, layers, (shape[0], shape[1]), features, tuple(own))


def _judged(path: str, ref: RepoRef) -> None:
    match = _PATH.fullmatch(path)
    if match is None or ".." in path:
        raise BadInput(f"{ref} names the file {path[:80]!r}, where no maps are looked for", _MEND)
