"""The draft's whole cache: the upper reference."""

from __future__ import annotations

from ridgefit.runtime.draft.controllers import Never
from ridgefit.runtime.draft.policy import Policy

POLICY = Policy(
    name="full",
    source="no compression",
    recent=None,
    scorer=None,
    controller=lambda _: Never(),
)
