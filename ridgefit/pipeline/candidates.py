"""Candidates of one split: what its maps may read, all solved from one capture's sums.

The plain maps are the paper's. A candidate's maps read more features of a row, as they are or through one
bottleneck, in all late layers or in some; every one is a part or a projection of the same sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ridgefit.capture import CandidateScores, Cosines, HeldRows
from ridgefit.cost import map_macs
from ridgefit.features import FeatureList, SplitShape
from ridgefit.maps import Bottleneck, Defaults, LayerMap, MapSet
from ridgefit.models import Port
from ridgefit.pipeline.candidate_list import PLAIN_MAPS, require_solvable, wide_layers
from ridgefit.recipe import CandidateSettings, SolveSettings
from ridgefit.ridge import (
    Choice,
    Directions,
    FitReport,
    RidgeFit,
    Sums,
    choose,
    directions,
    projected,
    selected,
)

Progress = Callable[[int, int | None, str], None]
_METRIC_ROWS = 1024


@dataclass(frozen=True)
class Solved:
    """A candidate's penalties and what its maps are worth on held-out rows; the maps come from `SplitSolver`.

    Attributes:
        settings: the candidate.
        fit: of the layers that read all it has.
        choice: penalties of every late layer, and the grid.
        cosines: of the chosen maps, per late layer.
        identity: of the identity fill, on the same rows.
        scored_rows: how many.
        wide: late layers, as indices from the split, that read more than the state.
        macs: multiply-accumulates of its maps per filled row, features and bottleneck included.
        energy: share of the response that a bottleneck keeps; None without one.
    """

    settings: CandidateSettings
    fit: FitReport
    choice: Choice
    cosines: Cosines
    identity: Cosines
    scored_rows: int
    wide: tuple[int, ...]
    macs: int
    energy: float | None


class SplitSolver:
    """Solves any candidate of one split.

    Holds the sums it is given, and those of the last features asked for: ask for candidates of the same
    features one after another.

    Args:
        split: first late layer.
        sums: of all captured features, in their order.
        captured: their names.
        held: held-out rows of the same features.
        port: the model.
        settings: penalty and grid.
        progress: called with what is being done.
    """

    def __init__(
        self,
        split: int,
        sums: Sums,
        captured: Sequence[str],
        held: HeldRows,
        port: Port,
        settings: SolveSettings,
        progress: Progress | None = None,
    ) -> None:
        self.split = split
        self._sums = sums
        self._held = held
        self._port = port
        self._settings = settings
        self._progress = progress
        self._late = port.n_layers - split
        self._shape = SplitShape.of(port, split)
        self._columns: dict[str, range] = {}
        start = 0
        for name, width in zip(captured, FeatureList(captured).widths(self._shape), strict=True):
            self._columns[name] = range(start, start + width)
            start += width
        self._fits: dict[tuple[str, ...], RidgeFit] = {}
        self._known: dict[tuple[str, ...], _Judged] = {}
        self._directions: tuple[CandidateSettings, Directions] | None = None

    def solve(self, candidate: CandidateSettings) -> Solved:
        """Choose a candidate's penalties on held-out rows.

        Raises:
            BadInput: it reads what was not captured, or has a rank or layers that do not exist.
        """
        require_solvable([candidate], tuple(self._columns), self._port, [self.split])
        wide = wide_layers(candidate, self.split, self._late)
        full = self._judged(candidate.features)
        energy, fit, scores, scored = None, full.report, full.scores, list(range(self._late))
        if candidate.rank is not None:
            found = self._directed(candidate)
            basis = found.bottleneck(candidate.rank)
            through = RidgeFit(
                projected(self._fit(candidate.features).sums, self._port.hidden, basis),
                self._settings.penalty,
            )
            fit = through.report(self._settings.alphas, residuals=False)
            scored = wide
            scores = self._held.score(
                self.split,
                through.candidates(self._settings.alphas),
                read=self._reader(candidate.features, basis),
                late=wide,
                progress=self._progress,
            )
            energy = found.kept(candidate.rank)
        keys, values, inputs = (
            self._joined(scores, scored, wide, part) for part in ("keys", "values", "inputs")
        )
        narrow = [at for at in range(self._late) if at not in wide]
        choice = choose(
            keys,
            values,
            per_layer=self._settings.per_layer,
            groups=[group for group in (narrow, wide) if group],
        )
        return Solved(
            settings=candidate,
            fit=fit,
            choice=choice,
            cosines=Cosines(
                *(
                    tuple(part[alpha][at] for at, alpha in enumerate(choice.alphas))
                    for part in (keys, values, inputs)
                )
            ),
            identity=full.scores.identity,
            scored_rows=scores.rows,
            wide=tuple(wide),
            macs=self.macs(candidate),
            energy=energy,
        )

    def maps(self, solved: Solved, defaults: Defaults) -> MapSet:
        """The maps of a solved candidate; each is solved again when it is read, so that one is in memory."""
        candidate, hidden = solved.settings, self._port.hidden
        fit, bottleneck = self._fit(candidate.features), None
        if candidate.rank is not None:
            basis = self._directed(candidate).bottleneck(candidate.rank)
            fit = RidgeFit(
                projected(self._fit(candidate.features).sums, hidden, basis), self._settings.penalty
            )
            bottleneck = Bottleneck.of(basis)
        narrow = tuple(self.split + at for at in range(self._late) if at not in solved.wide)
        plain = self._fit(PLAIN_MAPS.features) if narrow else fit

        def read(layer: int) -> LayerMap:
            at = layer - self.split
            return LayerMap(*(plain if layer in narrow else fit).rounded(at, solved.choice.alphas[at]))

        return MapSet(
            layers=range(self.split, self._port.n_layers),
            in_width=fit.sums.sxx.shape[0],
            out_width=hidden,
            read=read,
            features=candidate.features,
            defaults=defaults,
            bottleneck=bottleneck,
            state_only=narrow,
        )

    def macs(self, candidate: CandidateSettings) -> int:
        """Multiply-accumulates of a candidate's maps per filled row, where every layer is filled."""
        hidden = self._port.hidden
        features = FeatureList(candidate.features)
        width = features.width(self._shape)
        rank = candidate.rank
        wide = wide_layers(candidate, self.split, self._late)
        kept = width if rank is None else hidden + rank
        return map_macs(
            hidden,
            [kept if at in wide else hidden for at in range(self._late)],
            bottleneck=None if rank is None else (width - hidden, rank),
            features=features.macs(self._shape),
        )

    def _fit(self, features: tuple[str, ...]) -> RidgeFit:
        """Fit of maps that read `features` in full; besides the plain one, one is kept."""
        if features not in self._fits:
            for names in [names for names in self._fits if PLAIN_MAPS.features not in (names, features)]:
                del self._fits[names]
            columns = self._columns_of(features)
            sums = self._sums if self._is_everything(columns) else selected(self._sums, columns)
            self._fits[features] = RidgeFit(sums, self._settings.penalty)
        return self._fits[features]

    def _judged(self, features: tuple[str, ...]) -> _Judged:
        """Every penalty of maps that read `features` in full, scored once."""
        if features not in self._known:
            fit = self._fit(features)
            scores = self._held.score(
                self.split,
                fit.candidates(self._settings.alphas),
                read=None if self._is_everything(self._columns_of(features)) else self._reader(features),
                progress=self._progress,
            )
            self._known[features] = _Judged(fit.report(self._settings.alphas), scores)
        return self._known[features]

    def _is_everything(self, columns: Sequence[int]) -> bool:
        return list(columns) == list(range(self._sums.sxx.shape[0]))

    def _directed(self, candidate: CandidateSettings) -> Directions:
        """Directions of a candidate's features; those of another rank are the same."""
        key = candidate.model_copy(update={"rank": None, "name": None})
        if self._directions is None or self._directions[0] != key:
            wide = wide_layers(candidate, self.split, self._late)
            found = self._judged(candidate.features).scores.candidates
            alpha = choose(
                {alpha: [scores.keys[at] for at in wide] for alpha, scores in found.items()},
                {alpha: [scores.values[at] for at in wide] for alpha, scores in found.items()},
            ).alphas[0]
            metrics = {at: self._metric(at, candidate) for at in wide}
            self._directions = (
                key,
                directions(self._fit(candidate.features), self._port.hidden, alpha, metrics),
            )
        return self._directions[1]

    def _metric(self, at: int, candidate: CandidateSettings) -> Tensor:
        """What of a late layer's input counts: what it writes, linearised, or the input itself."""
        layer = self.split + at
        if candidate.metric == "input":
            return torch.eye(self._port.hidden, dtype=torch.float64)
        rows = self._held.truth(layer)
        step = max(1, len(rows) // _METRIC_ROWS)
        written = self._port.write_metric(layer, rows[::step])
        if candidate.metric == "both":
            # Each counts as much as the other, whatever their scales.
            return torch.cat([part / part.norm() for part in written]).cpu()
        return (written.keys if candidate.metric == "keys" else written.values).cpu()

    def _columns_of(self, features: Sequence[str]) -> list[int]:
        return [column for name in features for column in self._columns[name]]

    def _reader(self, features: Sequence[str], basis: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        """From rows of all captured features to what a candidate's maps read, as the runtime computes it."""
        columns = torch.tensor(self._columns_of(features))
        hidden = self._port.hidden

        def read(rows: Tensor) -> Tensor:
            kept = rows[:, columns.to(rows.device)]
            if basis is None:
                return kept
            rest = kept[:, hidden:] @ basis.to(rows.device, rows.dtype)
            return torch.cat([kept[:, :hidden], rest], dim=1)

        return read

    def _joined(
        self, scores: CandidateScores, scored: Sequence[int], wide: Sequence[int], part: str
    ) -> dict[float, tuple[float, ...]]:
        """Per penalty a cosine of each late layer: of the candidate's maps, and of plain ones elsewhere.

        Args:
            scores: of the candidate's maps in the late layers `scored`.
            scored: late layers of `scores`, in order.
            wide: late layers that have the candidate's maps.
            part: keys, values or inputs.
        """
        places = {at: place for place, at in enumerate(scored) if at in wide}
        others = scores if len(places) == self._late else self._judged(PLAIN_MAPS.features).scores

        def cosine(alpha: float, at: int) -> float:
            found, place = (scores, places[at]) if at in places else (others, at)
            return float(getattr(found.candidates[alpha], part)[place])

        return {alpha: tuple(cosine(alpha, at) for at in range(self._late)) for alpha in scores.candidates}


@dataclass(frozen=True)
class _Judged:
    """What maps that read some features in full are worth.

    Attributes:
        report: of every penalty.
        scores: of every penalty, on held-out rows.
    """

    report: FitReport
    scores: CandidateScores
