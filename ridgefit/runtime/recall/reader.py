"""A policy as the reader of a model's latent cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ridgefit.errors import BadInput
from ridgefit.maps.recall import RecallPolicy
from ridgefit.models.latent import LatentAttention
from ridgefit.models.latentcache import LatentLayer
from ridgefit.runtime.recall.attend import Archive, read
from ridgefit.runtime.recall.conformal import Thresholds
from ridgefit.runtime.recall.report import LayerReport, RecallReport
from ridgefit.runtime.recall.selectors import PageSelector, selector_of
from ridgefit.runtime.recall.tier import Frozen, Partition, Tier


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
        start, total, count = layer.starts[sequence], layer.get_seq_length(), queries.shape[1]
        device = queries.device
        tail = torch.arange(start + tier.closed, total, device=device)
        paged = isinstance(self.selector, PageSelector) and tier.closed > 0
        kept = torch.arange(tier.closed, device=device) if paged else tier.kept
        if kept is None:
            near, seen = layer.rows(sequence, tail), None
        elif tier.near is not None and not paged:
            near, seen = torch.cat([tier.near, layer.rows(sequence, tail)]), None
        else:
            near, seen = layer.rows(sequence, torch.cat([start + kept, tail])), None
        near = near.float()
        kept_rows = 0 if kept is None else kept.numel()
        if paged and isinstance(self.selector, PageSelector):
            budget = self.settings.kept(tier.closed)
            seen = self.selector.pages(queries, near[:kept_rows], attention.scale, budget)
            seen[:, : self.settings.sinks] = True
        if count > 1 or seen is not None:
            last = torch.arange(total - count, total, device=device)
            of_tail = tail <= last[:, None]
            of_kept = seen if seen is not None else of_tail.new_ones(count, kept_rows)
            seen = torch.cat([of_kept, of_tail], dim=1)
        archive = self._archive(layer, sequence, tier)
        found = read(
            queries, near, seen, archive, self.settings, latent=attention.latent, scale=attention.scale
        )
        attended = seen.sum() if seen is not None else near.shape[0] * count
        self._count(
            attention,
            tier,
            int(attended),
            archive,
            found.fetched,
            found.overflowed,
            found.skipped,
            sum(range(total - start - count + 1, total - start + 1)),
        )
        return found.latents

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
        attention: LatentAttention,
        tier: Tier,
        attended: int,
        archive: Archive | None,
        fetched: Tensor,
        overflowed: Tensor,
        skipped: int,
        seen: int,
    ) -> None:
        report: LayerReport = self.report.of(attention.layer)
        count = fetched.numel()
        report.width = attention.width
        report.queries += count
        report.attended += attended
        report.seen += seen
        report.skipped += skipped
        if tier.archived:
            report.parted += count
            report.fetched += fetched.tolist()
            report.fired += int((fetched > 0).sum())
            report.overflowed += int(overflowed.sum())
        if archive is not None:
            limits: Thresholds = archive.thresholds
            report.entry = archive.entries.branch.shape[1] + archive.entries.content.shape[1] + 1
            report.scanned += archive.rows.numel() * count
            report.z, report.hard, report.gate = limits.z, limits.hard, limits.gate


def _fetched(layer: LatentLayer, sequence: int, rows: Tensor) -> Tensor:
    return layer.rows(sequence, layer.starts[sequence] + rows)


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
