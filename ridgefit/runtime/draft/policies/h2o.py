"""H2O: columns that received most attention so far, and the newest ones, half each."""

from __future__ import annotations

from ridgefit.runtime.draft.controllers import EveryRound
from ridgefit.runtime.draft.policy import Policy
from ridgefit.runtime.draft.scores import summed
from ridgefit.runtime.draft.windows import half

POLICY = Policy(
    name="h2o",
    source="H2O; sums count committed queries only, what is let go does not come back",
    recent=half,
    scorer=summed,
    controller=lambda _: EveryRound(),
    sums=True,
)
