"""Agreement with the exact arm along its own greedy continuation (paper section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ridgefit.evaluate.documents import document_samples
from ridgefit.evaluate.samples import Apply, Measure, Reach, Sample, SampleSet, Scored
from ridgefit.evaluate.scoring import PIECE, forced, greedy, prefill
from ridgefit.models import LoadedModel
from ridgefit.recipe import AgreementSettings


@dataclass(frozen=True)
class ExactSteps:
    """The exact arm's continuation and its predictions along it.

    Attributes:
        continuation: greedy tokens, `[steps]`.
        logits: what predicted each step, `[steps, vocab]`, model dtype on the model's device.
    """

    continuation: torch.Tensor
    logits: torch.Tensor


class AgreementTask:
    """Share of steps with the same most likely token, and mean KL(exact || arm) per step.

    The exact arm's greedy tokens are fed to every arm in one teacher-forced call, which equals feeding
    them one at a time; both sides of the comparison are computed the same way.
    """

    measures = (
        Measure("agreement", "greedy agreement", "share", "higher"),
        Measure("kl", "KL(exact || arm)", "nats", "lower"),
    )

    def __init__(self, settings: AgreementSettings) -> None:
        self.settings = settings
        self.tail = settings.tail

    def samples(self, loaded: LoadedModel, _reach: Reach, _seed: int, /) -> SampleSet:
        """One sample per document that is long enough."""
        s = self.settings
        return document_samples(loaded, s.data, s.text_field, s.documents, prompt=s.prompt, target=0)

    def score(self, loaded: LoadedModel, sample: Sample, apply: Apply, exact: Any, /) -> Scored:
        """Predictions of one arm along the exact arm's continuation."""
        if exact is None:
            exact = exact_steps(loaded.model, sample.prompt, apply, self.settings.new_tokens)
            logits = exact.logits
            detail: dict[str, Any] = {"continuation": exact.continuation.tolist()}
        else:
            logits = steps(loaded.model, sample.prompt, apply, exact.continuation)
            detail = {}
        same = logits.argmax(dim=1) == exact.logits.argmax(dim=1)
        divergence = kl(exact.logits, logits)
        detail |= {
            "same": "".join("01"[int(s)] for s in same),
            "kl": [round(v, 9) for v in divergence.tolist()],
        }
        scores = {"agreement": float(same.double().mean()), "kl": float(divergence.mean())}
        return Scored(scores, detail, exact)


def exact_steps(model: Any, prompt: torch.Tensor, apply: Apply, count: int) -> ExactSteps:
    """The exact arm's greedy continuation of `count` tokens with its predictions along it."""
    with apply():
        continuation = greedy(model, prefill(model, prompt), count)
    return ExactSteps(continuation, steps(model, prompt, apply, continuation))


def steps(
    model: Any, prompt: torch.Tensor, apply: Apply, continuation: torch.Tensor, *, piece: int = PIECE
) -> torch.Tensor:
    """Logits `[steps, vocab]` of an arm along a continuation; `piece=1` feeds one token at a time."""
    with apply():
        return torch.cat(list(forced(model, prefill(model, prompt), continuation, piece=piece)))


def kl(exact: torch.Tensor, arm: torch.Tensor) -> torch.Tensor:
    """KL(exact || arm) of each row of logits, `[steps]`, fp64 nats on the CPU.

    Nearly equal distributions cancel in fp32, so rows are compared in fp64, a few at a time.
    """
    rows: list[torch.Tensor] = []
    for left, right in zip(torch.split(exact, 16), torch.split(arm, 16), strict=True):
        p = torch.log_softmax(left.cpu().double(), dim=1)
        q = torch.log_softmax(right.cpu().double(), dim=1)
        share = p.exp()
        # A token that both sides exclude (logit -inf) adds nothing; NaN stays NaN.
        rows.append(torch.where(share == 0, 0.0, share * (p - q)).sum(dim=1))
    # Rounding can leave -1e-17; a divergence is never negative.
    return torch.cat(rows).clamp_min(0.0)
