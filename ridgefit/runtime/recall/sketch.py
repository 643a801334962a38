"""What is kept of an archived row to find it again: exact branch, sketch of the latent, length of the rest.

Every future score is the branch's exact share, the sketch's share, and a rest of at most
`scale * |q - V'Vq| * |c - V'Vc|` (VestigeKV, Lemma 2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sketch:
    """Index entries of rows, all fp32.

    Attributes:
        branch: `[rows, branch]`, exact.
        content: `[rows, rank]`, the latent in the basis.
        residual: `[rows]`, length of what the basis leaves of the latent.
    """

    branch: Tensor
    content: Tensor
    residual: Tensor

    def extended(self, other: Sketch) -> Sketch:
        """Entries of further rows behind these."""
        return Sketch(
            torch.cat([self.branch, other.branch]),
            torch.cat([self.content, other.content]),
            torch.cat([self.residual, other.residual]),
        )

    def of(self, rows: Tensor) -> Sketch:
        """Entries of some rows."""
        return Sketch(self.branch[rows], self.content[rows], self.residual[rows])


def sketch(rows: Tensor, basis: Tensor) -> Sketch:
    """Index entries of rows.

    Args:
        rows: `[rows, latent + branch]`, any dtype.
        basis: `[rank, latent]` fp32, orthonormal.
    """
    latents, branch = rows[:, : basis.shape[1]].float(), rows[:, basis.shape[1] :].float()
    content = latents @ basis.T
    rest = torch.linalg.vector_norm(latents - content @ basis, dim=1)
    whole = basis.shape[0] == basis.shape[1]  # then what is left is rounding
    return Sketch(branch, content, torch.zeros_like(rest) if whole else rest)


def estimates(queries: Tensor, entries: Sketch, basis: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """What entries say about scores, and how far the truth may lie from it.

    Args:
        queries: absorbed, `[…, latent + branch]` fp32.
        entries: of `rows` rows.
        basis: `[rank, latent]`.
        scale: factor on inner products.

    Returns:
        Estimated scores and certificates, `[…, rows]` each. The certificate is the bound of Lemma 2 per
        dimension left out: the truth lies within `sqrt(latent - rank)` certificates of the estimate.
    """
    rank, latent = basis.shape
    content, branch = queries[..., :latent], queries[..., latent:]
    inside = content @ basis.T
    outside = torch.linalg.vector_norm(content - inside @ basis, dim=-1, keepdim=True)
    estimate = scale * (branch @ entries.branch.T + inside @ entries.content.T)
    certificate = scale * outside * entries.residual / math.sqrt(max(latent - rank, 1))
    return estimate, certificate


def fitted_basis(queries: Tensor, rank: int) -> Tensor:
    """The directions in which queries differ most: one basis for all heads of a layer.

    Args:
        queries: `[queries, latent]`, absorbed content parts of all positions and heads together. Their mean
            is taken away for the fit only.
        rank: directions; at most `latent` are given back.

    Returns:
        `[rank, latent]` fp32, orthonormal. With fewer queries than `rank` the last ones are arbitrary, which
        costs tightness and not soundness.
    """
    centred = queries.double() - queries.double().mean(0, keepdim=True)
    _, vectors = torch.linalg.eigh(centred.T @ centred)
    leading: Tensor = vectors.T.flip(0)[: min(rank, queries.shape[1])]
    return leading.float().contiguous()


def first_axes(rank: int, latent: int, device: torch.device) -> Tensor:
    """A basis where no query was seen: the first axes."""
    return torch.eye(min(rank, latent), latent, device=device)
