"""SnapKV: the observation window is the only recency, selected once after the prefill."""

from __future__ import annotations

from ridgefit.runtime.draft.controllers import Never
from ridgefit.runtime.draft.policy import Policy
from ridgefit.runtime.draft.scores import attention
from ridgefit.runtime.draft.windows import observed_window

POLICY = Policy(
    name="snapkv",
    source="SnapKV; scores averaged over a group's query heads",
    recent=observed_window,
    scorer=attention,
    controller=lambda _: Never(),
)
