"""RIFT-stat's share of newest columns on Expected attention's scores (RIFT table 2)."""

from __future__ import annotations

from ridgefit.runtime.draft.controllers import Never
from ridgefit.runtime.draft.policy import Policy
from ridgefit.runtime.draft.scores import expected
from ridgefit.runtime.draft.settings import CacheSettings

POLICY = Policy(
    name="rift-expected",
    source="RIFT section 4.4 on Expected Attention (kvpress), from the observation window",
    recent=CacheSettings.share,
    scorer=expected,
    controller=lambda _: Never(),
)
