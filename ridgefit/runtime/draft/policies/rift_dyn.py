"""RIFT-dyn: RIFT-stat, selected again every N committed tokens."""

from __future__ import annotations

from ridgefit.runtime.draft.controllers import Periodic
from ridgefit.runtime.draft.policy import Policy
from ridgefit.runtime.draft.scores import attention
from ridgefit.runtime.draft.settings import CacheSettings

POLICY = Policy(
    name="rift-dyn",
    source="RIFT section 4.2; steps are committed tokens",
    recent=CacheSettings.share,
    scorer=attention,
    controller=lambda settings: Periodic(settings.every),
)
