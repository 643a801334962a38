"""Moments to maps: spectrum, penalties, grid and choice. Pure numerics, no model."""

from __future__ import annotations

from ridgefit.ridge.blocks import BlockSums, projected, selected
from ridgefit.ridge.bottleneck import Directions, conditional, directions
from ridgefit.ridge.choice import Choice, GridScore, choose
from ridgefit.ridge.fit import AlphaReport, FitReport, RidgeFit, Sums
from ridgefit.ridge.spectrum import Penalty, Spectrum

__all__ = [
    "AlphaReport",
    "BlockSums",
    "Choice",
    "Directions",
    "FitReport",
    "GridScore",
    "Penalty",
    "RidgeFit",
    "Spectrum",
    "Sums",
    "choose",
    "conditional",
    "directions",
    "projected",
    "selected",
]
