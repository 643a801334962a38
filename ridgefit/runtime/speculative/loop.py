"""Draft, verify, take back, refresh: one loop for decoding and for replaying a known continuation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ridgefit.errors import BadInput
from ridgefit.runtime.draft.controllers import Controller
from ridgefit.runtime.draft.drafter import Choose, Drafter, Proposal
from ridgefit.runtime.draft.signals import Interval, Signals
from ridgefit.runtime.speculative.verify import Verifier

MOST_DRAFTED = 16
Stop = Callable[[Sequence[int]], bool]
"""Whether decoding ends with the last of these tokens, prompt included."""


@dataclass(frozen=True)
class Round:
    """One verification.

    Attributes:
        start: generated tokens before it.
        drafted: tokens drafted; fewer than asked for near the length limit.
        accepted: of those, before anything was cut at a stop.
        emitted: tokens added to the output, the target's own included.
        refreshed: whether the draft cache was selected again after it.
        retained: attention mass in sight after it, where it was measured.
    """

    start: int
    drafted: int
    accepted: int
    emitted: int
    refreshed: bool = False
    retained: float | None = None


@dataclass
class Decoding:
    """Everything about one request that the loop changes.

    Attributes:
        prompt: token ids.
        committed: prompt and output.
        rounds: verifications so far.
        finished: a stop or the length limit was reached.
    """

    prompt: list[int]
    committed: list[int]
    rounds: list[Round] = field(default_factory=list)
    interval: Interval = field(default_factory=Interval)
    finished: bool = False

    @property
    def generated(self) -> list[int]:
        """Output tokens."""
        return self.committed[len(self.prompt) :]


class Speculation:
    """Speculative decoding of one prompt.

    Args:
        verifier: the target, or a stored continuation.
        drafter: the draft with its cache.
        chooser: how the draft's logits become tokens; the verifier has the same, or knows the text.
        controller: when to refresh; None for the policy's own.
        drafted: tokens drafted per round, at most 16.
        measure_every: tokens between measurements of the attention mass in sight; None for none.

    Raises:
        BadInput: a number of drafted tokens that is not supported.
    """

    def __init__(
        self,
        verifier: Verifier,
        drafter: Drafter,
        chooser: Choose,
        controller: Controller | None = None,
        *,
        drafted: int = 5,
        measure_every: int | None = None,
    ) -> None:
        if not 1 <= drafted <= MOST_DRAFTED:
            raise BadInput(
                f"{drafted} drafted tokens a round are not supported", f"draft 1 to {MOST_DRAFTED}"
            )
        self.verifier = verifier
        self.drafter = drafter
        self.chooser = chooser
        self.drafted = drafted
        self._measure_every = measure_every
        if controller is None:
            own = drafter.policy.controller
            if own is None:
                raise BadInput(
                    f"policy {drafter.policy.name} needs a controller",
                    "name one with --controller, made by `ridgefit calibrate refresh`",
                )
            controller = own(drafter.settings)
        self.controller: Controller = controller

    def start(self, prompt: Sequence[int]) -> Decoding:
        """Read a prompt on both sides.

        Raises:
            BadInput: it is empty.
        """
        if not prompt:
            raise BadInput("the prompt is empty", "give at least one token")
        self.verifier.prefill(prompt)
        self.drafter.prefill(prompt)
        return Decoding(list(prompt), list(prompt))

    def rounds(
        self, decoding: Decoding, new_tokens: int, stop: Stop = lambda _: False
    ) -> Iterator[list[int]]:
        """Decode until a stop or `new_tokens` in all; yields the tokens that each round adds."""
        while not decoding.finished:
            left = new_tokens - len(decoding.generated)
            if left <= 0:
                decoding.finished = True
                return
            yield self._round(decoding, min(self.drafted, left - 1), new_tokens, stop)

    def _round(self, decoding: Decoding, count: int, new_tokens: int, stop: Stop) -> list[int]:
        committed = decoding.committed
        start = len(decoding.generated)
        proposal = Proposal([], None, [], [])
        if count:
            proposal = self.drafter.propose(committed, count, self.chooser)
        accepted, own = self.verifier.verify(committed, proposal)
        emitted: list[int] = []
        for token in [*proposal.tokens[:accepted], own]:
            committed.append(token)
            emitted.append(token)
            if stop(committed):
                decoding.finished = True
                break
        if len(decoding.generated) >= new_tokens:
            decoding.finished = True
        refreshed, retained = False, None
        if not decoding.finished:
            self.verifier.settle(len(committed) - 1)
            if count:
                refreshed = self._after(decoding, accepted, proposal)
                retained = self._mass(start, len(decoding.generated))
        if count:
            decoding.rounds.append(Round(start, count, accepted, len(emitted), refreshed, retained))
        return emitted

    def _after(self, decoding: Decoding, accepted: int, proposal: Proposal) -> bool:
        """Take the draft back and decide over a refresh: only here, so that no refused query is scored."""
        drafter = self.drafter
        drafter.settle(len(decoding.committed) - 1)
        drafter.select_if_needed()
        decoding.interval.add(accepted, proposal.entropies, proposal.top1)
        generated = len(decoding.generated)

        def read() -> Signals:
            return decoding.interval.read(
                drift=drafter.drift(),
                since=drafter.since,
                progress=generated / len(decoding.prompt),
            )

        if not self.controller.due(generated, read):
            return False
        drafter.refresh()
        return True

    def _mass(self, before: int, after: int) -> float | None:
        every = self._measure_every
        if every is None or before // every == after // every:
            return None
        return self.drafter.retained()
