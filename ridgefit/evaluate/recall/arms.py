"""Arms of a recall evaluation: selectors in one mask, with recall off and on, and what gates need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ridgefit.errors import BadInput
from ridgefit.maps.recall import RecallPolicy
from ridgefit.models.load import LoadedLatent
from ridgefit.recipe import RecallEvalSettings
from ridgefit.runtime.recall import SELECTORS, require_premise, selector_of

Role = Literal["selector", "recall", "policy", "identity", "floor"]


@dataclass(frozen=True)
class RecallArm:
    """One way of reading the cache.

    Attributes:
        label: name in tables and results, unique.
        role: a selector alone, a selector with recall, a policy as frozen, or a gate's arm: every row kept
            (identity), sinks alone (floor).
        ratio: closed rows per kept row; 1 for identity, None for the floor.
        policy: settings and, for policies as frozen, thresholds.
    """

    label: str
    role: Role
    ratio: float | None
    policy: RecallPolicy


def resolve_recall_arms(settings: RecallEvalSettings, loaded: LoadedLatent) -> tuple[RecallArm, ...]:
    """All arms, the gates' first.

    Ratios, windows, kappa, rank and whatever else an arm shares with a policy are those of the policies.

    Raises:
        BadInput: a policy of another model, two policies of one ratio, or an unknown selector.
    """
    policies = opened_policies(settings)
    for policy in policies:
        policy.check(loaded.identity())
    spread = loaded.latent.branch_spread()
    require_premise(spread, control=all(policy.settings.control for policy in policies))
    return tuple(_arms(policies, settings.selectors or tuple(SELECTORS), settings.recall_selectors))


def opened_policies(settings: RecallEvalSettings) -> list[RecallPolicy]:
    """The policies that are judged, whatever the model.

    Raises:
        BadInput: a folder that holds no policy, two policies of one ratio, or an unknown selector.
    """
    policies = [RecallPolicy.load(path) for path in settings.policy]
    ratios = [policy.settings.ratio for policy in policies]
    if len(set(ratios)) != len(ratios):
        raise BadInput("two policies keep rows at the same ratio", "name one policy per ratio")
    for name in (*settings.selectors, *settings.recall_selectors):
        selector_of(name)
    return policies


def _arms(
    policies: Sequence[RecallPolicy], selectors: Sequence[str], recalling: Sequence[str]
) -> Iterator[RecallArm]:
    off = {"recall": False, "thresholds": "prompt"}
    first = policies[0]
    yield RecallArm("identity", "identity", 1.0, _with(first, ratio=1.0, rows=None, **off))
    yield RecallArm("sinks alone", "floor", None, _with(first, rows=0, selector="streaming", **off))
    for policy in policies:
        ratio = policy.settings.ratio
        for name in selectors:
            changed = _with(policy, selector=name, rows=None, **off)
            yield RecallArm(f"{name} {ratio:g}x", "selector", ratio, changed)
        yield RecallArm(f"{policy.settings.selector} {ratio:g}x + recall, frozen", "policy", ratio, policy)
        for name in recalling:
            changed = _with(policy, selector=name, rows=None, recall=True, thresholds="prompt")
            yield RecallArm(f"{name} {ratio:g}x + recall", "recall", ratio, changed)


def _with(policy: RecallPolicy, **changes: object) -> RecallPolicy:
    changed = policy.settings.model_copy(update={**changes, "placement": "device"})
    manifest = policy.manifest.model_copy(update={"settings": changed, "layers": {}})
    return RecallPolicy(manifest)
