"""RIFT-stat selected again after every round: what refreshing can give at most."""

from __future__ import annotations

from ridgefit.runtime.draft.controllers import EveryRound
from ridgefit.runtime.draft.policy import Policy
from ridgefit.runtime.draft.scores import attention
from ridgefit.runtime.draft.settings import CacheSettings

POLICY = Policy(
    name="oracle",
    source="control",
    recent=CacheSettings.share,
    scorer=attention,
    controller=lambda _: EveryRound(),
)
