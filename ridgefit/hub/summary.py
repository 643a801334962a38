"""A repository on the Hub, summed up from its small files and its tensors' headers: no weight is fetched."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ridgefit.errors import BadInput
from ridgefit.hub.calls import Hub
from ridgefit.hub.check import require_hash
from ridgefit.hub.layout import CONFIG, EVALUATION, SUMS, RepoConfig, SplitConfig, read_config, read_sums
from ridgefit.hub.published import is_foreign, published_maps
from ridgefit.hub.reference import RepoRef
from ridgefit.hub.remote import (
    RemoteFile,
    commit_of,
    download,
    files_of,
    judged_files,
    remote_header,
    require_small,
)
from ridgefit.maps import read_maps_manifest
from ridgefit.maps.folder import MANIFEST
from ridgefit.maps.format1 import MANIFEST as FOLDER_MANIFEST
from ridgefit.maps.format1 import read_manifest as read_folder
from ridgefit.maps.recall import POLICY, read_policy
from ridgefit.maps.refresh import CONTROLLER, load_controller

_THREADS = 8
_CODES = {"bfloat16": "weight", "int8": "codes"}


def look(ref: RepoRef | str, hub: Hub | None = None) -> dict[str, Any]:
    """The same summary as `ridgefit.maps.inspect` gives of a folder, and what the repository adds to it.

    Raises:
        BadInput: no such repository, no network, or a header, manifest or hash that does not hold.
    """
    ref = RepoRef.parse(ref) if isinstance(ref, str) else ref
    hub = hub or Hub()
    sha = commit_of(hub, ref)
    listed = files_of(hub, ref.name, sha)
    if is_foreign(listed):
        return _foreign(hub, ref, sha, listed)
    remote = judged_files(listed, str(ref))
    folder = _small_files(hub, ref, sha, remote)
    config = read_config(folder / CONFIG)
    repository = {
        "name": ref.name,
        "sha": sha,
        "kind": config.kind,
        "base_model": config.base_model,
        "base_model_revision": config.base_model_revision,
        "base_model_stated_by": config.base_model_stated_by,
        "evaluated": EVALUATION in remote,
        "files": len(remote),
        "bytes": sum(file.size for file in remote.values()),
        "versions": config.versions,
    }
    if config.kind != "maps":
        return {"layout": "repository", "repository": repository, **_policy(config, folder)}
    manifest = read_maps_manifest(folder)
    splits = {}
    for split, record in config.splits.items():
        files = read_folder(folder / record.folder)
        names = {layer: f"{record.folder}/{name}" for layer, name in files.layers.items()}
        _judge_headers(hub, ref, sha, remote, record, names)
        own = [path for path in remote if path.startswith(f"{record.folder}/")]
        splits[split] = {
            "layout": manifest.splits[split].layout,
            "layers": list(record.layers),
            "shape": [record.out_width, record.in_width],
            "features": list(files.manifest.get("features", record.features)),
            "defaults": {"tail": record.tail, "sink_rows": record.sink_rows},
            "bytes": sum(remote[path].size for path in own),
            "extras": list(files.extras),
            **manifest.splits[split].model_dump(
                mode="json",
                include={"alphas", "penalty", "rows", "scores", "sha256", "bottleneck", "state_only"},
            ),
        }
    return {
        "layout": "repository",
        "repository": repository,
        "fingerprint": manifest.fingerprint.model_dump(mode="json") if manifest.fingerprint else None,
        "splits": splits,
    }


def _policy(config: RepoConfig, folder: Path) -> dict[str, Any]:
    """A recall policy or a refresh controller, which is one small file."""
    if config.kind == "refresh-controller":
        found = load_controller(folder)
        held = {"controller": found.model_dump(mode="json"), "frozen_sha256": found.frozen_sha256}
        return {"fingerprint": found.fingerprint.model_dump(mode="json"), "splits": {}, **held}
    manifest = read_policy(folder)
    plain = manifest.model_dump(mode="json")
    return {"fingerprint": plain["fingerprint"], "splits": {}, "policy": plain}


def _foreign(hub: Hub, ref: RepoRef, sha: str, files: dict[str, RemoteFile]) -> dict[str, Any]:
    """Splits of a repository that others published, which names no base model and no evaluation."""
    return {
        "layout": "published",
        "repository": {
            "name": ref.name,
            "sha": sha,
            "files": len(files),
            "bytes": sum(file.size for file in files.values()),
        },
        "fingerprint": None,
        "splits": {
            split: {
                "layout": maps.layout,
                "path": maps.root,
                "layers": [split, maps.layers.stop],
                "shape": list(maps.shape),
                "features": list(maps.features),
                "bytes": maps.size,
            }
            for split, maps in sorted(published_maps(hub, ref, sha, files).items())
        },
    }


def _small_files(hub: Hub, ref: RepoRef, sha: str, remote: dict[str, RemoteFile]) -> Path:
    """Snapshot folder with hashes, config and manifests, each compared with its hash."""
    folder = download(hub, ref.name, sha, SUMS).parent
    sums = read_sums(folder / SUMS)
    for path in sums:
        if path in (CONFIG, MANIFEST, POLICY, CONTROLLER) or path.endswith(f"/{FOLDER_MANIFEST}"):
            if path not in remote:
                raise BadInput(f"{ref} lacks {path}", "the publisher must push it again")
            require_small(remote[path], ref)
            require_hash(download(hub, ref.name, sha, path), sums[path])
    for path, file in remote.items():
        if file.sha256 is not None and path in sums and file.sha256 != sums[path]:
            raise BadInput(f"{path} of {ref} is not the file that its {SUMS} names", "do not use it")
    return folder


def _judge_headers(
    hub: Hub,
    ref: RepoRef,
    sha: str,
    remote: dict[str, RemoteFile],
    record: SplitConfig,
    names: dict[int, str],
) -> None:
    """Fetch every layer's header and compare its map's shape with `config.json`.

    Raises:
        BadInput: a layer's file is missing, malformed or of another shape.
    """
    absent = next((path for path in names.values() if path not in remote), None)
    if absent is not None:
        raise BadInput(f"{ref} lacks {absent}", "the publisher must push it again")
    with ThreadPoolExecutor(_THREADS) as pool:
        headers = pool.map(lambda path: remote_header(hub, ref.name, sha, remote[path]), names.values())
        for (layer, path), (_, tensors) in zip(names.items(), headers, strict=True):
            entry = tensors.get(f"proj.{layer}.{_CODES[record.dtype]}")
            shape = entry.shape if entry else None
            if shape != record.shape(layer):
                raise BadInput(
                    f"{path} of {ref} holds a map {shape}, its {CONFIG} says {record.shape(layer)}",
                    "do not use it",
                )
