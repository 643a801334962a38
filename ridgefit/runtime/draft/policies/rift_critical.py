"""RIFT-stat's share of newest columns on CriticalKV's scores (RIFT table 2)."""

from __future__ import annotations

from ridgefit.runtime.draft.controllers import Never
from ridgefit.runtime.draft.policy import Policy
from ridgefit.runtime.draft.scores import critical
from ridgefit.runtime.draft.settings import CacheSettings

POLICY = Policy(
    name="rift-critical",
    source="RIFT section 4.4 on after CriticalKV",
    recent=CacheSettings.share,
    scorer=critical,
    controller=lambda _: Never(),
)
