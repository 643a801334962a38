"""Expected attention: its own scores, with the observation window as the only recency."""

from __future__ import annotations

from ridgefit.runtime.draft.controllers import Never
from ridgefit.runtime.draft.policy import Policy
from ridgefit.runtime.draft.scores import expected
from ridgefit.runtime.draft.windows import observed_window

POLICY = Policy(
    name="expected",
    source="Expected Attention (kvpress), from the observation window",
    recent=observed_window,
    scorer=expected,
    controller=lambda _: Never(),
)
