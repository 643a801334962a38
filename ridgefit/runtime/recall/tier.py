"""One sequence's rows in one layer, parted: kept and archived, never deleted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ridgefit.maps.recall import RecallSettings
from ridgefit.models.latent import LatentAttention
from ridgefit.models.latentcache import LatentLayer
from ridgefit.runtime.recall.conformal import Thresholds, calibrated, evidence
from ridgefit.runtime.recall.observed import Observed
from ridgefit.runtime.recall.selectors import Selector, Window
from ridgefit.runtime.recall.sketch import Sketch, first_axes, fitted_basis, sketch


@dataclass(frozen=True)
class Frozen:
    """A layer's basis `[rank, latent]` and thresholds, from a policy or from the prompt."""

    basis: Tensor
    thresholds: Thresholds


@dataclass(frozen=True)
class Tier:
    """Rows count from the sequence's first token. Replaced when rows close, never changed.

    Attributes:
        observed: what was noted of the prompt's queries.
        begun: whether a step was read; a prompt closes as one window only before.
        closed: rows that are scored and parted; those behind them are all attended.
        scores: `[closed]` fp32.
        kept: rows that stay attended, ascending.
        archive: all other closed rows, ascending.
        entries: index of every closed row, so that re-ranking only picks; None without recall.
        frozen: basis and thresholds; None until the first rows close.
        near: `[kept, width]` copied rows where the archive is in host memory; None where all are near.
    """

    observed: Observed = field(default_factory=Observed)
    begun: bool = False
    closed: int = 0
    scores: Tensor | None = None
    kept: Tensor | None = None
    archive: Tensor | None = None
    entries: Sketch | None = None
    frozen: Frozen | None = None
    near: Tensor | None = None

    @property
    def archived(self) -> int:
        """Archived rows."""
        return 0 if self.archive is None else self.archive.numel()

    @property
    def index(self) -> Sketch | None:
        """Entries of the archived rows."""
        if self.entries is None or self.archive is None:
            return None
        return self.entries.of(self.archive)


class Partition:
    """Closes rows of a sequence and parts them.

    Args:
        settings: of the policy.
        selector: ranks rows.
        attention: the layer.
        frozen: basis and thresholds of the policy; None where each prompt finds its own.
    """

    def __init__(
        self, settings: RecallSettings, selector: Selector, attention: LatentAttention, frozen: Frozen | None
    ) -> None:
        self._settings = settings
        self._selector = selector
        self._attention = attention
        self._frozen = frozen

    def closed_up_to(self, tier: Tier, layer: LatentLayer, sequence: int, rows: int) -> Tier:
        """The tier with every window closed that is complete within the first `rows` rows.

        Windows of one length close one after the other, so that a cache read in one go and one that grew row
        by row are parted alike (constant budget: the same rows; a growing one may take rows back up).
        """
        start = layer.starts[sequence]
        windows = list(self._windows(tier, rows - self._settings.recent))
        if not tier.begun and rows > 0:
            tier = replace(tier, begun=True)
        if not windows:
            return tier
        for first, stop in windows:
            columns = torch.arange(start + first, start + stop, device=layer.keys.device)
            tier = self._with_window(tier, layer.rows(sequence, columns), first, rows, layer, sequence)
        tier = self._parted(tier)
        if self._settings.recall:
            tier = self._indexed(tier, layer, sequence)
        if self._settings.placement == "host" and tier.kept is not None:
            tier = replace(tier, near=layer.rows(sequence, start + tier.kept))
        return tier

    def _windows(self, tier: Tier, stop: int) -> Iterator[tuple[int, int]]:
        s, closed = self._settings, tier.closed
        if s.window == "prefix" and not tier.begun and stop > 2 * s.kappa - 1:
            yield 0, stop
            return
        while closed + s.block <= stop:
            yield closed, closed + s.block
            closed += s.block

    def _with_window(
        self, tier: Tier, rows: Tensor, first: int, total: int, layer: LatentLayer, sequence: int
    ) -> Tier:
        mass = None
        if self._selector.sees in ("all queries", "last queries"):
            start = layer.starts[sequence]
            everything = torch.arange(start, start + total, device=rows.device)
            votes = tier.observed.votes(
                layer.rows(sequence, everything), self._attention, self._selector.sees
            )
            if votes is not None:
                mass = torch.zeros(first + rows.shape[0], device=rows.device)
                seen = votes[: mass.numel()]
                mass[: seen.numel()] = seen
                mass = mass[first:]
        window = Window(
            rows=rows,
            branch=self._attention.branch,
            kappa=self._settings.kappa,
            first=first,
            layer=self._attention.layer,
            seed=self._settings.seed,
            mass=mass,
        )
        scores = self._selector.scores(window)
        if tier.scores is not None:
            scores = torch.cat([tier.scores, scores])
        entries = tier.entries
        if self._settings.recall and entries is not None and tier.frozen is not None:
            entries = entries.extended(sketch(rows, tier.frozen.basis))
        return replace(tier, closed=first + rows.shape[0], scores=scores, entries=entries)

    def _parted(self, tier: Tier) -> Tier:
        """Keep the best of all closed rows and the sinks; archive the rest."""
        if tier.scores is None:
            return tier
        kept = torch.zeros(tier.closed, dtype=torch.bool, device=tier.scores.device)
        kept[self._selector.choose(tier.scores, self._settings.kept(tier.closed))] = True
        kept[: self._settings.sinks] = True
        return replace(tier, kept=kept.nonzero()[:, 0], archive=(~kept).nonzero()[:, 0])

    def _indexed(self, tier: Tier, layer: LatentLayer, sequence: int) -> Tier:
        """The index of closed rows; at the first close also basis and thresholds."""
        if tier.entries is not None or tier.archived == 0:
            return tier
        start = layer.starts[sequence]
        rows = layer.rows(sequence, torch.arange(start, start + tier.closed, device=layer.keys.device))
        frozen = tier.frozen or self._frozen or self._of_prompt(tier, rows)
        frozen = Frozen(frozen.basis.to(rows.device), frozen.thresholds)
        return replace(tier, frozen=frozen, entries=sketch(rows, frozen.basis))

    def _of_prompt(self, tier: Tier, rows: Tensor) -> Frozen:
        """Basis and thresholds from the queries of the prompt's own second half (VestigeKV, section 4.2)."""
        s, attention = self._settings, self._attention
        at, raw = tier.observed.positions, tier.observed.sample
        if at is None or raw is None or tier.kept is None or tier.archive is None:
            return self._without_queries(rows)
        late = (at >= tier.closed // 2) & (at < tier.closed)
        if not bool(late.any()):
            return self._without_queries(rows)
        at, queries = at[late], attention.absorb(raw[:, late]).float()
        basis = fitted_basis(queries[..., : attention.latent].flatten(0, 1), s.rank)
        archived = rows[tier.archive]
        found = evidence(
            queries,
            rows[tier.kept].float(),
            tier.kept <= at[:, None],
            archived.float(),
            tier.archive <= at[:, None],
            sketch(archived, basis),
            basis,
            attention.scale,
        )
        thresholds = calibrated(
            found,
            target=s.target,
            conformal=s.conformal,
            z_max=s.z_max,
            gate=s.gate,
            gate_off=s.gate_off,
        )
        return Frozen(basis, thresholds if s.z is None else replace(thresholds, z=s.z))

    def _without_queries(self, rows: Tensor) -> Frozen:
        s = self._settings
        basis = first_axes(s.rank, self._attention.latent, rows.device)
        return Frozen(basis, Thresholds(s.z_max if s.z is None else s.z))
