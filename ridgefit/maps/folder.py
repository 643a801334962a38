"""The MAPS folder that `solve` writes: `s<split>.safetensors` per split, and `ridgefit.json` about them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
)

from ridgefit.errors import BadInput
from ridgefit.files import new_folder, sha256_file, write_json
from ridgefit.maps.fingerprint import Fingerprint
from ridgefit.maps.format1 import MANIFEST as FORMAT1_MANIFEST
from ridgefit.maps.format1 import read_format1, read_table
from ridgefit.maps.frequencies import FREQUENCIES, Frequencies
from ridgefit.maps.mapset import Defaults, MapSet
from ridgefit.maps.names import feature_versions, require_known
from ridgefit.maps.source import read_source, write_source

MANIFEST = "ridgefit.json"
FORMAT = "ridgefit-maps-1"


class SplitRecord(BaseModel):
    """One split of a MAPS folder.

    Attributes:
        file: a source file, or a format-1 folder, beside the manifest.
        layout: which of the two.
        sha256: of the file, or of the folder's own manifest, which holds the hashes of the rest.
        layers: first late layer, and the number of layers of the model.
        in_width: columns of what is kept of a row.
        out_width: rows of a map.
        features: what a map reads, with the version of each definition; their order is the file's own.
        alphas: scale-free penalty of each late layer, split layer first.
        penalty: how alpha becomes lambda.
        rows: rows of the fit.
        scores: grid, held-out scores and fit report.
        defaults: suggested tail and sink rows.
        largest_error_steps: int8 only, largest |weight - code x scale| in units of its group's scale.
        bottleneck: `(rest_width, rank)` of what the features other than the state go through; None without.
        state_only: layers whose map reads the state alone, where others read more.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str
    layout: Literal["source", "format1-bf16", "format1-int8"]
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    layers: tuple[int, int]
    in_width: int = Field(ge=1)
    out_width: int = Field(ge=1)
    features: dict[str, int]
    alphas: tuple[float, ...] = ()
    penalty: str = "mean-diag"
    rows: int | None = None
    scores: JsonValue = None
    defaults: Defaults = Defaults()
    largest_error_steps: float | None = None
    bottleneck: tuple[int, int] | None = None
    state_only: tuple[int, ...] = ()

    @model_serializer(mode="wrap")
    def _plain_maps_say_nothing_new(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Records of maps that read the state alone keep their bytes."""
        saved: dict[str, Any] = plain(self)
        fresh = {"bottleneck": self.bottleneck, "state_only": self.state_only}
        return {name: value for name, value in saved.items() if fresh.get(name, True)}

    @field_validator("file")
    @classmethod
    def _inside(cls, name: str) -> str:
        if not re.fullmatch(r"s[0-9]{1,5}(\.safetensors)?", name):
            raise ValueError(f"{name[:60]!r} is not the name of a split's file")
        return name


class MapsManifest(BaseModel):
    """`ridgefit.json`.

    Attributes:
        format: version of this file.
        fingerprint: the model the maps belong to; None where it is not known.
        provenance: calibration text by hash, capture settings, library versions.
        splits: by split layer.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["ridgefit-maps-1"] = "ridgefit-maps-1"
    fingerprint: Fingerprint | None = None
    provenance: dict[str, JsonValue] = {}
    splits: dict[int, SplitRecord] = Field(min_length=1)


@dataclass(frozen=True)
class SplitMaps:
    """What `write_maps` needs of one split.

    Attributes:
        maps: read layer by layer while the file is written, so they may be solved then.
        alphas: scale-free penalty of each late layer.
        penalty: how alpha becomes lambda.
        rows: rows of the fit.
        scores: anything JSON: the grid, the choice, the fit report.
        metadata: further strings for the file's header.
    """

    maps: MapSet
    alphas: tuple[float, ...] = ()
    penalty: str = "mean-diag"
    rows: int | None = None
    scores: JsonValue = None
    metadata: Mapping[str, str] = field(default_factory=dict)


def write_maps(
    out: Path,
    splits: Iterable[SplitMaps],
    *,
    fingerprint: Fingerprint | None = None,
    provenance: Mapping[str, JsonValue] | None = None,
    frequencies: Path | None = None,
) -> MapsManifest:
    """Write a MAPS folder, whole or not at all.

    Args:
        out: must not exist or be empty.
        splits: consumed one at a time.
        fingerprint: the model; also written into every file's header, which may travel alone.
        provenance: anything JSON about where the maps come from.
        frequencies: token frequency table of the capture, which is put beside the maps; may not exist.

    Raises:
        BadInput: two splits are the same, a map is not finite, or the folder is in use or cannot be written.
    """
    with new_folder(out) as partial:
        writer = MapsWriter(partial, fingerprint=fingerprint, provenance=provenance, frequencies=frequencies)
        for item in splits:
            writer.add(item)
        return writer.finish()


class MapsWriter:
    """Fills a MAPS folder split by split; it is one only once `finish` has written its manifest.

    Args:
        folder: where to; made if need be. For a folder that is whole or not at all, see `write_maps`.
        fingerprint: the model; also written into every file's header, which may travel alone.
        provenance: anything JSON about where the maps come from.
        frequencies: token frequency table of the capture, which is put beside the maps; may not exist.
    """

    def __init__(
        self,
        folder: Path,
        *,
        fingerprint: Fingerprint | None = None,
        provenance: Mapping[str, JsonValue] | None = None,
        frequencies: Path | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._fingerprint = fingerprint
        self._provenance = dict(provenance or {})
        self._frequencies = frequencies
        self._records: dict[int, SplitRecord] = {}

    def add(self, item: SplitMaps) -> None:
        """Write one split.

        Raises:
            BadInput: it is there already, a map is not finite, or the file cannot be written.
        """
        maps = replace(item.maps, fingerprint=self._fingerprint or item.maps.fingerprint)
        if maps.split in self._records:
            raise BadInput(f"split {maps.split} was solved twice")
        name = f"s{maps.split}.safetensors"
        sha256 = write_source(self._folder / name, maps, _header(item, self._fingerprint))
        self._records[maps.split] = record_of(maps, file=name, layout="source", sha256=sha256, split=item)

    def finish(self) -> MapsManifest:
        """Write the manifest."""
        manifest = MapsManifest(
            fingerprint=self._fingerprint,
            provenance=self._provenance,
            splits=dict(sorted(self._records.items())),
        )
        write_manifest(self._folder, manifest)
        if self._frequencies is not None and self._frequencies.is_file():
            Frequencies.read(self._frequencies).write(self._folder / FREQUENCIES)
        return manifest


def record_of(
    maps: MapSet,
    *,
    file: str,
    layout: Literal["source", "format1-bf16", "format1-int8"],
    sha256: str,
    split: SplitMaps,
) -> SplitRecord:
    """The manifest's entry of one split."""
    return SplitRecord(
        file=file,
        layout=layout,
        sha256=sha256,
        layers=(maps.layers.start, maps.layers.stop),
        in_width=maps.in_width,
        out_width=maps.out_width,
        features=feature_versions(maps.features),
        alphas=split.alphas,
        penalty=split.penalty,
        rows=split.rows,
        scores=split.scores,
        defaults=maps.defaults,
        bottleneck=maps.bottleneck.shape if maps.bottleneck else None,
        state_only=maps.state_only,
    )


def write_manifest(folder: Path, manifest: MapsManifest) -> None:
    """Write `ridgefit.json`."""
    write_json(folder / MANIFEST, manifest.model_dump(mode="json"))


def read_manifest(folder: Path) -> MapsManifest:
    """Parse `ridgefit.json`; touches no other file.

    Raises:
        BadInput: it is missing, of another format, or does not describe its splits.
    """
    path = folder / MANIFEST
    table = read_table(path)
    if table.get("format") != FORMAT:
        raise BadInput(
            f"{path} is of format {str(table.get('format'))[:40]!r}, this ridgefit reads {FORMAT!r}",
            "upgrade ridgefit",
        )
    try:
        manifest = MapsManifest.model_validate(table)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadInput(
            f"{path} is not readable ({where}: {first['msg']})", "solve or fetch it again"
        ) from error
    for split, record in manifest.splits.items():
        if record.layers[0] != split or record.layers[1] <= split:
            raise BadInput(f"{path} describes split {split} with layers {record.layers}")
        require_known(record.features, str(path))
    return manifest


def read_split(folder: Path, manifest: MapsManifest, split: int | None = None) -> MapSet:
    """Open one split of a MAPS folder.

    Args:
        folder: the MAPS folder.
        manifest: of that folder.
        split: may be None where there is only one.

    Raises:
        BadInput: no such split, or its file is missing, malformed or not what the manifest describes.
    """
    known = ", ".join(map(str, manifest.splits))
    if split is None and len(manifest.splits) > 1:
        raise BadInput(f"{folder} holds several splits ({known})", "name one of them as the split")
    chosen = next(iter(manifest.splits)) if split is None else split
    record = manifest.splits.get(chosen)
    if record is None:
        raise BadInput(f"{folder} holds no split {chosen}, only {known}", "name one of them as the split")
    path = folder / record.file
    if record.layout == "source":
        maps = read_source(path, record.sha256)
    else:
        maps = read_format1(path)
        if sha256_file(path / FORMAT1_MANIFEST) != record.sha256:
            raise BadInput(f"{path / FORMAT1_MANIFEST} is not the file {folder / MANIFEST} names")
    found = record_of(
        maps, file=record.file, layout=record.layout, sha256=record.sha256, split=SplitMaps(maps)
    )
    described = ("layers", "in_width", "out_width", "features", "bottleneck", "state_only")
    differing = [name for name in described if getattr(found, name) != getattr(record, name)]
    if maps.source != record.layout or differing:
        raise BadInput(
            f"{path} holds other maps than {folder / MANIFEST} describes "
            f"({', '.join(differing) or 'layout'})",
            "solve or fetch it again",
        )
    return replace(
        maps,
        fingerprint=manifest.fingerprint or maps.fingerprint,
        defaults=record.defaults,
    )


def _header(item: SplitMaps, fingerprint: Fingerprint | None) -> dict[str, str]:
    """The published fit's keys, then the caller's."""
    header = {}
    if item.alphas:
        header["lambda"] = ",".join(f"{alpha:g}" for alpha in dict.fromkeys(item.alphas))
        if len(set(item.alphas)) > 1:
            header["lambda"] = ",".join(f"{alpha:g}" for alpha in item.alphas)
    if item.rows is not None:
        header["train_rows"] = str(item.rows)
    header["fit"] = "centred ridge, unpenalised bias"
    if fingerprint is not None:
        revision = f"@{fingerprint.revision}" if fingerprint.revision else ""
        header["checkpoint"] = f"{fingerprint.name}{revision}"
    return header | dict(item.metadata)
