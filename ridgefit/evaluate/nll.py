"""Loss after the prompt on tokens that cannot be copied and on those that need the prefix (paper 3.1)."""

from __future__ import annotations

from typing import Any

import torch

from ridgefit.evaluate.documents import document_samples
from ridgefit.evaluate.novel import novel_tokens
from ridgefit.evaluate.samples import Apply, Measure, Reach, Sample, SampleSet, Scored
from ridgefit.evaluate.scoring import losses
from ridgefit.models import LoadedModel
from ridgefit.recipe import NllSettings

KEY_RISE = 2.0
"""Nats by which a key token's exact loss rises once the prefix is cut away."""


class NllTask:
    """Mean loss per stretch of the tokens after its prompt: novel ones, key ones, all.

    A document gives its first stretches of `prompt` + `scored` tokens, each read without the ones before
    it; they are parts of one unit. Key tokens are found once, from the exact arm.
    """

    measures = (
        Measure("novel_nll", "NLL, novel tokens", "nats", "lower"),
        Measure("key_nll", "NLL, key tokens", "nats", "lower"),
        Measure("nll", "NLL, all tokens", "nats", "lower"),
    )

    def __init__(self, settings: NllSettings) -> None:
        self.settings = settings
        self.tail = settings.tail

    def samples(self, loaded: LoadedModel, _reach: Reach, _seed: int, /) -> SampleSet:
        """One sample per stretch of the documents that are long enough."""
        s = self.settings
        return document_samples(
            loaded,
            s.data,
            s.text_field,
            s.documents,
            prompt=s.prompt,
            target=s.scored,
            stretches=s.stretches,
        )

    def score(self, loaded: LoadedModel, sample: Sample, apply: Apply, exact: Any, /) -> Scored:
        """Losses under one arm; for the exact arm also those with the context cut to the tail."""
        with apply():
            found = losses(loaded.model, sample.prompt, sample.target)
        novel = novel_tokens(torch.cat([sample.prompt, sample.target]), sample.prompt.numel())
        detail: dict[str, Any] = {"losses": _rounded(found)}
        carry = exact
        if carry is None:
            cut = losses(loaded.model, sample.prompt[-self.tail :], sample.target)
            carry = cut - found > KEY_RISE
            detail |= {
                "losses_without_prefix": _rounded(cut),
                "novel": novel.nonzero().flatten().tolist(),
                "key": carry.nonzero().flatten().tolist(),
                "counts": {
                    "scored_tokens": found.numel(),
                    "novel_tokens": int(novel.sum()),
                    "key_tokens": int(carry.sum()),
                },
            }
        scores = {
            "novel_nll": _mean(found, novel),
            "key_nll": _mean(found, carry),
            "nll": _mean(found, torch.ones_like(novel)),
        }
        return Scored(scores, detail, carry)


def _mean(found: torch.Tensor, mask: torch.Tensor) -> float | None:
    return float(found[mask].double().mean()) if bool(mask.any()) else None


def _rounded(found: torch.Tensor) -> list[float]:
    """fp32 carries seven digits; more would only lengthen the file."""
    return [round(value, 6) for value in found.tolist()]
