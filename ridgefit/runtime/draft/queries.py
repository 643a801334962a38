"""The newest queries of the draft's full-attention layers, as attention saw them, and their rotary."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class QueryTape:
    """A bounded record of queries per layer; it forgets and comes back with the cache.

    Args:
        layers: layers to record.
        rotated: those of them whose queries are rotated.
        keep: newest queries kept; None for all.
    """

    def __init__(self, layers: Iterable[int], rotated: Iterable[int], keep: int | None) -> None:
        self.keep = keep
        self.scaling = 1.0
        self._rotated = frozenset(rotated)
        self._queries: dict[int, Tensor | None] = dict.fromkeys(layers)
        self._rotary: tuple[Tensor, Tensor] | None = None

    def take(self, layer: int, queries: Tensor, scaling: float) -> None:
        """Record `[1, heads, new, head_dim]`; other layers are ignored."""
        if layer in self._queries:
            self._queries[layer] = self._join(self._queries[layer], queries.detach(), 2)
            self.scaling = scaling

    def take_rotary(self, cos: Tensor, sin: Tensor) -> None:
        """Record cosines and sines `[1, new, width]` of the same columns."""
        before = (None, None) if self._rotary is None else self._rotary
        self._rotary = (self._join(before[0], cos, 1), self._join(before[1], sin, 1))

    def trim(self, keep: int) -> None:
        """Keep the newest `keep` from now on."""
        self.keep = keep
        for layer, held in self._queries.items():
            self._queries[layer] = None if held is None else held[:, :, -keep:].clone()
        if self._rotary is not None:
            self._rotary = (self._rotary[0][:, -keep:].clone(), self._rotary[1][:, -keep:].clone())

    def cut(self, tokens: int) -> None:
        """Forget the newest `tokens`."""
        if tokens == 0:
            return
        for layer, held in self._queries.items():
            self._queries[layer] = None if held is None else held[:, :, :-tokens]
        if self._rotary is not None:
            self._rotary = (self._rotary[0][:, :-tokens], self._rotary[1][:, :-tokens])

    def newest(self, layer: int, count: int) -> Tensor:
        """The newest queries of a layer, `[heads, <= count, head_dim]`, rotated."""
        held = self._queries[layer]
        if held is None:
            raise ValueError(f"no query of layer {layer} was recorded")
        return held[0, :, -count:] if count else held[0, :, :0]

    def newest_rotary(self, count: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the newest columns, `[<= count, width]`."""
        if self._rotary is None:
            raise ValueError("no rotary was recorded")
        return self._rotary[0][0, -count:], self._rotary[1][0, -count:]

    def unrotated(self, layer: int, count: int) -> Tensor:
        """The newest queries of a layer before rotary, `[heads, <= count, head_dim]`.

        Rotary alone makes queries of a steady text differ, so drift is measured without it.
        """
        found = self.newest(layer, count)
        if layer not in self._rotated:
            return found
        cos, sin = (part.to(found.dtype) for part in self.newest_rotary(count))
        width = cos.shape[-1]
        turned, rest = found[..., :width], found[..., width:]
        scale = cos.square() + sin.square()  # 1 unless the rotary scales attention
        return torch.cat([(turned * cos - _swapped(turned) * sin) / scale, rest], dim=-1)

    def fork(self) -> tuple[dict[int, Tensor | None], tuple[Tensor, Tensor] | None]:
        """The present, to come back to; tensors are replaced, never written to."""
        return dict(self._queries), self._rotary

    def restore(self, state: tuple[dict[int, Tensor | None], tuple[Tensor, Tensor] | None]) -> None:
        """Back to a fork."""
        self._queries, self._rotary = dict(state[0]), state[1]

    def _join(self, before: Tensor | None, new: Tensor, dim: int) -> Tensor:
        joined = new if before is None else torch.cat([before, new], dim=dim)
        if self.keep is None or joined.shape[dim] <= self.keep:
            return joined
        return joined.narrow(dim, joined.shape[dim] - self.keep, self.keep)


def _swapped(turned: Tensor) -> Tensor:
    half = turned.shape[-1] // 2
    return torch.cat((-turned[..., half:], turned[..., :half]), dim=-1)
