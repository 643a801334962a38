"""Random columns beside the newest ones: what a selection must beat."""

from __future__ import annotations

from ridgefit.runtime.draft.controllers import Never
from ridgefit.runtime.draft.policy import Policy
from ridgefit.runtime.draft.scores import random
from ridgefit.runtime.draft.settings import CacheSettings

POLICY = Policy(
    name="random",
    source="control",
    recent=CacheSettings.share,
    scorer=random,
    controller=lambda _: Never(),
)
