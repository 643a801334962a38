"""The penalty grid of a folder of maps, read from its `ridgefit.json` for the report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgefit.errors import BadInput
from ridgefit.maps import read_maps_manifest


@dataclass(frozen=True)
class PenaltyPoint:
    """One penalty's held-out score, and whether it was chosen."""

    alpha: float
    score: float
    chosen: bool


@dataclass(frozen=True)
class PenaltyGrid:
    """The penalties tried at one split, ascending."""

    split: int
    points: tuple[PenaltyPoint, ...]


def penalty_grids(maps: Path) -> list[PenaltyGrid]:
    """Grids of every split in a maps folder; empty where the folder records none.

    Raises:
        BadInput: no readable `ridgefit.json`, or a grid in it that cannot be read.
    """
    found = []
    for split, record in read_maps_manifest(maps).splits.items():
        try:
            points = tuple(
                PenaltyPoint(
                    float(tried["alpha"]), float(tried["mean"]), float(tried["alpha"]) in record.alphas
                )
                for tried in _tried(record.scores)
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(f"the penalty grid of split {split} in {maps} cannot be read") from error
        if points:
            found.append(PenaltyGrid(split, points))
    return found


def _tried(scores: Any) -> list[Any]:
    """The grid within what `solve` records of a split: at the top or inside the choice."""
    if not isinstance(scores, dict):
        return []
    choice = scores.get("choice")
    return list(scores.get("grid") or (choice.get("grid") if isinstance(choice, dict) else None) or ())
