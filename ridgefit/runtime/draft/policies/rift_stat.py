"""RIFT-stat: a share of the budget for the newest columns, the rest selected once after the prefill."""

from __future__ import annotations

from ridgefit.runtime.draft.controllers import Never
from ridgefit.runtime.draft.policy import Policy
from ridgefit.runtime.draft.scores import attention
from ridgefit.runtime.draft.settings import CacheSettings

POLICY = Policy(
    name="rift-stat",
    source="RIFT section 4.1",
    recent=CacheSettings.share,
    scorer=attention,
    controller=lambda _: Never(),
)
