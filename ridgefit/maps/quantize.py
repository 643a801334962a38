"""int8 copies of maps, in the format-1 layout that engines read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from ridgefit.errors import BadInput
from ridgefit.files import new_folder, sha256_file
from ridgefit.maps.folder import (
    MANIFEST,
    MapsManifest,
    SplitRecord,
    read_manifest,
    read_split,
    write_manifest,
)
from ridgefit.maps.format1_write import Format1Report, Format1Settings, Progress, write_format1
from ridgefit.maps.frequencies import FREQUENCIES, Frequencies
from ridgefit.maps.load import kind_of, load_maps
from ridgefit.maps.mapset import MapSet


class QuantizeReport(BaseModel):
    """What `quantize` wrote.

    Attributes:
        splits: per split its folder's report.
        largest_error_steps: largest |weight - code x scale| over all maps, in units of a group's scale.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    splits: dict[int, Format1Report]
    largest_error_steps: float


def quantize(
    path: str | Path,
    out: Path,
    *,
    settings: Format1Settings | None = None,
    progress: Progress | None = None,
) -> QuantizeReport:
    """Write int8 maps: a MAPS folder becomes one, a source file or a bf16 folder becomes one format-1 folder.

    Args:
        path: a MAPS folder, one source file, or a format-1 bf16 folder.
        out: must not exist or be empty.
        settings: credit and engine names for the manifests.
        progress: called with files done and files in all, per split.

    Raises:
        BadInput: the maps are int8 already, their width is no multiple of 128, or a file is malformed.
    """
    path = Path(path)
    if kind_of(path) != "maps":
        report = write_format1(out, load_maps(path), int8=True, settings=settings, progress=progress)
        return _report([report])
    manifest = read_manifest(path)
    reports: list[Format1Report] = []
    records: dict[int, SplitRecord] = {}
    with new_folder(out) as partial:
        for split, record, maps in _splits(path, manifest):
            name = f"s{split}"
            report = write_format1(partial / name, maps, int8=True, settings=settings, progress=progress)
            reports.append(report)
            records[split] = record.model_copy(
                update={
                    "file": name,
                    "layout": "format1-int8",
                    "sha256": report.manifest_sha256,
                    "largest_error_steps": max(report.steps.values()),
                }
            )
        provenance = manifest.provenance | {"quantized_from": sha256_file(path / MANIFEST)}
        if (path / FREQUENCIES).is_file():
            Frequencies.read(path / FREQUENCIES).write(partial / FREQUENCIES)
        write_manifest(partial, manifest.model_copy(update={"splits": records, "provenance": provenance}))
    return _report(reports)


def _splits(path: Path, manifest: MapsManifest) -> Iterator[tuple[int, SplitRecord, MapSet]]:
    for split, record in manifest.splits.items():
        if record.layout == "format1-int8":
            raise BadInput(f"split {split} of {path} is int8 already", "quantize the maps it was made from")
        yield split, record, read_split(path, manifest, split)


def _report(reports: list[Format1Report]) -> QuantizeReport:
    worst = max(step for report in reports for step in report.steps.values())
    return QuantizeReport(splits={item.split: item for item in reports}, largest_error_steps=worst)
