"""From scores to selected columns, per KV head of every layer; and what the queries say about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ridgefit.models.attending import output_weights, rotates
from ridgefit.models.subset import SubsetColumns
from ridgefit.runtime.draft.queries import QueryTape
from ridgefit.runtime.draft.scores import LayerView, Scorer, attention_of_queries
from ridgefit.runtime.draft.settings import CacheSettings

_QUERIES = 256  # queries whose attention is summed at once


class Sums:
    """Attention that every stored column of a layer has received from committed queries (H2O)."""

    def __init__(self) -> None:
        self.total: Tensor | None = None  # [kv_heads, columns]

    def add(self, layer: SubsetColumns, tape: QueryTape, number: int) -> None:
        """Add the queries of columns stored since the last call, each over what it saw."""
        length = layer.get_seq_length()
        keys = _stored(layer.keys)
        done = 0 if self.total is None else self.total.shape[1]
        grown = torch.zeros(keys.shape[0], length, dtype=_sum_dtype(keys), device=keys.device)
        if self.total is not None:
            grown[:, :done] = self.total
        queries = tape.newest(number, length - done)
        for start in range(0, queries.shape[1], _QUERIES):
            block = queries[:, start : start + _QUERIES]
            end = done + start + block.shape[1]
            grown[:, :end] += self._received(layer, block, keys[:, :end], tape.scaling, done + start)
        self.total = grown

    def _received(
        self, layer: SubsetColumns, queries: Tensor, keys: Tensor, scaling: float, first: int
    ) -> Tensor:
        if layer.dense:
            return attention_of_queries(queries, keys, scaling).sum(dim=(1, 2))
        seen = torch.stack([layer.seen(first + at)[:, : keys.shape[1]] for at in range(queries.shape[1])], 1)
        grouped = _wide(queries).view(keys.shape[0], -1, queries.shape[1], keys.shape[2])
        logits = torch.einsum("hgqd,htd->hgqt", grouped, _wide(keys)) * scaling
        return logits.masked_fill(~seen[:, None], float("-inf")).softmax(-1).sum(dim=(1, 2))


def select(
    scorer: Scorer,
    layers: Mapping[int, SubsetColumns],
    tape: QueryTape,
    decoder: Any,
    settings: CacheSettings,
    *,
    keep: int,
    sums: Mapping[int, Sums],
    generator: torch.Generator,
) -> float:
    """Select `keep` columns older than the window for every KV head; ties go to the older column.

    Returns:
        the share of selected columns that were not selected before.
    """
    changed: list[Tensor] = []
    for number, layer in layers.items():
        scores = scorer(_view(number, layer, tape, decoder, settings, keep, sums, generator))
        length = layer.get_seq_length()
        until = length - layer.recent
        scores = scores[:, :until]
        before = layer.selection.columns
        if before is not None and (sums or settings.candidates == "since"):
            allowed = torch.zeros_like(scores, dtype=torch.bool)
            allowed.scatter_(1, before[0], True)
            allowed[:, layer.selection.boundary :] = True
            scores = scores.masked_fill(~allowed, float("-inf"))
        columns = scores.sort(dim=1, descending=True, stable=True).indices[:, :keep].sort(dim=1).values[None]
        if before is not None:
            old = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, before[0], True)
            changed.append(1 - old.gather(1, columns[0]).float().mean())
        layer.select(columns, until)
    return float(torch.stack(changed).mean()) if changed else 1.0


def mean_queries(tape: QueryTape, layers: Mapping[int, SubsetColumns], count: int) -> dict[int, Tensor]:
    """Mean of the newest un-rotated queries per layer, `[heads, head_dim]`, at least fp32."""
    return {layer: _wide(tape.unrotated(layer, count)).mean(dim=1) for layer in layers}


def drift(now: Mapping[int, Tensor], reference: Mapping[int, Tensor]) -> float:
    """1 - cosine of mean queries, averaged over heads and layers."""
    each = [1 - torch.cosine_similarity(now[layer], then, dim=-1).mean() for layer, then in reference.items()]
    return float(torch.stack(each).mean())


def retained(tape: QueryTape, layers: Mapping[int, SubsetColumns]) -> float:
    """Share of the newest query's full attention on columns in sight, averaged over heads and layers."""
    shares = []
    for number, layer in layers.items():
        keys = _stored(layer.keys)
        weights = attention_of_queries(tape.newest(number, 1), keys, tape.scaling)[:, :, 0]
        seen = layer.seen(keys.shape[1] - 1)
        shares.append((weights * seen[:, None]).sum(-1).mean())
    return float(torch.stack(shares).mean()) if shares else 1.0


def _view(
    number: int,
    layer: SubsetColumns,
    tape: QueryTape,
    decoder: Any,
    settings: CacheSettings,
    keep: int,
    sums: Mapping[int, Sums],
    generator: torch.Generator,
) -> LayerView:
    queries = tape.newest(number, settings.observe)
    turned = rotates(decoder, number)
    return LayerView(
        keys=_stored(layer.keys),
        values=_stored(layer.values),
        queries=queries,
        unrotated=lambda: tape.unrotated(number, settings.observe),
        rotary=lambda: tape.newest_rotary(settings.observe) if turned else None,
        scaling=tape.scaling,
        kernel=settings.kernel,
        keep=keep,
        output=lambda: output_weights(decoder, number, queries.shape[0]),
        sums=sums[number].total if number in sums else None,
        generator=generator,
    )


def _stored(part: Tensor | None) -> Tensor:
    if part is None:
        raise ValueError("the layer holds nothing yet")
    return part[0]


def _wide(part: Tensor) -> Tensor:
    return part if part.dtype == torch.float64 else part.float()


def _sum_dtype(keys: Tensor) -> torch.dtype:
    return torch.float64 if keys.dtype == torch.float64 else torch.float32
