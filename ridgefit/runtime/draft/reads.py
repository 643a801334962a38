"""Which sizes of a draft cache a policy reads; whoever sets another one believes in something that is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from ridgefit.runtime.draft.controllers import Never, Periodic
from ridgefit.runtime.draft.policy import Policy
from ridgefit.runtime.draft.scores import attention, critical, expected
from ridgefit.runtime.draft.settings import CacheSettings
from ridgefit.runtime.draft.windows import observed_window

_ALL = tuple(field.name for field in fields(CacheSettings) if field.name != "seed")
_BY_PART: dict[Callable[..., Any] | None, tuple[str, ...]] = {
    CacheSettings.share: ("recent_share", "window"),
    observed_window: ("observe",),
    **dict.fromkeys((attention, critical, expected), ("observe", "kernel")),
}


def unread(policy: Policy) -> tuple[str, ...]:
    """Fields of `CacheSettings`, but for the seed, whose value changes nothing under a policy."""
    if policy.recent is None:
        return _ALL
    read = {"budget", "keep_ratio", *_BY_PART.get(policy.recent, ()), *_BY_PART.get(policy.scorer, ())}
    controller = policy.controller(CacheSettings(keep_ratio=1.0)) if policy.controller else None
    if isinstance(controller, Periodic):
        read.add("every")
    if not isinstance(controller, Never) and not policy.sums:  # what is summed and let go never comes back
        read.add("candidates")
    return tuple(name for name in _ALL if name not in read)
