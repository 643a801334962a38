"""The candidates that maps were chosen from, as `solve` recorded them: a table per split."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ridgefit.errors import BadInput
from ridgefit.evaluate.tables import Grid
from ridgefit.maps import read_maps_manifest

HEADS = (
    "candidate",
    "keys",
    "values",
    "energy",
    "copied",
    "over plain, points",
    "loss",
    "over plain, nats",
    "map MACs",
)
LEGEND = (
    "Keys and values: held-out cosine of what late layers write. Energy: of the response in keys that a "
    "bottleneck keeps. Copied: of the repeated tokens that the exact model predicts. Loss: nats per novel "
    "token of held-out windows over the exact model's. `*` is what the maps are, `+` copies most for its "
    "multiply-accumulates."
)


class CandidateTable(NamedTuple):
    """One split's candidates.

    Attributes:
        grid: a row per candidate, the plain maps first.
        chosen: which one the maps are, and why, as a sentence.
    """

    grid: Grid
    chosen: str


def candidate_tables(maps: Path) -> list[CandidateTable]:
    """Tables of a MAPS folder, one per split whose maps were compared with others.

    Raises:
        BadInput: there is no readable `ridgefit.json`, or candidates in it that cannot be read.
    """
    tables = []
    for split, record in read_maps_manifest(maps).splits.items():
        found = record.scores.get("frontier") if isinstance(record.scores, Mapping) else None
        if found is None:
            continue
        if not isinstance(found, Mapping):
            raise BadInput(f"the candidates of split {split} in {maps} cannot be read")
        try:
            tables.append(candidate_table(split, found))
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(f"the candidates of split {split} in {maps} cannot be read") from error
    return tables


def candidate_table(split: int, frontier: Mapping[str, Any]) -> CandidateTable:
    """A split's candidates from what `solve` recorded, JSON values."""
    rows = tuple(_row(item, frontier["chosen"]) for item in frontier["candidates"])
    return CandidateTable(
        Grid(f"split {split}, candidates", HEADS, rows),
        f"split {split}: {frontier['chosen']}; {frontier['reason']}",
    )


def _row(item: Mapping[str, Any], chosen: str) -> tuple[str, ...]:
    mark = " *" if item["name"] == chosen else " +" if item["frontier"] else ""
    return (
        f"{item['name']}{mark}",
        f"{item['keys']:.4f}",
        f"{item['values']:.4f}",
        _share(item["energy"]),
        _share(item["copied"]),
        _gain(item["copied_gain"], 100, 1),
        "–" if item["loss"] is None else f"{item['loss']:+.4f}",
        _gain(item["loss_gain"], 1, 4),
        f"{100 * item['extra']:+.1f} %",
    )


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _gain(found: Mapping[str, Any] | None, scale: float, digits: int) -> str:
    if found is None:
        return "–"
    mean = f"{scale * found['mean']:+.{digits}f}"
    if found["low"] is None:
        return mean
    return f"{mean} [{scale * found['low']:+.{digits}f}, {scale * found['high']:+.{digits}f}]"
