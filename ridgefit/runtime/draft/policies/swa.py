"""Sliding window: the newest columns only."""

from __future__ import annotations

from ridgefit.runtime.draft.controllers import Never
from ridgefit.runtime.draft.policy import Policy

POLICY = Policy(
    name="swa",
    source="RIFT section 2",
    recent=lambda _, budget: budget,
    scorer=None,
    controller=lambda _: Never(),
)
