"""A target's own continuation, greedy or sampled, and what a draft would have proposed on the way to it.

Rejection sampling keeps a drafted token x with probability min(1, p(x)/q(x)), else it draws from the excess
of the target's p over the draft's q. So x is drafted and kept with probability min(p(x), q(x)), and committed
with p(x): given that x was committed, it had been drafted and kept with probability min(1, q(x)/p(x)), and
otherwise the refused token came from the excess of q over p. A text that the target sampled by itself can
therefore be replayed under any draft, with rounds, signals and refreshes distributed as in the real loop.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ridgefit.models.stepper import Stepper
from ridgefit.runtime.draft.drafter import Choose
from ridgefit.runtime.speculative.choose import Chooser
from ridgefit.runtime.speculative.loop import Stop


@dataclass(frozen=True)
class Sampling:
    """How tokens are picked for one prompt.

    Attributes:
        temperature: 0 is greedy.
        seed: of everything that is drawn for the prompt.
    """

    temperature: float = 0.0
    seed: str = ""

    def chooser(self, purpose: str) -> Chooser:
        """A new chooser; draws of different purposes are independent."""
        if self.temperature == 0:
            return Chooser()
        warm = self.temperature
        return Chooser(
            sample=True, process=lambda _, scores: scores / warm, generator=self.generator(purpose)
        )

    def generator(self, purpose: str) -> torch.Generator:
        """Random numbers of one purpose, on the CPU."""
        digest = hashlib.sha256(f"{self.seed}/{purpose}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


@dataclass(frozen=True)
class Known:
    """A target's own continuation of a prompt.

    Attributes:
        prompt: token ids.
        tokens: the continuation; a few tokens after its end too, which a round may have drafted.
        ended: output tokens among them, end token included.
        chances: what each was drawn from, `[tokens, vocab]`, in main memory; None if they are greedy.
        sampling: how they were picked.
    """

    prompt: list[int]
    tokens: list[int]
    ended: int
    chances: Tensor | None
    sampling: Sampling

    @property
    def output(self) -> list[int]:
        """The continuation up to its end."""
        return self.tokens[: self.ended]

    def drafts(self) -> Choose:
        """What picks drafted tokens in a replay; new for each request."""
        return Chooser() if self.chances is None else SampledDrafts(self, self.chances)


def known_text(
    model: Any,
    prompt: Sequence[int],
    new_tokens: int,
    stop: Stop,
    sampling: Sampling | None = None,
    *,
    beyond: int = 0,
) -> Known:
    """A model's own output, step by step.

    Args:
        model: causal language model.
        prompt: token ids.
        new_tokens: most tokens.
        stop: whether the output ends with the last of these tokens.
        sampling: greedy if absent.
        beyond: tokens to go on after the end, so that a round across it can be judged whole.
    """
    sampling = sampling or Sampling()
    choose = sampling.chooser("text")
    stepper = Stepper(model)
    tokens, chances, ended = list(prompt), [], None
    logits = stepper.feed(tokens)
    while True:
        token, drawn = choose(tokens, logits[-1])
        tokens.append(token)
        if drawn is not None:
            chances.append(drawn.cpu())
        done = len(tokens) - len(prompt)
        if ended is None and stop(tokens):
            ended = done
        if done == new_tokens or (ended is not None and done >= ended + beyond):
            break
        logits = stepper.feed(tokens[-1:])
    return Known(
        list(prompt),
        tokens[len(prompt) :],
        done if ended is None else ended,
        torch.stack(chances) if chances else None,
        sampling,
    )


class SampledDrafts:
    """Picks drafted tokens as rejection sampling would have, given the text that was committed.

    One number of each place decides whether its token is drafted and kept, so policies that are replayed
    along one text share their luck. One object per request.

    Args:
        known: what the target sampled.
        chances: its distributions, `[tokens, vocab]`.
    """

    def __init__(self, known: Known, chances: Tensor) -> None:
        self._prompt = len(known.prompt)
        self._tokens = known.tokens
        self._chances = chances
        self._chooser = known.sampling.chooser("refused")
        kept = known.sampling.generator("kept")
        self._draws: list[float] = torch.rand(len(known.tokens), generator=kept, dtype=torch.float64).tolist()

    def __call__(self, prefix: Sequence[int], logits: Tensor, /) -> tuple[int, Tensor]:
        """The token drafted after a prefix, and the draft's distribution `[vocab]`."""
        drafted = self._chooser.scores(prefix, logits).softmax(-1)
        at = len(prefix) - self._prompt
        if at >= len(self._tokens) or list(prefix[self._prompt :]) != self._tokens[:at]:
            return self._chooser.draw(drafted), drafted  # after a token that will be refused
        token, wanted = self._tokens[at], self._chances[at].to(drafted)
        if self._draws[at] * float(wanted[token]) < float(drafted[token]):
            return token, drafted
        excess = (drafted - wanted).clamp(min=0)
        # Equal distributions refuse only by rounding, which is no refusal.
        return (self._chooser.draw(excess) if float(excess.sum()) > 0 else token), drafted
