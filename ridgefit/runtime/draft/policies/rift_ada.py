"""RIFT-ada: RIFT-stat, selected again when a frozen controller asks for it."""

from __future__ import annotations

from ridgefit.runtime.draft.policy import Policy
from ridgefit.runtime.draft.scores import attention
from ridgefit.runtime.draft.settings import CacheSettings

POLICY = Policy(
    name="rift-ada",
    source="RIFT section 4.3",
    recent=CacheSettings.share,
    scorer=attention,
    controller=None,
)
