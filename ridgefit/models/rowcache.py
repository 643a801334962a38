"""A stand-in for a layer's cache while only some of a prompt's rows run the layer."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ridgefit.models.rows import Rows
from ridgefit.models.runs import Attend, RunKeys


class RowCache:
    """Takes the keys and values of some rows and hands back those of the whole prompt.

    A stock layer calls `update` with what its rows write; the buffers then hold filled and exact rows
    together, and can be given to the real cache in one piece.

    Args:
        rows: the rows that the layer runs.
        keys: `[batch, kv_heads, columns, head_dim]` after rotary, other rows already in place; written to.
            Made of zeros at the first update if absent.
        values: the same for values.
        first: first column that attention gets to see; a view, nothing is copied.
        alone: attention sees the new rows only (no fill); the buffers are still written.
        attend: hand out keys that know how their rows ask (`RunKeys`), for a layer called without a mask.
    """

    def __init__(
        self,
        rows: Rows,
        keys: Tensor | None = None,
        values: Tensor | None = None,
        *,
        first: int = 0,
        alone: bool = False,
        attend: Attend | None = None,
    ) -> None:
        self.keys = keys
        self.values = values
        self._rows = rows
        self._first = first
        self._alone = alone
        self._attend = attend

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int = 0, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store the rows' keys and values; what comes back is what the layer attends to."""
        del layer_idx, args, kwargs
        self.keys = self._put(self.keys, key_states)
        self.values = self._put(self.values, value_states)
        if self._alone:
            return key_states, value_states
        keys, values = self.keys[:, :, self._first :], self.values[:, :, self._first :]
        return (keys if self._attend is None else RunKeys.asked(keys, self._attend)), values

    def _put(self, buffer: Tensor | None, states: Tensor) -> Tensor:
        if buffer is None:
            batch, heads, _, width = states.shape
            buffer = states.new_zeros(batch, heads, self._rows.total, width)
        self._rows.put(buffer, states, dim=2)
        return buffer
