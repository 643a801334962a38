"""Pick tokens from logits: greedy, or sampled from the processed distribution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Process = Callable[[Tensor, Tensor], Tensor]
"""A logits processor of transformers: ids `[1, n]` and scores `[1, vocab]` -> scores `[1, vocab]`."""


@dataclass(frozen=True)
class Chooser:
    """How target and draft turn logits into tokens; one object for both, else sampling is not lossless.

    Attributes:
        sample: draw instead of taking the most likely token.
        process: applied to logits first (temperature, top-k, penalties).
        generator: of the draws; None takes torch's own.
    """

    sample: bool = False
    process: Process | None = None
    generator: torch.Generator | None = None

    def __call__(self, prefix: Sequence[int], logits: Tensor, /) -> tuple[int, Tensor | None]:
        """The token after a prefix, and the distribution `[vocab]` it was drawn from."""
        scores = self.scores(prefix, logits)
        if not self.sample:
            return int(scores.argmax()), None
        distribution = scores.softmax(-1)
        return self.draw(distribution), distribution

    def scores(self, prefix: Sequence[int], logits: Tensor) -> Tensor:
        """Processed logits `[vocab]`, at least fp32."""
        scores = logits if logits.dtype == torch.float64 else logits.float()
        if self.process is None:
            return scores
        ids = torch.tensor([list(prefix)], dtype=torch.long, device=scores.device)
        return self.process(ids, scores[None])[0]

    def draw(self, distribution: Tensor) -> int:
        """A token from `[vocab]` probabilities."""
        return int(torch.multinomial(self._near(distribution), 1, generator=self.generator))

    def uniform(self, device: torch.device) -> float:
        """A number from [0, 1)."""
        place = device if self.generator is None else self.generator.device
        return float(torch.rand(1, generator=self.generator, device=place, dtype=torch.float64))

    def _near(self, distribution: Tensor) -> Tensor:
        """Draws happen where the generator is."""
        return distribution if self.generator is None else distribution.to(self.generator.device)
