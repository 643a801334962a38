"""Feed tokens to a model one piece at a time, and take them back exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ridgefit.models.call import cache_keyword
from ridgefit.models.rollback import Snapshot, cut, has_recurrent, new_cache, restore, snapshot


class Stepper:
    """A model with a cache of its own, batch 1.

    Args:
        model: causal language model.
        cache: an empty cache made by `new_cache` or `subset_cache`; the former if absent.

    Attributes:
        tokens: what was fed and not taken back.
        recurrent: whether going back means running tokens again.
    """

    def __init__(self, model: Any, cache: Any = None) -> None:
        self.model = model
        self.cache = new_cache(model) if cache is None else cache
        self.tokens: list[int] = []
        self._keyword = cache_keyword(model)
        self.recurrent = has_recurrent(self.cache)
        self._mark: Snapshot | None = None

    @property
    def length(self) -> int:
        """Tokens fed."""
        return len(self.tokens)

    @property
    def marked(self) -> int:
        """Length at the last mark, or now if there is none."""
        return self.length if self._mark is None else self._mark.length

    @torch.no_grad()
    def feed(self, tokens: Sequence[int], *, last: int = 1) -> Tensor:
        """Run tokens; logits after the last `last` of them, `[last, vocab]` in the model's dtype."""
        ids = torch.tensor([list(tokens)], dtype=torch.long, device=self.model.device)
        output = self.model(input_ids=ids, use_cache=True, logits_to_keep=last, **{self._keyword: self.cache})
        self.tokens += [int(token) for token in tokens]
        logits: Tensor = output.logits[0, -last:]
        return logits

    def mark(self) -> None:
        """Remember now as the place to which `rollback` may go back; free without recurrent layers."""
        if self.recurrent:
            self._mark = snapshot(self.cache)

    def rollback(self, length: int) -> int:
        """Keep the first `length` tokens, as if the others had never been fed.

        Returns:
            tokens that had to be run again, which only recurrent layers ask for.

        Raises:
            ValueError: `length` is before the mark of a model with recurrent layers.
        """
        gone = self.length - length
        if not self.recurrent:
            cut(self.cache, gone)
            del self.tokens[length:]
            return 0
        if gone == 0:
            cut_sliding_only(self.cache)
            return 0
        if self._mark is None or self._mark.length > length:
            raise ValueError(f"cannot go back to {length}, before the last mark")
        again = self.tokens[self._mark.length : length]
        restore(self.cache, self._mark)
        del self.tokens[self._mark.length :]
        if again:
            self.feed(again)
        return len(again)

    def fork(self) -> tuple[Snapshot, list[int]]:
        """The present, to be `restore`d after an excursion."""
        return snapshot(self.cache), list(self.tokens)

    def restore(self, state: tuple[Snapshot, list[int]]) -> None:
        """Back to a fork."""
        restore(self.cache, state[0])
        self.tokens = list(state[1])
        self._mark = None


def cut_sliding_only(cache: Any) -> None:
    """Let window-limited layers forget what their window has passed."""
    for layer in cache.layers:
        if getattr(layer, "is_sliding", False):
            layer.crop(0)
