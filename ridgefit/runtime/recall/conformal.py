"""From queries whose best row is known to the thresholds of a layer: certificate factor and entropy gate.

A hard query is a (position, head) pair whose best row lies in the archive. Its own factor is the smallest one
with which the index entry of that row reaches the threshold; an order statistic of those factors holds on a
new hard query with the wanted probability (split conformal prediction, Vovk et al. 2005).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ridgefit.runtime.recall.sketch import Sketch, estimates

Target = Literal["max1", "true"]
_LEAST = 1e-12
"""Certificates below this count as this, so that exact entries give finite factors."""
_SCORES = 1 << 25
"""Scores of one kind held at once, so that long prompts do not need many times their cache."""
_GUARD = 1e-9
"""What rounding may add before a whole number is passed."""


@dataclass(frozen=True)
class Thresholds:
    """What a step compares with.

    Attributes:
        z: factor on the certificate; infinity fetches every archived row.
        gate: entropy in nats above which a head scans; None leaves the gate open.
        queries: (position, head) pairs behind them.
        hard: hard ones among them.
    """

    z: float
    gate: float | None = None
    queries: int = 0
    hard: int = 0


@dataclass(frozen=True)
class Evidence:
    """One layer's queries against kept and archived rows; every tensor is `[pairs]` fp32.

    Attributes:
        best_kept: highest score of an attended row.
        entropy: of the softmax over attended rows, nats.
        truth: score of the best archived row.
        estimate: what its index entry says.
        certificate: of that entry.
    """

    best_kept: Tensor
    entropy: Tensor
    truth: Tensor
    estimate: Tensor
    certificate: Tensor

    @property
    def hard(self) -> Tensor:
        """Which pairs have their best row in the archive."""
        return self.truth > self.best_kept

    @classmethod
    def joined(cls, parts: list[Evidence]) -> Evidence:
        """Evidence of several requests."""
        names = ("best_kept", "entropy", "truth", "estimate", "certificate")
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


def evidence(
    queries: Tensor,
    attended: Tensor,
    attended_seen: Tensor,
    archived: Tensor,
    archived_seen: Tensor,
    entries: Sketch,
    basis: Tensor,
    scale: float,
) -> Evidence:
    """Score queries against all rows.

    Args:
        queries: absorbed, `[heads, queries, width]` fp32.
        attended: `[rows, width]` fp32, kept rows and the tail.
        attended_seen: bool `[queries, rows]`, causal.
        archived: `[rows, width]` fp32.
        archived_seen: bool `[queries, rows]`, causal.
        entries: index of the archived rows.
        basis: of the index.
        scale: factor on inner products.

    Returns:
        Pairs that see at least one row of each kind.
    """
    count = queries.shape[1]
    step = max(1, _SCORES // (queries.shape[0] * (attended.shape[0] + archived.shape[0])))
    if step < count:
        parts = [
            evidence(
                queries[:, at : at + step],
                attended,
                attended_seen[at : at + step],
                archived,
                archived_seen[at : at + step],
                entries,
                basis,
                scale,
            )
            for at in range(0, count, step)
        ]
        return Evidence.joined(parts)
    near = (scale * queries @ attended.T).masked_fill(~attended_seen, -torch.inf)
    far = (scale * queries @ archived.T).masked_fill(~archived_seen, -torch.inf)
    truth, place = far.max(-1)
    found, certificate = estimates(queries, entries, basis, scale)
    usable = (attended_seen.any(-1) & archived_seen.any(-1)).expand(truth.shape)
    found_parts = (
        near.amax(-1),
        entropy(near),
        truth,
        found.gather(-1, place[..., None])[..., 0],
        certificate.gather(-1, place[..., None])[..., 0],
    )
    return Evidence(*(part[usable] for part in found_parts))


def entropy(scores: Tensor) -> Tensor:
    """Entropy in nats of the softmax over the last dimension; rows of `-inf` count nothing."""
    logs = scores.log_softmax(-1)
    return -(logs.exp() * logs.masked_fill(logs.isneginf(), 0.0)).sum(-1)


def calibrated(
    found: Evidence, *, target: float, conformal: Target, z_max: float, gate: bool, gate_off: float
) -> Thresholds:
    """Thresholds that fetch the best row of a new hard query with probability `target`.

    The allowed misses are shared out evenly between gate and certificate. With fewer hard queries than an
    order statistic of that level needs, `z` is `z_max` and the gate stays open.

    Args:
        found: calibration queries, exchangeable with those to come.
        target: probability.
        conformal: "max1" asks the entry to beat the attended rows, "true" to reach the row's own score
            for every query, hard or not, which covers more.
        z_max: largest factor, in either direction.
        gate: whether to gate at all.
        gate_off: share of scanning queries above which the gate is left open, since it saves nothing.
    """
    hard = found.hard
    missed = 1.0 - target
    level = target / (1 - missed / 2) if gate else target
    pairs, count = hard.numel(), int(hard.sum())
    needed = math.ceil(level / (1 - level) - _GUARD)
    limit: float | None = None
    if gate and count >= needed:
        limit = float(torch.quantile(found.entropy[hard].double(), missed / 2))
        if float((found.entropy > limit).double().mean()) > gate_off:
            limit = None
    chosen = hard if conformal == "max1" else torch.ones_like(hard)
    wanted = (found.best_kept if conformal == "max1" else found.truth)[chosen]
    factors = (wanted - found.estimate[chosen]) / found.certificate[chosen].clamp(min=_LEAST)
    if factors.numel() < needed:
        return Thresholds(z_max, limit, pairs, count)
    place = min(math.ceil((factors.numel() + 1) * level - _GUARD), factors.numel())
    z = float(factors.double().sort().values[place - 1])
    # An entry has to exceed its threshold, so a little is added; exact entries give factors without meaning.
    return Thresholds(min(max(z + 1e-6, -z_max), z_max), limit, pairs, count)
