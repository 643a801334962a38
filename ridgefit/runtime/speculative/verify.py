"""What decides over drafted tokens: the target model, or a continuation that is already known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from ridgefit.models.stepper import Stepper
from ridgefit.runtime.draft.drafter import Proposal
from ridgefit.runtime.speculative.choose import Chooser


class Verifier(Protocol):
    """Accepts drafted tokens and adds one of its own."""

    def prefill(self, prompt: Sequence[int]) -> None:
        """Read a prompt."""
        ...

    def verify(self, committed: Sequence[int], proposal: Proposal) -> tuple[int, int]:
        """How many drafted tokens are accepted, and the token that follows them."""
        ...

    def settle(self, length: int) -> None:
        """Forget everything after the first `length` tokens."""
        ...


class TargetVerifier:
    """The target model with its own cache, whole and untouched: output is its own.

    Args:
        model: target, also one with recurrent layers (snapshot and replay).
        chooser: how its logits become tokens; the drafter's is the same object.
    """

    def __init__(self, model: Any, chooser: Chooser) -> None:
        self._stepper = Stepper(model)
        self._chooser = chooser
        self.repeated = 0

    def prefill(self, prompt: Sequence[int]) -> None:
        """Read all of a prompt but its last token, which the first verification reads."""
        if len(prompt) > 1:
            self._stepper.feed(prompt[:-1])
        self._stepper.mark()
        self._stepper.rollback(self._stepper.length)

    def verify(self, committed: Sequence[int], proposal: Proposal) -> tuple[int, int]:
        """One forward pass over what was not read yet and every drafted token."""
        self._stepper.mark()
        fresh = [*committed[self._stepper.length :], *proposal.tokens]
        logits = self._stepper.feed(fresh, last=len(proposal.tokens) + 1)
        accepted = 0
        for at, token in enumerate(proposal.tokens):
            prefix = [*committed, *proposal.tokens[:at]]
            if not self._chooser.sample:
                own = int(self._chooser.scores(prefix, logits[at]).argmax())
                if own != token:
                    return accepted, own
            else:
                kept, other = self._judge(prefix, logits[at], token, proposal, at)
                if not kept:
                    return accepted, other
            accepted += 1
        last, _ = self._chooser([*committed, *proposal.tokens], logits[-1])
        return accepted, last

    def settle(self, length: int) -> None:
        """Forget refused tokens."""
        self.repeated += self._stepper.rollback(min(length, self._stepper.length))

    def _judge(
        self, prefix: Sequence[int], logits: Tensor, token: int, proposal: Proposal, at: int
    ) -> tuple[bool, int]:
        """Rejection sampling: keep with probability min(1, p/q), else draw from the excess of p over q."""
        wanted = self._chooser.scores(prefix, logits).softmax(-1)
        if proposal.probabilities is None:
            raise ValueError("sampling needs the distributions that tokens were drafted from")
        drafted = proposal.probabilities[at].to(wanted)
        if self._chooser.uniform(wanted.device) * float(drafted[token]) < float(wanted[token]):
            return True, token
        excess = (wanted - drafted).clamp(min=0)
        # Equal distributions refuse only by rounding; then any draw from the target is right.
        return False, self._chooser.draw(excess if float(excess.sum()) > 0 else wanted)


class StoredVerifier:
    """A continuation known beforehand: with greedy decoding it does not depend on the draft, so a policy can
    be judged without running the target again, with the real loop's rounds.

    Args:
        continuation: the target's own greedy tokens after the prompt.
    """

    def __init__(self, continuation: Sequence[int]) -> None:
        self._continuation = list(continuation)
        self._prompt = 0

    def prefill(self, prompt: Sequence[int]) -> None:
        """Note where the continuation begins."""
        self._prompt = len(prompt)

    def verify(self, committed: Sequence[int], proposal: Proposal) -> tuple[int, int]:
        """Compare with what is known."""
        known = self._continuation[len(committed) - self._prompt :]
        accepted = 0
        for token, own in zip(proposal.tokens, known, strict=False):
            if token != own:
                break
            accepted += 1
        if accepted == len(known):
            raise ValueError("the stored continuation has ended")
        return accepted, known[accepted]

    def settle(self, length: int) -> None:
        """Nothing to forget."""
        del length
