"""What a task is made of: samples, the scores of one arm on one sample, and what the scores mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch

from ridgefit.files import sha256_bytes
from ridgefit.models import LoadedModel

Apply = Callable[[], AbstractContextManager[object]]
"""Enters an arm; every `with` of it covers one prefill of a batch and what is decoded on its cache."""


@dataclass(frozen=True)
class Measure:
    """One number per sample and arm.

    Attributes:
        name: key in results.
        title: column head.
        unit: "nats" per token, or "share" (0 to 1, shown as percent).
        better: which direction is good.
        binary: each sample scores 0 or 1, so the binomial floor applies.
    """

    name: str
    title: str
    unit: Literal["nats", "share"]
    better: Literal["lower", "higher"]
    binary: bool = False


@dataclass(frozen=True)
class Reach:
    """The prompt rows that some arm of the evaluation keeps exact; what is asked for lies elsewhere.

    One reach for all arms makes the sample set the same for each of them (paper section 3.1).

    Attributes:
        tail: longest tail of any arm.
        sink_rows: most sink rows of any arm.
    """

    tail: int
    sink_rows: int


@dataclass(frozen=True)
class Sample:
    """One prompt.

    Attributes:
        id: unique within the task, and equal in every run of the same settings.
        group: the domain or task within which intervals resample.
        prompt: token ids, `[prompt]`, int64 on the CPU.
        target: token ids that are scored after the prompt, `[target]`; empty if the model finds them.
        facts: what the scorer needs beside (the expected number, its depth).
        part_of: what several samples of one group are pieces of (a document); None if it stands alone.
    """

    id: str
    group: str
    prompt: torch.Tensor
    target: torch.Tensor
    facts: Mapping[str, Any] = field(default_factory=dict)
    part_of: str | None = None

    @property
    def unit(self) -> str:
        """What counts once in means and is resampled whole, because its samples are not independent."""
        return self.part_of or self.id

    @property
    def prompt_sha256(self) -> str:
        """Hash of the prompt's ids as little-endian int32."""
        return tokens_sha256(self.prompt)

    @property
    def target_sha256(self) -> str | None:
        """Hash of the target's ids as little-endian int32; None without a target."""
        return tokens_sha256(self.target) if self.target.numel() else None


@dataclass(frozen=True)
class SampleSet:
    """A task's samples in order, and what was left out with the reason."""

    samples: tuple[Sample, ...]
    skipped: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Scored:
    """One arm on one sample.

    Attributes:
        scores: by measure name; None where the sample has nothing to score (no key token, say).
        detail: JSON values kept in the results file for later analysis.
        carry: what the other arms of the same sample are compared with; only from the exact arm.
    """

    scores: Mapping[str, float | None]
    detail: Mapping[str, Any]
    carry: Any = None


class Task(Protocol):
    """One kind of evaluation; one file each, found through `tasks.TASKS`."""

    @property
    def measures(self) -> tuple[Measure, ...]:
        """What its scores mean, the most telling one first."""
        ...

    @property
    def tail(self) -> int:
        """Exact rows at the end of the prompt, where an arm does not set its own."""
        ...

    def samples(self, loaded: LoadedModel, reach: Reach, seed: int, /) -> SampleSet:
        """Every sample of the task, the same for every arm."""
        ...

    def score(
        self, loaded: LoadedModel, samples: Sequence[Sample], apply: Apply, exact: Sequence[Any] | None, /
    ) -> list[Scored]:
        """One arm on a batch of samples, in their order.

        A sample's scores do not depend on the batch, but for rounding. `exact` holds the exact arm's carry
        of each sample, and is None while that arm is scored.
        """
        ...


def tokens_sha256(tokens: torch.Tensor) -> str:
    """Hash of token ids as little-endian int32."""
    return sha256_bytes(tokens.to("cpu", torch.int32).numpy().astype("<i4").tobytes())
