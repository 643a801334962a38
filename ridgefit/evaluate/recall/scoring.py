"""One sample through every arm: a prefill, then a copy of its cache for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ridgefit.errors import CheckFailed
from ridgefit.evaluate.recall.arms import RecallArm
from ridgefit.evaluate.recall.readers import PrefixReader, ShadowReader
from ridgefit.evaluate.recall.samples import RecallSample
from ridgefit.models.latentcache import copied
from ridgefit.models.latenthooks import LatentHooks, Reader
from ridgefit.models.load import LoadedLatent
from ridgefit.runtime.recall.reader import PolicyReader
from ridgefit.runtime.recall.report import RecallReport


@dataclass(frozen=True)
class RecallScore:
    """One arm on one sample.

    Attributes:
        nll: summed loss of the scored tokens, nats.
        right: whether each of them is the likeliest one.
        mass: dense attention on rows that the arm reads, share; None where it was not measured.
        layers: counts of the runtime's report, by layer.
    """

    nll: float
    right: bool
    mass: float | None
    layers: Mapping[str, Mapping[str, Any]]

    def body(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


def score_sample(
    loaded: LoadedLatent, sample: RecallSample, arms: Sequence[RecallArm], *, mass: bool
) -> Iterator[tuple[str, RecallScore]]:
    """The dense model first, then every arm on a copy of its cache.

    Args:
        loaded: the model.
        sample: prefix and continuation.
        arms: how the cache is read.
        mass: also measure retained attention.

    Raises:
        CheckFailed: an arm did not read every layer, or changed nothing where it had to.
    """
    cache = _prefilled(loaded, sample, arms[0])
    yield "dense", RecallScore(*_losses(loaded, sample, copied(cache)), 1.0 if mass else None, {})
    for arm in arms:
        reader = PolicyReader(arm.policy, loaded.latent.layers, several=True)
        with _reading(loaded, reader):
            nll, right = _losses(loaded, sample, copied(cache))
        _require_hooks(loaded, sample, arm, reader.report)
        retained = None
        if mass:
            shadow = ShadowReader(arm.policy, loaded.latent.layers, several=True)
            with _reading(loaded, shadow):
                _losses(loaded, sample, copied(cache))
            retained = shadow.mass / shadow.pairs
        layers = {str(index): _counts(report) for index, report in reader.report.layers.items()}
        yield arm.label, RecallScore(nll, right, retained, layers)


def _prefilled(loaded: LoadedLatent, sample: RecallSample, arm: RecallArm) -> Any:
    with _reading(loaded, PrefixReader(arm.policy, loaded.latent.layers)), torch.no_grad():
        cache = loaded.latent.new_cache()
        loaded.latent.feed(sample.prefix[None], cache)
    return cache


@torch.no_grad()
def _losses(loaded: LoadedLatent, sample: RecallSample, cache: Any) -> tuple[float, bool]:
    """Summed loss of the scored tokens and whether each is the likeliest, all read in one call."""
    rest: Tensor = sample.rest.to(loaded.latent.device)
    logits = loaded.latent.feed(rest[None, :-1], cache, keep=sample.scored)[0].float()
    wanted = rest[-sample.scored :]
    nll = torch.nn.functional.cross_entropy(logits.double(), wanted, reduction="sum")
    return float(nll), bool((logits.argmax(-1) == wanted).all())


@contextmanager
def _reading(loaded: LoadedLatent, reader: Reader) -> Iterator[None]:
    hooks = LatentHooks(loaded.latent, reader)
    hooks.attach()
    try:
        yield
    finally:
        hooks.detach()


def _require_hooks(loaded: LoadedLatent, sample: RecallSample, arm: RecallArm, report: RecallReport) -> None:
    """Every latent layer read every token after the prefix through the arm, and left rows out."""
    expected = sample.rest.numel() - 1
    for index in loaded.latent.layers:
        found = report.layers.get(index)
        read = 0 if found is None else found.queries
        if found is None or read != expected:
            raise CheckFailed(
                f"arm '{arm.label}' read {read} of {expected} tokens of {sample.id} in layer {index}, so its "
                "scores would be those of the dense model"
            )
        alone = arm.role in ("selector", "floor")
        if alone and found.attended + sum(found.fetched) >= found.seen:
            raise CheckFailed(
                f"arm '{arm.label}' left no row of {sample.id} out in layer {index}",
                "use longer prompts, or --window prefix in the policy",
            )


def _counts(report: Any) -> dict[str, Any]:
    return {**asdict(report), "fetched": sorted(report.fetched)}
