"""A model that decodes by itself with a compressed cache (RIFT appendix F): its own text, and known text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ridgefit.errors import BadInput
from ridgefit.runtime.draft.drafter import Drafter
from ridgefit.runtime.draft.policy import Policy
from ridgefit.runtime.draft.settings import CacheSettings
from ridgefit.runtime.draft.signals import Interval, Signals
from ridgefit.runtime.speculative.choose import Chooser
from ridgefit.runtime.speculative.generate import Draft, Emit, inside_generate
from ridgefit.runtime.speculative.loop import Stop


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


@dataclass(frozen=True)
class Alone:
    """One prompt, continued by the model itself.

    Attributes:
        tokens: output ids.
        refreshes: re-selections.
        widest: most columns that attention saw while decoding.
        budget: most it may see; None without compression.
    """

    tokens: list[int]
    refreshes: int
    widest: int
    budget: int | None


def along(draft: Draft, prompt: Sequence[int], continuation: Sequence[int]) -> Along:
    """What a model under a cache policy says about a continuation, one token at a time.

    Raises:
        BadInput: a policy whose controller reads what a target accepts.
    """
    walk = _Walk(draft, prompt)
    agreed: list[bool] = []
    nll: list[float] = []
    for token in continuation:
        chosen, logits = walk.step(Chooser())
        agreed.append(chosen == token)
        nll.append(-float(logits.float().log_softmax(-1)[token]))
        walk.commit(token)
    return Along(agreed, nll, walk.drafter.spent.refreshes, walk.drafter.widest)


def alone(
    draft: Draft,
    prompt: Sequence[int],
    new_tokens: int,
    *,
    stop: Stop = lambda _: False,
    chooser: Chooser | None = None,
    emit: Emit = lambda _: None,
) -> Alone:
    """A model's own text under a cache policy, which no whole cache verifies.

    Args:
        draft: the model with its policy; its number of drafted tokens plays no part.
        prompt: token ids.
        new_tokens: most output tokens.
        stop: whether the output ends with the last of these tokens.
        chooser: how logits become tokens; greedy if absent.
        emit: called with each token, in a list.

    Raises:
        BadInput: a policy whose controller reads what a target accepts.
    """
    walk, picked = _Walk(draft, prompt), chooser or Chooser()
    while len(walk.output) < new_tokens:
        token, _ = walk.step(picked)
        walk.commit(token)
        emit([token])
        if stop(walk.committed):
            break
    drafter = walk.drafter
    return Alone(walk.output, drafter.spent.refreshes, drafter.widest, drafter.budget)


def writing(
    policy: Policy,
    settings: CacheSettings | None = None,
    report: Callable[[Alone], None] = lambda _: None,
    *,
    streamer: Any = None,
) -> Callable[..., Tensor]:
    """A decoding method for transformers: `model.generate(ids, custom_generate=writing(policy, settings))`.

    Args:
        policy: how the model's own cache is kept small; one that needs a frozen controller is refused,
            because nothing is accepted or refused here.
        settings: sizes of the cache.
        report: called with what it took.
        streamer: gets every new token.

    Raises:
        BadInput: such a policy.
    """
    require_own_controller(policy)

    def run(
        model: Any, prompt: list[int], new_tokens: int, stop: Stop, chooser: Chooser, emit: Emit
    ) -> list[int]:
        found = alone(
            Draft(model, policy, settings), prompt, new_tokens, stop=stop, chooser=chooser, emit=emit
        )
        report(found)
        return found.tokens

    return inside_generate(run, streamer=streamer)


def require_own_controller(policy: Policy) -> None:
    """Refuse a policy whose controller reads what a target accepts.

    Raises:
        BadInput: it is one.
    """
    if policy.controller is None:
        raise BadInput(
            f"policy {policy.name} reads what a target accepts of a draft, and here is no draft",
            "choose another policy, for example rift-dyn",
        )


class _Walk:
    """One token after the other, with the policy's own refreshes in between."""

    def __init__(self, draft: Draft, prompt: Sequence[int]) -> None:
        self.drafter = Drafter(draft.model, draft.policy, draft.settings)
        require_own_controller(draft.policy)
        own = draft.policy.controller
        self._controller = own(self.drafter.settings) if own else None
        self.drafter.prefill(prompt)
        self.committed = list(prompt)
        self._prompt = len(prompt)
        self._interval = Interval()
        self._last: tuple[int, list[float], list[float]] = (-1, [], [])

    @property
    def output(self) -> list[int]:
        """Committed tokens after the prompt."""
        return self.committed[self._prompt :]

    @torch.no_grad()
    def step(self, chooser: Chooser) -> tuple[int, Tensor]:
        """The token that the model picks next, and its logits `[vocab]`."""
        held: list[Tensor] = []

        def choose(prefix: Sequence[int], logits: Tensor, /) -> tuple[int, Any]:
            held.append(logits)
            return chooser(prefix, logits)

        proposal = self.drafter.propose(self.committed, 1, choose)
        self._last = (proposal.tokens[0], proposal.entropies, proposal.top1)
        return proposal.tokens[0], held[0]

    def commit(self, token: int) -> None:
        """Take a token as the next one; the policy may select again."""
        chosen, entropies, top1 = self._last
        self._interval.add(int(chosen == token), entropies, top1)
        self.committed.append(token)
        drafter, done = self.drafter, len(self.committed) - self._prompt
        drafter.settle(len(self.committed) - 1)
        drafter.select_if_needed()

        def read() -> Signals:
            progress = done / self._prompt
            return self._interval.read(drift=drafter.drift(), since=drafter.since, progress=progress)

        if self._controller is not None and self._controller.due(done, read):
            drafter.refresh()
