"""What a solve found, split by split; the same that stands in the maps' manifest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

from ridgefit.pipeline.candidates import Solved
from ridgefit.pipeline.frontier import Frontier
from ridgefit.ridge import Choice, FitReport


class LayerReport(BaseModel):
    """Held-out cosines of one late layer under its chosen penalty, the identity fill's beside them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    layer: int
    alpha: float
    keys: float
    values: float
    inputs: float
    identity_keys: float
    identity_values: float
    identity_inputs: float


class SplitReport(BaseModel):
    """One split: its fit, the penalty grid, the choice, and what it is worth layer by layer.

    Attributes:
        split: split layer.
        fit: rows, spectrum, degrees of freedom.
        choice: chosen penalties and the whole grid.
        layers: per late layer.
        scored_rows: held-out rows behind the scores.
        identity: mean cosine of keys and values that the identity fill writes, on the same rows.
        frontier: the candidates and which one these maps are; None where only these were solved.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    split: int
    fit: FitReport
    choice: Choice
    layers: tuple[LayerReport, ...]
    scored_rows: int
    identity: float
    frontier: Frontier | None = None

    @classmethod
    def of(cls, split: int, solved: Solved, frontier: Frontier | None = None) -> SplitReport:
        """Report of one solved candidate."""
        return cls(
            split=split,
            fit=solved.fit,
            choice=solved.choice,
            layers=tuple(_layers(split, solved)),
            scored_rows=solved.scored_rows,
            identity=solved.identity.written,
            frontier=frontier,
        )

    @model_serializer(mode="wrap")
    def _no_frontier_goes_unsaid(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Maps that were compared with nothing keep the bytes of their manifest."""
        saved: dict[str, Any] = plain(self)
        return {name: value for name, value in saved.items() if name != "frontier" or value is not None}

    @property
    def warnings(self) -> tuple[str, ...]:
        """Everything a reader should know before trusting the maps."""
        return tuple(f"split {self.split}: {line}" for line in (*self.fit.warnings, *self.choice.warnings))


class SolveReport(BaseModel):
    """What `solve` wrote."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    out: str
    splits: tuple[SplitReport, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of every split."""
        return tuple(line for split in self.splits for line in split.warnings)


def _layers(split: int, solved: Solved) -> Iterator[LayerReport]:
    ridge, identity = solved.cosines, solved.identity
    for at, alpha in enumerate(solved.choice.alphas):
        yield LayerReport(
            layer=split + at,
            alpha=alpha,
            keys=ridge.keys[at],
            values=ridge.values[at],
            inputs=ridge.inputs[at],
            identity_keys=identity.keys[at],
            identity_values=identity.values[at],
            identity_inputs=identity.inputs[at],
        )
