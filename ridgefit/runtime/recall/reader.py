"""A policy as the reader of a model's latent cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ridgefit.errors import BadInput
from ridgefit.maps.recall import RecallPolicy
from ridgefit.models.latent import LatentAttention
from ridgefit.models.latentcache import LatentLayer
from ridgefit.runtime.recall.attend import Archive, Read, read
from ridgefit.runtime.recall.conformal import Thresholds
from ridgefit.runtime.recall.report import LayerReport, RecallReport
from ridgefit.runtime.recall.selectors import PageSelector, selector_of
from ridgefit.runtime.recall.tier import Frozen, Partition, Tier


@dataclass(frozen=True)
class Near:
    """Rows that a step reads without fetching.

    Attributes:
        columns: their places in the cache, padding included.
        rows: `[rows, width]` fp32.
        seen: bool `[queries, rows]`; None if every query reads all of them.
    """

    columns: Tensor
    rows: Tensor
    seen: Tensor | None


class PolicyReader:
    """Reads prompts as the model does and every later row through the policy.

    Args:
        policy: what to do.
        layers: the model's latent layers.
        several: also read calls of several rows through the policy, each row as a step of its own, as long
            as the cache holds rows already. Exact steps in one call, for judging a policy.
    """

    def __init__(
        self, policy: RecallPolicy, layers: Mapping[int, LatentAttention], *, several: bool = False
    ) -> None:
        self.settings = policy.settings
        self.selector = selector_of(self.settings.selector)
        self.several = several
        self.report = RecallReport()
        self._partitions = {
            index: Partition(self.settings, self.selector, attention, _frozen(policy, index))
            for index, attention in layers.items()
        }

    def reads(self, layer: LatentLayer, queries: int) -> bool:
        """Steps of one row, and in `several` mode every call after the first."""
        return queries == 1 or (self.several and layer.get_seq_length() > 0)

    def observe(self, layer: LatentLayer, attention: LatentAttention, queries: Tensor) -> None:
        """Note what selector and thresholds need of a prompt's queries."""
        report = self.report.of(attention.layer)
        total, count = layer.get_seq_length(), queries.shape[2]
        wants_sample = self.settings.recall and self.settings.thresholds == "prompt"
        for sequence, start in enumerate(layer.starts):
            padding = max(0, start - (total - count))
            report.observed += count - padding
            tier = layer.states[sequence] or Tier()
            if padding == count or tier.closed:
                continue
            rows = layer.rows(sequence, torch.arange(start, total, device=queries.device))
            observed = tier.observed.after(
                queries[sequence, :, padding:].detach(),
                total - count + padding - start,
                rows,
                attention,
                self.selector.sees,
                wants_sample,
            )
            layer.states[sequence] = replace(tier, observed=observed)

    def parted(self, layer: LatentLayer, index: int) -> Tier:
        """The first sequence's rows in layer `index`, parted as its next step would find them."""
        tier = layer.states[0] or Tier()
        total = layer.get_seq_length() - layer.starts[0]
        return self._partitions[index].closed_up_to(tier, layer, 0, total)

    def attend(self, layer: LatentLayer, attention: LatentAttention, queries: Tensor) -> Tensor:
        """Attention of new rows over what the policy lets them read."""
        total, count = layer.get_seq_length(), queries.shape[2]
        outputs = []
        for sequence in range(queries.shape[0]):
            start = layer.starts[sequence]
            if total - count < start:
                raise BadInput(
                    "a call of several rows reaches into a sequence's padding",
                    "read padded prompts in one call before the policy reads steps",
                )
            partition = self._partitions[attention.layer]
            tier = layer.states[sequence] or Tier()
            tier = partition.closed_up_to(tier, layer, sequence, total - count - start)
            layer.states[sequence] = tier
            outputs.append(self._read(layer, attention, sequence, tier, queries[sequence].float()))
        if self.settings.placement == "host":
            ends = (layer.starts[i] + tier.closed for i, tier in enumerate(layer.states))
            layer.send_to_host(min(ends))
        return torch.stack(outputs).to(queries.dtype)

    def _read(
        self, layer: LatentLayer, attention: LatentAttention, sequence: int, tier: Tier, queries: Tensor
    ) -> Tensor:
        """Latents `[heads, queries, latent]` for one sequence."""
        near = self._near(layer, attention, sequence, tier, queries)
        archive = self._archive(layer, sequence, tier)
        found = read(
            queries,
            near.rows,
            near.seen,
            archive,
            self.settings,
            latent=attention.latent,
            scale=attention.scale,
        )
        self._count(layer, attention, sequence, tier, near, archive, found)
        return self.result(layer, attention, sequence, tier, queries, near, found)

    def result(
        self,
        layer: LatentLayer,
        attention: LatentAttention,
        sequence: int,
        tier: Tier,
        queries: Tensor,
        near: Near,
        found: Read,
    ) -> Tensor:
        """What the model gets of a step: here, what the policy read."""
        del layer, attention, sequence, tier, queries, near
        return found.latents

    def _near(
        self, layer: LatentLayer, attention: LatentAttention, sequence: int, tier: Tier, queries: Tensor
    ) -> Near:
        """Kept rows and the tail, and which of them each query may read."""
        start, total, count = layer.starts[sequence], layer.get_seq_length(), queries.shape[1]
        tail = torch.arange(start + tier.closed, total, device=queries.device)
        if isinstance(self.selector, PageSelector) and tier.closed:
            kept = torch.arange(tier.closed, device=queries.device)
        elif tier.kept is not None:
            kept = tier.kept
        else:
            kept = tail[:0]
        columns = torch.cat([start + kept, tail])
        if tier.near is not None and kept is tier.kept:
            rows = torch.cat([tier.near, layer.rows(sequence, tail)]).float()
        else:
            rows = layer.rows(sequence, columns).float()
        seen = None
        if isinstance(self.selector, PageSelector) and tier.closed:
            budget = self.settings.kept(tier.closed)
            pages = self.selector.pages(queries, rows[: tier.closed], attention.scale, budget)
            pages[:, : self.settings.sinks] = True
            seen = torch.cat([pages, pages.new_ones(count, tail.numel())], dim=1)
        if count > 1:
            causal = columns <= torch.arange(total - count, total, device=queries.device)[:, None]
            seen = causal if seen is None else seen & causal
        return Near(columns, rows, seen)

    def _archive(self, layer: LatentLayer, sequence: int, tier: Tier) -> Archive | None:
        entries = tier.index
        if not self.settings.recall or tier.archive is None or entries is None or tier.frozen is None:
            return None
        return Archive(
            rows=tier.archive,
            entries=entries,
            basis=tier.frozen.basis,
            thresholds=tier.frozen.thresholds,
            fetch=partial(_fetched, layer, sequence),
        )

    def _count(
        self,
        layer: LatentLayer,
        attention: LatentAttention,
        sequence: int,
        tier: Tier,
        near: Near,
        archive: Archive | None,
        found: Read,
    ) -> None:
        report: LayerReport = self.report.of(attention.layer)
        count, last = found.fetched.numel(), layer.get_seq_length() - layer.starts[sequence]
        report.width = attention.width
        report.queries += count
        report.attended += near.rows.shape[0] * count if near.seen is None else int(near.seen.sum())
        report.seen += sum(range(last - count + 1, last + 1))
        report.skipped += found.skipped
        if isinstance(self.selector, PageSelector):
            report.bounds += self.selector.bound_rows(tier.closed) * count
        if tier.archived:
            report.parted += count
            report.kept, report.archived = tier.closed - tier.archived, tier.archived
            report.fetched += found.fetched.tolist()
            report.fired += int((found.fetched > 0).sum())
            report.overflowed += int(found.overflowed.sum())
        if archive is not None:
            limits: Thresholds = archive.thresholds
            report.entry = archive.entries.branch.shape[1] + archive.entries.content.shape[1] + 1
            report.scanned += archive.rows.numel() * count
            report.z, report.hard, report.gate = limits.z, limits.hard, limits.gate


def _fetched(layer: LatentLayer, sequence: int, rows: Tensor) -> Callable[[], Tensor]:
    return layer.fetch(sequence, layer.starts[sequence] + rows)


def _frozen(policy: RecallPolicy, layer: int) -> Frozen | None:
    """What the policy holds for a layer; None where each prompt finds its own."""
    settings = policy.settings
    if not settings.recall or settings.thresholds == "prompt":
        return None
    basis, found = policy.bases.get(layer), policy.manifest.layers.get(layer)
    if basis is None or found is None:
        raise BadInput(
            f"the policy holds no thresholds for layer {layer}",
            "calibrate it on this model, or set thresholds to 'prompt'",
        )
    z = found.z if settings.z is None else settings.z
    return Frozen(basis, Thresholds(z, found.gate if settings.gate else None, found.queries, found.hard))
