"""One step's attention over kept rows, the tail and what the trigger fetches.

`read` is the seam for a fused kernel: it has everything of a step in one place, as gathers and products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ridgefit.maps.recall import RecallSettings
from ridgefit.runtime.recall.conformal import Thresholds, entropy
from ridgefit.runtime.recall.sketch import Sketch, estimates


@dataclass(frozen=True)
class Archive:
    """What a scan needs.

    Attributes:
        rows: archived row numbers, ascending.
        entries: their index.
        basis: of the index.
        thresholds: of the layer.
        fetch: row numbers -> what waits for the rows `[rows, width]`; they are on their way at once.
    """

    rows: Tensor
    entries: Sketch
    basis: Tensor
    thresholds: Thresholds
    fetch: Callable[[Tensor], Callable[[], Tensor]]


@dataclass(frozen=True)
class Read:
    """A step's result.

    Attributes:
        latents: `[heads, queries, latent]` fp32, means over the rows read.
        fetched: `[queries]`, rows fetched by each query.
        overflowed: `[queries]`, whether it asked for more than the cap and read everything.
        skipped: (query, head) pairs that the gate spared.
        read: bool `[queries, archived]`, which archived rows each query read; None without a scan.
    """

    latents: Tensor
    fetched: Tensor
    overflowed: Tensor
    skipped: int
    read: Tensor | None


def read(
    queries: Tensor,
    near: Tensor,
    seen: Tensor | None,
    archive: Archive | None,
    settings: RecallSettings,
    *,
    latent: int,
    scale: float,
) -> Read:
    """Attend for queries of one sequence in one layer.

    Args:
        queries: absorbed, `[heads, queries, width]` fp32.
        near: `[rows, width]` fp32, kept rows and the tail.
        seen: bool `[queries, rows]`, which of them a query may read; None for all.
        archive: what may be fetched; None for no recall.
        settings: of the policy.
        latent: width of a row's latent.
        scale: factor on inner products.
    """
    scores = scale * queries @ near.T
    if seen is not None:
        scores = scores.masked_fill(~seen, -torch.inf)
    count = queries.shape[1]
    if archive is None or archive.rows.numel() == 0:
        none = torch.zeros(count, dtype=torch.long, device=queries.device)
        return Read(scores.softmax(-1) @ near[:, :latent], none, none.bool(), 0, None)
    asked, skipped = trigger(queries, scores, archive, settings, scale)
    wanted = asked.any(0)
    overflowed = wanted.sum(-1) > settings.cap
    wanted = wanted | overflowed[:, None]
    columns = wanted.any(0).nonzero()[:, 0]
    arriving = archive.fetch(archive.rows[columns])  # while the near part is finished
    most = scores.amax(-1, keepdim=True)
    weights = (scores - most).exp()
    near_sum, near_mean = weights.sum(-1, keepdim=True), weights @ near[:, :latent]
    far = arriving().float()
    extra = (scale * queries @ far.T).masked_fill(~wanted[:, columns], -torch.inf)
    if columns.numel():
        new_most = torch.maximum(most, extra.amax(-1, keepdim=True))
        shrunk, weights = (most - new_most).exp(), (extra - new_most).exp()
        near_sum = near_sum * shrunk + weights.sum(-1, keepdim=True)
        near_mean = near_mean * shrunk + weights @ far[:, :latent]
    return Read(near_mean / near_sum, wanted.sum(-1), overflowed, skipped, wanted)


def trigger(
    queries: Tensor, scores: Tensor, archive: Archive, settings: RecallSettings, scale: float
) -> tuple[Tensor, int]:
    """Which archived rows each head of each query asks for.

    Args:
        queries: absorbed, `[heads, queries, width]` fp32.
        scores: of the near rows, `[heads, queries, rows]`, `-inf` where not seen.
        archive: the archived rows.
        settings: of the policy.
        scale: factor on inner products.

    Returns:
        bool `[heads, queries, archived]`, and how many (query, head) pairs the gate spared.
    """
    limits = archive.thresholds
    shape = (*scores.shape[:2], archive.rows.numel())
    if limits.z == torch.inf:
        asked = torch.ones(shape, dtype=torch.bool, device=queries.device)
        rating = None
    else:
        estimate, certificate = estimates(queries, archive.entries, archive.basis, scale)
        rating = estimate + limits.z * certificate
        asked = rating > scores.amax(-1, keepdim=True)
    skipped = 0
    if limits.gate is not None:
        scans = entropy(scores) > limits.gate
        asked = asked & scans[..., None]
        skipped = int((~scans).sum())
    if settings.top_rows is not None and rating is not None and settings.top_rows < shape[-1]:
        best = rating.masked_fill(~asked, -torch.inf).topk(settings.top_rows, dim=-1).indices
        chosen = torch.zeros(shape, dtype=torch.bool, device=queries.device).scatter_(-1, best, True)
        asked = asked & chosen
    return asked, skipped
