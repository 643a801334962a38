"""`calibrate recall`: one basis, certificate factor and gate per layer, judged on documents kept back."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ridgefit.calibrate.contexts import LayerContext, documents_of, read_context
from ridgefit.corpus import read_documents
from ridgefit.errors import BadInput, CheckFailed
from ridgefit.files import require_unused, sha256_bytes
from ridgefit.maps.fingerprint import Fingerprint
from ridgefit.maps.recall import LayerThresholds, PolicyManifest, RecallPolicy, RecallSettings
from ridgefit.models.load import LoadedLatent
from ridgefit.recipe import CalibrateRecallSettings, require_used
from ridgefit.runtime.recall import require_premise, selector_of
from ridgefit.runtime.recall.attend import Archive, trigger
from ridgefit.runtime.recall.conformal import Evidence, Thresholds, calibrated, evidence
from ridgefit.runtime.recall.sketch import fitted_basis, sketch
from ridgefit.runtime.recall.tier import Frozen
from ridgefit.versions import library_versions

Progress = Callable[[int, int, str], None]
"""Called after each document with (done, total, what is being done)."""


def calibrate_recall(
    loaded: LoadedLatent, settings: CalibrateRecallSettings, out: Path, *, progress: Progress | None = None
) -> RecallPolicy:
    """Fit a policy's thresholds to the queries of documents, and freeze it if it keeps its promise.

    Each document's first `tokens` are read densely and parted; the `queries` tokens after them are what the
    archive will be asked by. Some documents calibrate, the others only judge. Where each prompt finds its own
    thresholds, from the queries of its second half, every document judges.

    Args:
        loaded: the model.
        settings: data, what the policy does, target.
        out: folder for the policy; must be free.
        progress: called after each document.

    Returns:
        The policy as saved.

    Raises:
        BadInput: settings that would do nothing, a rotated branch without `control`, too few documents, an
            unknown selector.
        CheckFailed: a layer finds fewer hard queries' best rows than `target` on the documents kept back;
            nothing is written.
    """
    require_calibration(settings, out)
    spread = loaded.latent.branch_spread()
    require_premise(spread, control=settings.control)
    policy = RecallSettings(**settings.model_dump(include=set(RecallSettings.model_fields)))
    documents = documents_of(
        loaded, settings.data, settings.text_field, settings.tokens + settings.queries, settings.contexts
    )
    # By hash: the parts do not depend on the order of files.
    ordered = sorted(documents, key=lambda item: hashlib.sha256(item[1].numpy().tobytes()).hexdigest())
    judged = max(1, min(len(ordered) - 1, round(settings.held_out * len(ordered))))
    contexts = []
    for done, (name, ids) in enumerate(ordered, 1):
        contexts.append(read_context(loaded, ids, settings.queries, policy))
        if progress:
            progress(done, len(ordered), name)
    own = policy.thresholds == "prompt"
    layers: dict[int, LayerThresholds] = {}
    bases: dict[int, Tensor] = {}
    for index, attention in loaded.latent.layers.items():
        seen = [context[index] for context in contexts]
        if own:
            layers[index] = _judged(seen, policy, attention.scale)
        else:
            bases[index], layers[index] = _layer(seen[judged:], seen[:judged], policy, attention.scale)
    _require_recall(layers, policy)
    found = RecallPolicy(
        PolicyManifest(
            settings=policy,
            fingerprint=Fingerprint.of(loaded.identity()),
            layers=layers,
            probe=spread,
            provenance={
                "documents": {name: sha256_bytes(ids.numpy().tobytes()) for name, ids in ordered},
                "judged": [name for name, _ in (ordered if own else ordered[:judged])],
                "tokens": settings.tokens,
                "queries": settings.queries,
                "versions": library_versions(),
            },
        ),
        bases,
    )
    found.save(out)
    return found


def require_calibration(settings: CalibrateRecallSettings, out: Path) -> None:
    """Refuse what no model could make right, before one is loaded.

    Raises:
        BadInput: settings that would do nothing or close no row, an unknown selector, text that is not there,
            or a folder in use.
    """
    require_used(settings)
    require_unused(out)
    _require_rows_to_close(settings)
    selector_of(settings.selector)
    read_documents(settings.data)


def _require_rows_to_close(settings: CalibrateRecallSettings) -> None:
    """Refuse windows that leave nothing to rank by, and documents in which none closes."""
    if settings.ratio < 1:
        raise BadInput(
            f"a ratio of {settings.ratio:g} keeps more rows than there are", "use --ratio 1 or more"
        )
    shortest = 2 * settings.kappa
    if settings.block < shortest:
        raise BadInput(
            f"a block of {settings.block} rows lies in the span of {settings.kappa} low-pass bins",
            f"use a --block of at least {shortest}",
        )
    shortest = settings.recent + (shortest if settings.window == "prefix" else settings.block)
    if settings.tokens < shortest:
        raise BadInput(
            f"{settings.tokens} tokens close no row",
            f"use --tokens of at least {shortest}, a smaller --block, or --window prefix",
        )


def _layer(
    own: list[LayerContext], kept_back: list[LayerContext], policy: RecallSettings, scale: float
) -> tuple[Tensor, LayerThresholds]:
    """Basis and thresholds of one layer from its own contexts, judged on those kept back."""
    latent = own[0].latent
    content = torch.cat([context.queries[..., :latent].flatten(0, 1) for context in own])
    basis = fitted_basis(content, policy.rank)
    parts = [_evidence(context, basis, scale) for context in own if context.tier.archived]
    limits = Thresholds(policy.z_max)
    if parts:
        limits = calibrated(
            Evidence.joined(parts),
            target=policy.target,
            conformal=policy.conformal,
            z_max=policy.z_max,
            gate=policy.gate,
            gate_off=policy.gate_off,
        )
    frozen = Frozen(basis, limits)
    told = [replace(context, tier=replace(context.tier, frozen=frozen)) for context in kept_back]
    return basis, _judged(told, policy, scale)


def _judged(contexts: Iterable[LayerContext], policy: RecallSettings, scale: float) -> LayerThresholds:
    """How often later queries find their best row with their context's thresholds, and what that costs."""
    own_each = policy.thresholds == "prompt"
    pairs = hard = own = union = fired = steps = fetched = archived = 0
    used: list[Thresholds] = []
    for context in contexts:
        tier = context.tier
        if tier.archive is None or tier.frozen is None or not tier.archived:
            continue
        basis, limits = tier.frozen.basis, tier.frozen.thresholds
        used.append(limits)
        rows = context.rows[tier.archive].float()
        archive = Archive(tier.archive, sketch(rows, basis), basis, limits, lambda numbers: lambda: numbers)
        near = scale * context.queries @ context.rows[context.attended].float().T
        near = near.masked_fill(~context.attended_seen, -torch.inf)
        asked, _ = trigger(context.queries, near, archive, policy, scale)
        wanted = asked.any(0)
        wanted |= (wanted.sum(-1) > policy.cap)[:, None]
        truth, best = (scale * context.queries @ rows.T).max(-1)
        is_hard = truth > near.amax(-1)
        found = asked.gather(-1, best[..., None])[..., 0]
        shared = wanted.expand(asked.shape).gather(-1, best[..., None])[..., 0]
        pairs += is_hard.numel()
        hard += int(is_hard.sum())
        own += int((found & is_hard).sum())
        union += int((shared & is_hard).sum())
        fired += int(asked.any(-1).sum())
        steps += wanted.shape[0]
        fetched += int(wanted.sum())
        archived += tier.archived
    count = len(used)
    gates = [limits.gate for limits in used if limits.gate is not None]
    return LayerThresholds(
        z=sum(limits.z for limits in used) / count if count else policy.z_max,
        gate=sum(gates) / count if count and len(gates) == count else None,
        queries=sum(limits.queries for limits in used) if own_each else used[0].queries if used else 0,
        hard=sum(limits.hard for limits in used) if own_each else used[0].hard if used else 0,
        held_out=pairs,
        held_out_hard=hard,
        recall=own / hard if hard else None,
        recall_union=union / hard if hard else None,
        fire_rate=fired / pairs if pairs else None,
        rows_per_step=fetched / steps if steps else None,
        archive=archived / count if count else None,
    )


def _evidence(context: LayerContext, basis: Tensor, scale: float) -> Evidence:
    tier = context.tier
    if tier.archive is None:
        raise ValueError("a context without an archive has no evidence")
    archived = context.rows[tier.archive].float()
    count = context.queries.shape[1]
    return evidence(
        context.queries,
        context.rows[context.attended].float(),
        context.attended_seen,
        archived,
        torch.ones(count, archived.shape[0], dtype=torch.bool, device=archived.device),
        sketch(archived, basis),
        basis,
        scale,
    )


def _require_recall(layers: dict[int, LayerThresholds], policy: RecallSettings) -> None:
    """Refuse to freeze thresholds that miss their target on documents they were not made from."""
    for index, found in layers.items():
        if found.recall is not None and found.recall < policy.target:
            raise CheckFailed(
                f"layer {index} finds the best row of {100 * found.recall:.1f} % of {found.held_out_hard} "
                f"hard queries in documents kept back, and the target is {100 * policy.target:g} %",
                "use more --contexts, a larger --rank, --conformal true, or a lower --target",
            )
