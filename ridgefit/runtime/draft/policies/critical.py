"""CriticalKV: its own scores, with the observation window as the only recency."""

from __future__ import annotations

from ridgefit.runtime.draft.controllers import Never
from ridgefit.runtime.draft.policy import Policy
from ridgefit.runtime.draft.scores import critical
from ridgefit.runtime.draft.windows import observed_window

POLICY = Policy(
    name="critical",
    source="after CriticalKV",
    recent=observed_window,
    scorer=critical,
    controller=lambda _: Never(),
)
