"""A stand-in for a layer's cache while one part of a prompt runs: some rows computed, the others filled."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ridgefit.models.rows import Rows


class PartCache:
    """Takes the keys and values of the part's computed rows, and gives the real cache those of all its rows.

    Args:
        cache: the real cache; None where the call has none, and the part is then all that is attended to.
        rows: the rows of the part that the layer runs.
        kept: `[samples, rows]` bool, False for rows that run only so that all samples have as many: their
            keys and values are not written. None if all are.
        filled: keys and values `[batch, kv_heads, columns, head_dim]` of the part with what was filled,
            written to; None where every row is computed.
    """

    def __init__(
        self,
        cache: Any,
        rows: Rows,
        kept: Tensor | None = None,
        filled: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self._cache = cache
        self._rows = rows
        self._kept = kept
        self._filled = filled

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int = 0, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the part to the real cache; what comes back is all that the layer attends to."""
        if self._filled is not None:
            keys, values = self._filled
            key_states, value_states = self._put(keys, key_states), self._put(values, value_states)
        if self._cache is None:
            return key_states, value_states
        found: tuple[Tensor, Tensor] = self._cache.update(
            key_states, value_states, layer_idx, *args, **kwargs
        )
        return found

    def _put(self, buffer: Tensor, states: Tensor) -> Tensor:
        if self._kept is not None:
            kept = self._kept.to(states.device)[:, None, :, None]
            states = torch.where(kept, states, self._rows.take(buffer, dim=2))
        self._rows.put(buffer, states, dim=2)
        return buffer
