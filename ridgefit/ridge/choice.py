"""Which penalty to keep: the one whose maps make late layers write most nearly what they write exactly."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict

from ridgefit.errors import BadInput, CheckFailed


class GridScore(BaseModel):
    """One penalty's held-out score, by late layer, split layer first.

    Attributes:
        alpha: scale-free penalty.
        keys: mean cosine of the written keys (after their norm, before rotary).
        values: mean cosine of the written values.
        mean: over layers, and over keys and values.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    alpha: float
    keys: tuple[float, ...]
    values: tuple[float, ...]
    mean: float


class Choice(BaseModel):
    """The chosen penalty of each late layer, and the whole grid it was chosen from.

    Attributes:
        alphas: one per late layer, split layer first; all equal unless chosen per layer.
        score: mean over layers of the chosen penalties' cosine.
        per_layer: whether each layer chose for itself.
        grid: every penalty tried, ascending.
        warnings: one line each.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    alphas: tuple[float, ...]
    score: float
    per_layer: bool
    grid: tuple[GridScore, ...]
    warnings: tuple[str, ...]

    @property
    def alpha(self) -> float | None:
        """The split's penalty, or None where layers chose different ones."""
        return self.alphas[0] if len(set(self.alphas)) == 1 else None


def choose(
    keys: Mapping[float, Sequence[float]],
    values: Mapping[float, Sequence[float]],
    *,
    per_layer: bool = False,
    groups: Sequence[Sequence[int]] | None = None,
) -> Choice:
    """Pick penalties by the held-out cosine of what late layers write (RidgeFill, section 2.2).

    A tie goes to the larger penalty, the smoother map.

    Args:
        keys: per alpha, each late layer's mean cosine of keys.
        values: the same of values.
        per_layer: let each layer choose; otherwise one alpha serves all (the paper).
        groups: indices of layers that share one alpha, every layer in one group; all layers together if
            absent. Layers whose maps read different inputs have nothing to share.

    Raises:
        BadInput: the grid is empty, or keys and values do not cover the same alphas and layers.
        CheckFailed: a score is not finite.
    """
    grid = _grid(keys, values)
    layers = len(grid[0].keys)
    shared = groups or [range(layers)]
    if per_layer:
        shared = [[layer] for layer in range(layers)]
    found = {layer: _best_of(grid, group) for group in shared for layer in group}
    best = [found[layer] for layer in range(layers)]
    score = math.fsum(g.keys[at] + g.values[at] for at, g in enumerate(best)) / (2 * layers)
    return Choice(
        alphas=tuple(g.alpha for g in best),
        score=score,
        per_layer=per_layer,
        grid=grid,
        warnings=tuple(_edges(grid, [g.alpha for g in best], whole=len(shared) == 1)),
    )


def _grid(
    keys: Mapping[float, Sequence[float]], values: Mapping[float, Sequence[float]]
) -> tuple[GridScore, ...]:
    if not keys:
        raise BadInput("no penalty was scored", "give at least one alpha")
    if set(keys) != set(values) or len({len(row) for row in (*keys.values(), *values.values())}) != 1:
        raise BadInput("scores of keys and values do not cover the same alphas and layers")
    grid = []
    for alpha in sorted(keys):
        row = [*keys[alpha], *values[alpha]]
        if not row or not all(math.isfinite(score) for score in row):
            raise CheckFailed(
                f"the held-out score of alpha {alpha:g} is not finite", "check the held-out text"
            )
        grid.append(
            GridScore(
                alpha=alpha,
                keys=tuple(keys[alpha]),
                values=tuple(values[alpha]),
                mean=math.fsum(row) / len(row),
            )
        )
    return tuple(grid)


def _best_of(grid: Sequence[GridScore], layers: Sequence[int]) -> GridScore:
    def score(entry: GridScore) -> tuple[float, float]:
        written = [*(entry.keys[layer] for layer in layers), *(entry.values[layer] for layer in layers)]
        return math.fsum(written) / len(written), entry.alpha

    return max(grid, key=score)


def _edges(grid: Sequence[GridScore], chosen: Sequence[float], *, whole: bool) -> list[str]:
    """A best value at the end of the grid says that a better one may lie outside."""
    if len(grid) < 2:
        return []
    found = []
    for edge, word in ((grid[0].alpha, "smallest"), (grid[-1].alpha, "largest")):
        count = chosen.count(edge)
        if count and edge > 0:  # nothing lies below no penalty at all
            where = "the split" if whole else f"{count} of {len(chosen)} layers"
            found.append(f"{where} chose alpha {edge:g}, the {word} of the grid; widen --alphas")
    return found
