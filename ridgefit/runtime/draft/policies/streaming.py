"""StreamingLLM: the first four columns and the newest ones."""

from __future__ import annotations

from ridgefit.runtime.draft.controllers import Never
from ridgefit.runtime.draft.policy import Policy
from ridgefit.runtime.draft.scores import first
from ridgefit.runtime.draft.windows import all_but_sinks

POLICY = Policy(
    name="streaming",
    source="StreamingLLM; positions stay true instead of counting inside the cache",
    recent=all_but_sinks,
    scorer=first,
    controller=lambda _: Never(),
)
