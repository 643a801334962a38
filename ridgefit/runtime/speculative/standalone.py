"""A model that decodes by itself with a compressed cache (RIFT appendix F), judged along known text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ridgefit.runtime.draft.drafter import Drafter
from ridgefit.runtime.draft.signals import Interval, Signals
from ridgefit.runtime.speculative.generate import Draft


@dataclass(frozen=True)
class Along:
    """One prompt, teacher forced on a continuation.

    Attributes:
        agreed: per token, whether the model under the policy would have chosen it.
        nll: per token, its negative log-probability in nats.
        refreshes: re-selections.
        widest: most columns that attention saw.
    """

    agreed: list[bool]
    nll: list[float]
    refreshes: int
    widest: int


def along(draft: Draft, prompt: Sequence[int], continuation: Sequence[int]) -> Along:
    """What a model under a cache policy says about a continuation, one token at a time.

    Signals count every token as a round of one: accepted if it is what the model would have chosen.
    """
    drafter = Drafter(draft.model, draft.policy, draft.settings)
    own = draft.policy.controller
    controller = draft.controller() if draft.controller else own(drafter.settings) if own else None
    drafter.prefill(prompt)
    interval = Interval()
    committed = list(prompt)
    agreed: list[bool] = []
    nll: list[float] = []
    held: list[Tensor] = []

    def choose(_prefix: Sequence[int], logits: Tensor) -> tuple[int, None]:
        held.append(logits)
        return int(logits.argmax()), None

    for token in continuation:
        proposal = drafter.propose(committed, 1, choose)
        logits = held.pop()
        agreed.append(proposal.tokens[0] == token)
        nll.append(-float(logits.float().log_softmax(-1)[token]))
        interval.add(int(agreed[-1]), proposal.entropies, proposal.top1)
        committed.append(token)
        drafter.settle(len(committed) - 1)
        drafter.select_if_needed()
        done = len(agreed)

        def read(done: int = done) -> Signals:
            return interval.read(drift=drafter.drift(), since=drafter.since, progress=done / len(prompt))

        if controller is not None and controller.due(done, read):
            drafter.refresh()
    return Along(agreed, nll, drafter.spent.refreshes, drafter.widest)
