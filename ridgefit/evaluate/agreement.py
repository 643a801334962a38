"""Agreement with the exact arm along its own greedy continuation (paper section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
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

    def score(
        self, loaded: LoadedModel, samples: Sequence[Sample], apply: Apply, exact: Sequence[Any] | None, /
    ) -> list[Scored]:
        """Predictions of one arm along the exact arm's continuation."""
        prompts = [sample.prompt for sample in samples]
        if exact is None:
            found = exact_steps(loaded.model, prompts, apply, self.settings.new_tokens)
            return [
                _compared(steps, steps.logits, {"continuation": steps.continuation.tolist()})
                for steps in found
            ]
        continuations = torch.stack([steps.continuation for steps in exact])
        logits = steps_along(loaded.model, prompts, apply, continuations)
        return [_compared(steps, own, {}) for steps, own in zip(exact, logits, strict=True)]


def _compared(exact: ExactSteps, logits: torch.Tensor, detail: dict[str, Any]) -> Scored:
    same = logits.argmax(dim=1) == exact.logits.argmax(dim=1)
    divergence = kl(exact.logits, logits)
    detail |= {
        "same": "".join("01"[int(s)] for s in same),
        "kl": [round(v, 9) for v in divergence.tolist()],
    }
    scores = {"agreement": float(same.double().mean()), "kl": float(divergence.mean())}
    return Scored(scores, detail, exact)


def exact_steps(model: Any, prompts: Sequence[torch.Tensor], apply: Apply, count: int) -> list[ExactSteps]:
    """The exact arm's greedy continuations of `count` tokens with its predictions along them."""
    with apply():
        continuations = greedy(prefill(model, prompts), count)
    logits = steps_along(model, prompts, apply, continuations)
    return [ExactSteps(*pair) for pair in zip(continuations, logits, strict=True)]


def steps_along(
    model: Any,
    prompts: Sequence[torch.Tensor],
    apply: Apply,
    continuations: torch.Tensor,
    *,
    piece: int = PIECE,
) -> torch.Tensor:
    """Logits `[batch, steps, vocab]` of an arm along continuations `[batch, steps]`.

    `piece=1` feeds one token at a time.
    """
    with apply():
        return torch.cat(list(forced(prefill(model, prompts), continuations, piece=piece)), dim=1)


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
