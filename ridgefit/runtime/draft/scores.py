"""How important a stored column is to a KV head: one function each, `LayerView -> [kv_heads, columns]`.

Scores are fp32, or fp64 for a draft in fp64. Queries of a group are averaged, so that its keys and values are
stored once (SnapKV's own code repeats them for every query head).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

FUTURE = 512
"""Positions ahead over which expected attention averages its queries' rotation."""


@dataclass(frozen=True)
class LayerView:
    """What a scorer may look at.

    Attributes:
        keys: stored keys `[kv_heads, columns, head_dim]`, rotated.
        values: stored values `[kv_heads, columns, head_dim]`.
        queries: newest queries `[heads, observed, head_dim]`, rotated; the last belongs to the last column.
        unrotated: the same before rotary.
        rotary: cosines and sines `[observed, width]` of those columns; None where the layer has no rotary.
        scaling: factor of queries times keys.
        kernel: width of the average over neighbouring columns.
        keep: columns that will be selected.
        output: gives the output projection per head, `[heads, hidden, head_dim]`.
        sums: attention that each column has received so far `[kv_heads, columns]`, if it is summed.
        generator: for random scores.
    """

    keys: Tensor
    values: Tensor
    queries: Tensor
    unrotated: Callable[[], Tensor]
    rotary: Callable[[], tuple[Tensor, Tensor] | None]
    scaling: float
    kernel: int
    keep: int
    output: Callable[[], Tensor]
    sums: Tensor | None
    generator: torch.Generator


Scorer = Callable[[LayerView], Tensor]


def attention(view: LayerView) -> Tensor:
    """Mean attention of the newest queries, averaged over neighbouring columns (SnapKV; RIFT section 4).

    A column inside the observation window is seen by fewer queries, and its sum is divided by their number.
    """
    columns = view.keys.shape[1]
    observed = view.queries.shape[1]
    seen_by = (columns - torch.arange(columns, device=view.keys.device)).clamp(max=observed)
    weights = attention_of_queries(view.queries, view.keys, view.scaling)
    return pooled(weights.sum(dim=(1, 2)) / (seen_by * weights.shape[1]), view.kernel)


def first(view: LayerView) -> Tensor:
    """The first columns of the text, whatever they hold (StreamingLLM's sinks)."""
    kv_heads, columns, _ = view.keys.shape
    return -torch.arange(columns, dtype=torch.float32, device=view.keys.device).expand(kv_heads, columns)


def random(view: LayerView) -> Tensor:
    """Uniform noise: what any selection must beat."""
    kv_heads, columns, _ = view.keys.shape
    return torch.rand(kv_heads, columns, generator=view.generator).to(view.keys.device)


def summed(view: LayerView) -> Tensor:
    """Attention received from every committed query so far (H2O)."""
    if view.sums is None:
        raise ValueError("the draft cache sums no attention")
    return view.sums


def expected(view: LayerView) -> Tensor:
    """Attention that a normal distribution of future queries would give, times the values' norm.

    After Expected Attention (kvpress): mean and covariance of un-rotated queries, rotated to the coming 512
    positions and averaged. They are taken from the observation window, and rotations further ahead are
    powers of the last one, so that no rotary module is called.
    """
    mean, covariance = _future_queries(view)
    keys = _wide(view.keys)
    kv_heads = keys.shape[0]
    mean = mean.view(kv_heads, -1, 1, keys.shape[2])
    covariance = covariance.view(kv_heads, -1, keys.shape[2], keys.shape[2])
    inner = (mean * keys[:, None]).sum(-1) * view.scaling
    spread = torch.einsum("hgde,hte->hgtd", covariance, keys)
    inner = inner + 0.5 * view.scaling**2 * (spread * keys[:, None]).sum(-1)
    weights = inner.softmax(dim=-1).mean(dim=1)
    return pooled(weights * _wide(view.values).norm(dim=-1), view.kernel)


def critical(view: LayerView) -> Tensor:
    """Attention for half of the columns, attention times the L1 norm of what a value writes for the rest.

    After CriticalKV's two stages; the written norm is averaged over the heads of a group.
    """
    scores = attention(view)
    kv_heads = scores.shape[0]
    output = _wide(view.output()).view(kv_heads, -1, *view.output().shape[1:])
    written = torch.stack(
        [
            torch.stack([(values @ head.T).abs().sum(-1) for head in heads]).mean(0)
            for values, heads in zip(_wide(view.values), output, strict=True)
        ]
    )
    second = scores * written
    half = scores.topk(min(view.keep // 2, scores.shape[1]), dim=1).indices
    return second.scatter(1, half, second.amax(dim=1, keepdim=True).expand_as(half) + 1)


def attention_of_queries(queries: Tensor, keys: Tensor, scaling: float) -> Tensor:
    """Causal attention of the newest queries to every column.

    Args:
        queries: `[heads, observed, head_dim]`; the last one belongs to the last column.
        keys: `[kv_heads, columns, head_dim]`.
        scaling: factor of their product.

    Returns:
        `[kv_heads, group, observed, columns]`, rows sum to 1.
    """
    kv_heads, columns, width = keys.shape
    observed = queries.shape[1]
    grouped = _wide(queries).view(kv_heads, -1, observed, width)
    later = torch.ones(observed, columns, dtype=torch.bool, device=keys.device).triu(columns - observed + 1)
    parts = [
        (group @ _wide(own).T * scaling).masked_fill(later, float("-inf")).softmax(dim=-1)
        for group, own in zip(grouped, keys, strict=True)
    ]
    return torch.stack(parts)


def pooled(scores: Tensor, kernel: int) -> Tensor:
    """Average over `kernel` neighbouring columns; zeros stand beyond the ends, as in SnapKV."""
    if kernel == 1:
        return scores
    return torch.nn.functional.avg_pool1d(scores[None], kernel, stride=1, padding=kernel // 2)[0]


def _future_queries(view: LayerView) -> tuple[Tensor, Tensor]:
    """Mean `[heads, d]` and covariance `[heads, d, d]` of queries at the coming positions."""
    plain = _wide(view.unrotated())
    mean = plain.mean(dim=1)
    centred = plain - mean[:, None]
    covariance = centred.transpose(1, 2) @ centred / max(plain.shape[1] - 1, 1)
    rotary = view.rotary()
    if rotary is None:
        return mean, covariance
    turn = _mean_turn(_wide(rotary[0]), _wide(rotary[1]), plain.shape[-1])
    return mean @ turn.T, turn @ covariance @ turn.T


def _mean_turn(cos: Tensor, sin: Tensor, width: int) -> Tensor:
    """Average rotation matrix `[width, width]` of the positions after the last one."""
    half = cos.shape[-1] // 2
    angles = torch.complex(cos[:, :half], sin[:, :half])
    angles = angles / angles.abs()
    step = angles[-1] / angles[-2] if angles.shape[0] > 1 else torch.ones_like(angles[-1])
    ahead = torch.arange(1, FUTURE + 1, device=cos.device, dtype=step.angle().dtype)
    mean = (angles[-1] * torch.polar(torch.ones_like(step.angle()), step.angle() * ahead[:, None])).mean(0)
    turn = torch.eye(width, dtype=cos.dtype, device=cos.device)
    near, far = torch.arange(half, device=cos.device), torch.arange(half, 2 * half, device=cos.device)
    turn[near, near] = turn[far, far] = mean.real
    turn[near, far], turn[far, near] = -mean.imag, mean.imag
    return turn


def _wide(part: Tensor) -> Tensor:
    return part if part.dtype == torch.float64 else part.float()
