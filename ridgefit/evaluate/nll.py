"""Loss after the prompt on tokens that cannot be copied and on those that need the prefix (paper 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
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

    def score(
        self, loaded: LoadedModel, samples: Sequence[Sample], apply: Apply, exact: Sequence[Any] | None, /
    ) -> list[Scored]:
        """Losses under one arm; for the exact arm also those with the context cut to the tail."""
        prompts, targets = [sample.prompt for sample in samples], [sample.target for sample in samples]
        with apply():
            found = losses(loaded.model, prompts, targets)
        if exact is not None:
            return [_scored(sample, *pair) for sample, *pair in zip(samples, found, exact, strict=True)]
        cut = losses(loaded.model, [prompt[-self.tail :] for prompt in prompts], targets)
        return [_scored_exact(*row) for row in zip(samples, found, cut, strict=True)]


def _scored(sample: Sample, found: torch.Tensor, key: torch.Tensor) -> Scored:
    novel = _novel(sample)
    scores = {
        "novel_nll": _mean(found, novel),
        "key_nll": _mean(found, key),
        "nll": _mean(found, torch.ones_like(novel)),
    }
    return Scored(scores, {"losses": _rounded(found)}, key)


def _scored_exact(sample: Sample, found: torch.Tensor, cut: torch.Tensor) -> Scored:
    key = cut - found > KEY_RISE
    plain, novel = _scored(sample, found, key), _novel(sample)
    detail = {
        **plain.detail,
        "losses_without_prefix": _rounded(cut),
        "novel": novel.nonzero().flatten().tolist(),
        "key": key.nonzero().flatten().tolist(),
        "counts": {
            "scored_tokens": found.numel(),
            "novel_tokens": int(novel.sum()),
            "key_tokens": int(key.sum()),
        },
    }
    return Scored(plain.scores, detail, key)


def _novel(sample: Sample) -> torch.Tensor:
    return novel_tokens(torch.cat([sample.prompt, sample.target]), sample.prompt.numel())


def _mean(found: torch.Tensor, mask: torch.Tensor) -> float | None:
    return float(found[mask].double().mean()) if bool(mask.any()) else None


def _rounded(found: torch.Tensor) -> list[float]:
    """fp32 carries seven digits; more would only lengthen the file."""
    return [round(value, 6) for value in found.tolist()]
