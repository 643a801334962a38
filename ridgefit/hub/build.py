"""A maps folder made into a repository: the same inputs give the same bytes on every machine."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgefit.errors import BadInput
from ridgefit.files import new_folder, sha256_file, write_json
from ridgefit.hub.card import About, card
from ridgefit.hub.check import require_no_controls
from ridgefit.hub.layout import (
    BENCH,
    CONFIG,
    EVALUATION,
    PLOTS,
    PROVENANCE,
    RepoConfig,
    SplitConfig,
)
from ridgefit.hub.reference import is_commit
from ridgefit.hub.seal import config_of, seal
from ridgefit.hub.strict import read_strict
from ridgefit.maps import (
    FREQUENCIES,
    Credit,
    Fingerprint,
    Format1Settings,
    Frequencies,
    MapSet,
    MapsManifest,
    SplitMaps,
    feature_versions,
    kind_of,
    load_maps,
    read_maps_manifest,
    write_format1,
)
from ridgefit.maps.folder import read_split, record_of, write_manifest
from ridgefit.maps.format1 import MANIFEST as FOLDER_MANIFEST
from ridgefit.maps.format1 import read_manifest as read_folder

Progress = Callable[[int, int | None, str], None]
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_DATASET = re.compile(r"hub:([\w][\w.-]*/[\w][\w.-]*)(?:[@:].*)?")


@dataclass(frozen=True)
class Base:
    """The base model as the repository states it.

    Attributes:
        name: Hub name.
        revision: 40 hex digits.
        stated_by: "fit" or "publisher".
    """

    name: str
    revision: str
    stated_by: str


def base_of(fingerprint: Fingerprint | None, stated: str | None, where: object) -> Base:
    """Base model and commit, from the fit's own record or, where that has none, from the publisher.

    Args:
        fingerprint: of the maps.
        stated: `org/name@<40 hex digits>`, or None.
        where: the maps, for the sentence.

    Raises:
        BadInput: the maps carry no fingerprint with a tokenizer, nobody names a commit, or the publisher
            contradicts the fit.
    """
    if fingerprint is None or not fingerprint.tokenizer_sha256 or not fingerprint.dims:
        raise BadInput(
            f"{where} carries no fingerprint of its base model, so nobody could tell what it belongs to",
            "publish maps that `ridgefit solve` wrote",
        )
    recorded = _HUB_NAME.fullmatch(fingerprint.name) is not None and is_commit(fingerprint.revision)
    if stated is None:
        if not recorded or fingerprint.revision is None:
            raise BadInput(
                f"{where} was fitted on {fingerprint.name!r} and records no Hub name with a commit",
                "state it with --base-model org/name@<40 hex digits>",
            )
        return Base(fingerprint.name, fingerprint.revision, "fit")
    name, _, revision = stated.partition("@")
    if not _HUB_NAME.fullmatch(name) or not is_commit(revision):
        raise BadInput(f"{stated[:100]!r} is not org/name@<40 hex digits>", "give the whole commit hash")
    if recorded and (name, revision) != (fingerprint.name, fingerprint.revision):
        raise BadInput(
            f"{where} was fitted on {fingerprint.name}@{fingerprint.revision}, not on {stated}",
            "leave --base-model out",
        )
    return Base(name, revision, "fit" if recorded else "publisher")


def opened(maps: Path) -> tuple[MapsManifest, Mapping[int, MapSet]]:
    """Manifest and maps of whatever layout; a single file or folder gets a manifest of its own.

    Raises:
        BadInput: nothing there, or damaged.
    """
    if kind_of(maps) == "maps":
        manifest = read_maps_manifest(maps)
        return manifest, {split: read_split(maps, manifest, split) for split in manifest.splits}
    found = load_maps(maps)
    record = record_of(
        found,
        file=f"s{found.split}",
        layout="format1-int8" if found.source == "format1-int8" else "format1-bf16",
        sha256="0" * 64,
        split=SplitMaps(found),
    )
    return MapsManifest(fingerprint=found.fingerprint, splits={found.split: record}), {found.split: found}


def build_repository(
    maps: Path,
    out: Path,
    base: Base,
    about: About,
    *,
    evaluation: Mapping[str, Any] | None = None,
    bench: Mapping[str, Any] | None = None,
    plots: Mapping[str, Path] | None = None,
    progress: Progress | None = None,
) -> RepoConfig:
    """Write a repository, whole or not at all, and judge what was written.

    Source files become one bf16 file per layer with the same weights; format-1 folders are copied.

    Args:
        maps: maps folder, source file or format-1 folder.
        out: must not exist or be empty.
        base: the base model.
        about: licence, data, results for the card.
        evaluation: content of evaluation.json.
        bench: content of bench.json.
        plots: PNG files by the name that they get.
        progress: called with splits done, splits in all, and what is being done.

    Raises:
        BadInput: damaged maps, or a folder that is in use or cannot be written.
    """
    manifest, opened_maps = opened(maps)
    for item in opened_maps.values():
        require_no_controls(item.features, str(maps))
    records, configs = {}, {}
    with new_folder(out) as folder:
        for number, (split, item) in enumerate(opened_maps.items()):
            if progress:
                progress(number, len(opened_maps), f"split {split}")
            name = f"s{split}"
            _write_split(item, folder / name, about)
            layout = "format1-int8" if item.source == "format1-int8" else "format1-bf16"
            records[split] = manifest.splits[split].model_copy(
                update={
                    "file": name,
                    "layout": layout,
                    "sha256": sha256_file(folder / name / FOLDER_MANIFEST),
                }
            )
            configs[split] = SplitConfig(
                folder=name,
                layers=(item.layers.start, item.layers.stop),
                in_width=item.in_width,
                out_width=item.out_width,
                features=feature_versions(item.features),
                dtype="int8" if item.source == "format1-int8" else "bfloat16",
                tail=item.defaults.tail,
                sink_rows=item.defaults.sink_rows,
                bottleneck=item.bottleneck.shape if item.bottleneck else None,
                state_only=item.state_only,
            )
        origin = _provenance(manifest, maps)
        config = config_of("maps", manifest.fingerprint, base, origin.get("versions"), configs)
        write_json(folder / CONFIG, config.model_dump(mode="json"))
        write_json(folder / PROVENANCE, origin)
        pinned: dict[str, Any] = {"file": PROVENANCE, "sha256": sha256_file(folder / PROVENANCE)}
        write_manifest(folder, manifest.model_copy(update={"splits": records, "provenance": pinned}))
        if evaluation is not None:
            write_json(folder / EVALUATION, without_places(evaluation))
        if (maps / FREQUENCIES).is_file():
            Frequencies.read(maps / FREQUENCIES).write(folder / FREQUENCIES)
        if bench is not None:
            write_json(folder / BENCH, without_places(bench))
        for name, source in (plots or {}).items():
            (folder / PLOTS).mkdir(exist_ok=True)
            shutil.copyfile(source, folder / PLOTS / name)
        fits = {split: record.model_dump(mode="json") for split, record in manifest.splits.items()}
        seal(folder, about.licence.notice, card(config, about, fits))
    return config


def data_sets(manifest: MapsManifest, maps: Path) -> tuple[str, ...]:
    """Hub data sets that the provenance names, in order of name."""
    found = (_DATASET.fullmatch(text) for text in _strings(_provenance(manifest, maps)))
    return tuple(sorted({match[1] for match in found if match}))


def without_places(value: Any) -> Any:
    """JSON in which paths of the machine that made it are cut to their last part."""
    if isinstance(value, Mapping):
        return {key: without_places(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_places(item) for item in value]
    if isinstance(value, str) and re.match(r"(/|~/|\.{1,2}/|[A-Za-z]:\\)[^\n]*$", value):
        return Path(value.replace("\\", "/")).name
    return value


def _write_split(maps: MapSet, target: Path, about: About) -> None:
    if maps.source == "source":
        credit = Credit(name=about.repo, license=about.licence.id)
        write_format1(target, maps, int8=False, settings=Format1Settings(credit=credit))
        return
    if maps.path is None:
        raise BadInput("maps in memory cannot be published", "write them with write_maps first")
    target.mkdir()
    for name in (*sorted(read_folder(maps.path).hashes), FOLDER_MANIFEST):
        shutil.copyfile(maps.path / name, target / name)


def _provenance(manifest: MapsManifest, maps: Path) -> dict[str, Any]:
    """What the fit recorded, with each split's grid and held-out scores; a repository has it ready."""
    kept = maps / PROVENANCE
    if kept.is_file() and manifest.provenance.get("sha256") == sha256_file(kept):
        return read_strict(kept)
    splits = {
        str(split): record.model_dump(mode="json", include={"alphas", "penalty", "rows", "scores", "sha256"})
        for split, record in manifest.splits.items()
    }
    found: dict[str, Any] = without_places({**manifest.provenance, "splits": splits})
    return {"format": "ridgefit-provenance-1", **found}


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)
