"""A repository on this machine, judged whole: names, hashes, JSON, headers, shapes, values."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from ridgefit.errors import BadInput
from ridgefit.features import FeatureList
from ridgefit.files import sha256_file
from ridgefit.hub.layout import (
    BENCH,
    CARD,
    CONFIG,
    EVALUATION,
    FOREIGN,
    NOTICE,
    PLOTS,
    PROVENANCE,
    SUMS,
    RepoConfig,
    judged_path,
    read_config,
    read_sums,
    require_distinct,
)
from ridgefit.hub.strict import read_strict
from ridgefit.maps import FREQUENCIES, MapSet, feature_versions, load_maps, read_maps_manifest
from ridgefit.maps.fingerprint import Fingerprint
from ridgefit.maps.folder import MANIFEST
from ridgefit.maps.format1 import MANIFEST as FOLDER_MANIFEST
from ridgefit.maps.format1 import read_manifest as read_folder
from ridgefit.maps.recall import RecallPolicy
from ridgefit.maps.refresh import load_controller

_STATED = ("family", "dims", "layer_kinds", "dtype", "config_sha256", "tokenizer_sha256")
_MEND = "fetch or build the repository again"
_FILES_LIMIT = 20_000
_ROOT = {CONFIG, MANIFEST, PROVENANCE, EVALUATION, BENCH, NOTICE, SUMS, FREQUENCIES, "LICENSE"}
_DTYPES = {"bfloat16": "format1-bf16", "int8": "format1-int8"}


def repository_files(folder: Path, *, links: bool = False) -> list[str]:
    """Paths of a repository's files, in order; metadata of git and of the Hub client left out.

    Args:
        folder: the repository.
        links: allow links, which the Hub client's cache is made of.

    Raises:
        BadInput: a link, a folder or a file that no map repository holds.
    """
    found = []
    for item in sorted(folder.rglob("*")):
        path = item.relative_to(folder).as_posix()
        if path.startswith((".git/", ".cache/")) or path in (".git", ".cache", ".gitattributes"):
            continue
        if item.is_symlink() and not links:
            raise BadInput(f"{item} is a link", "put the file itself there")
        if item.is_dir():
            judged_path(f"{path}/config.json" if not path.startswith("plots") else f"{path}/x.png", folder)
            continue
        if not item.is_file():
            raise BadInput(f"{item} is not a plain file", _MEND)
        found.append(judged_path(path, folder))
        if len(found) > _FILES_LIMIT:
            raise BadInput(f"{folder} holds more than {_FILES_LIMIT} files", _MEND)
    require_distinct(found, folder)
    return found


def check_repository(
    folder: Path,
    *,
    splits: Collection[int] | None = None,
    links: bool = False,
    values: bool = True,
    hashes: bool = True,
) -> RepoConfig:
    """Judge a repository before it is used or sent.

    Args:
        folder: the repository.
        splits: only these are there; None means all.
        links: allow links, which the Hub client's cache is made of.
        values: also read every weight; without it, headers alone are judged, and a tensor file is hashed
            when its first weight is read.
        hashes: compare tensor files with SHA256SUMS now; other files always are.

    Returns:
        its `config.json`.

    Raises:
        BadInput: the first thing that is wrong, by name.
    """
    present = repository_files(folder, links=links)
    sums = read_sums(folder / SUMS)
    chosen = sums if splits is None else {p: s for p, s in sums.items() if _belongs(p, splits)}
    for path in chosen:
        if path not in present and not (splits is not None and path.startswith("plots/")):
            raise BadInput(f"{folder} lacks {path}", _MEND)
    for path in present:
        if path in FOREIGN or path == CARD:
            continue
        if path not in sums:
            raise BadInput(f"{folder / path} is not in {SUMS}", "remove it, or build the repository again")
        if path in chosen and (hashes or not path.endswith(".safetensors")):
            require_hash(folder / path, sums[path])
    config = read_config(folder / CONFIG)
    for path in present:
        if path.endswith(".json"):
            read_strict(folder / path)
    if config.kind == "maps":
        chosen_splits = config.splits if splits is None else splits
        _check_maps(folder, config, chosen_splits, present=set(present), sums=sums, values=values)
    if config.kind == "recall-policy":
        _check_stated(folder, config, RecallPolicy.load(folder).manifest.fingerprint, "policy")
    if config.kind == "refresh-controller":
        _check_stated(folder, config, load_controller(folder).fingerprint, "controller")
    return config


def require_hash(path: Path, wanted: str) -> None:
    """Compare a file with its hash.

    Raises:
        BadInput: it is another file; names both.
    """
    try:
        found = sha256_file(path)
    except OSError as error:
        raise BadInput(f"cannot read {path} ({error.strerror or error})", _MEND) from error
    if found != wanted:
        raise BadInput(
            f"{path} is not the file that {SUMS} names (sha256 {found[:12]}…, expected {wanted[:12]}…)", _MEND
        )


def require_no_controls(features: Sequence[str], where: str) -> None:
    """Refuse maps that were fitted to show that a wrong input does not help.

    Raises:
        BadInput: naming the control.
    """
    controls = FeatureList(features).controls
    if controls:
        raise BadInput(
            f"maps in {where} read the control feature {controls[0]}, which is for ablations only",
            "publish maps without control features",
        )


def _belongs(path: str, splits: Collection[int]) -> bool:
    folder, slash, _ = path.partition("/")
    return not slash or folder in {f"s{split}" for split in splits}


def _check_stated(folder: Path, config: RepoConfig, held: Fingerprint, what: str) -> None:
    """Refuse an artefact that is of another model than the repository says."""
    for field in _STATED:
        stated, found = getattr(config, field), getattr(held, field)
        if stated != found:
            raise BadInput(f"{folder / CONFIG} states {field} {stated} and the {what} {found}", _MEND)


def _check_maps(
    folder: Path,
    config: RepoConfig,
    splits: Collection[int],
    *,
    present: set[str],
    sums: Mapping[str, str],
    values: bool,
) -> None:
    manifest = read_maps_manifest(folder)
    origin = manifest.fingerprint
    if origin is None:
        raise BadInput(f"{folder / MANIFEST} names no base model", "publish maps that carry a fingerprint")
    for field in _STATED:
        stated, found = getattr(config, field), getattr(origin, field)
        if stated != found:
            raise BadInput(
                f"{folder / CONFIG} states {field} {str(stated)[:80]} and {MANIFEST} {str(found)[:80]}", _MEND
            )
    folders = {PLOTS, *(record.folder for record in config.splits.values())}
    for path in sorted({*present, *sums}):
        above, _, name = path.rpartition("/")
        if above not in folders and (above or not (name in _ROOT or name.endswith(".md"))):
            raise BadInput(f"{folder / path} belongs to none of the splits", "remove it, or build it again")
    if set(config.splits) != set(manifest.splits):
        raise BadInput(f"{folder / CONFIG} and {MANIFEST} name different splits", _MEND)
    for split in splits:
        if split not in config.splits:
            known = ", ".join(map(str, config.splits))
            raise BadInput(f"{folder} holds no split {split}, only {known}", "choose one with --split")
        record = manifest.splits[split]
        stated_split = config.splits[split]
        if record.file != stated_split.folder:
            raise BadInput(f"{folder / MANIFEST} puts split {split} into {record.file}", _MEND)
        maps = load_maps(folder, split)
        require_no_controls(maps.features, str(folder))
        _compare(folder, dict(stated_split), maps)
        own = {f"{record.file}/{n}": sha for n, sha in read_folder(folder / record.file).hashes.items()}
        for path, sha256 in own.items():
            if sums.get(path) != sha256:
                raise BadInput(
                    f"{record.file}/{FOLDER_MANIFEST} and {SUMS} of {folder} differ on {path}", _MEND
                )
        listed = {*own, f"{record.file}/{FOLDER_MANIFEST}"}
        other = sorted({p for p in present if p.startswith(f"{record.file}/")} - listed)
        if other:
            raise BadInput(f"{folder / other[0]} is not in {record.file}/{FOLDER_MANIFEST}", _MEND)
        if maps.layers.stop != origin.dims.get("n_layers", maps.layers.stop):
            raise BadInput(f"{folder / record.file} ends at another layer than its model", _MEND)
        if maps.out_width != origin.dims.get("hidden", maps.out_width):
            raise BadInput(f"{folder / record.file} has another width than its model", _MEND)
        if values:
            maps.bottleneck_weight()
            for layer in maps.layers:
                maps.layer(layer)


def _compare(folder: Path, stated: dict[str, object], maps: MapSet) -> None:
    found = {
        "layers": (maps.layers.start, maps.layers.stop),
        "in_width": maps.in_width,
        "out_width": maps.out_width,
        "features": feature_versions(maps.features),
        "bottleneck": maps.bottleneck.shape if maps.bottleneck else None,
        "state_only": maps.state_only,
        "tail": maps.defaults.tail,
        "sink_rows": maps.defaults.sink_rows,
    }
    for field, value in found.items():
        if stated[field] != value:
            raise BadInput(f"{folder / CONFIG} states {field} {stated[field]}, its maps have {value}", _MEND)
    if _DTYPES[str(stated["dtype"])] != maps.source:
        raise BadInput(f"{folder / CONFIG} states {stated['dtype']}, its maps are {maps.source}", _MEND)
