"""A cache layer that stores every column and lets attention see some: selected, newest and new ones.

It stands in for transformers' DynamicLayer. Positions stay true, because the length that the decoder counts
from is that of the store; masks stay true, because what is kept before the new columns is announced as the
columns right before them, and a causal rule cannot tell the difference.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

_SPARE = 64  # columns allocated at first beyond what is stored


class Selection(NamedTuple):
    """What a layer attends to besides its newest columns.

    Attributes:
        columns: sorted columns per KV head, `[1, kv_heads, selected]`; None before the first selection.
        boundary: no column before it counts as new, so that none is seen twice.
    """

    columns: Tensor | None
    boundary: int


class SubsetColumns:
    """Stored keys and values of one layer, and which of them attention sees.

    Attributes:
        budget: most columns that attention sees after the prefill, new ones included; None for all.
        recent: newest columns seen once something is selected, new ones included.
        dense: attention sees everything (the prefill).
        widest: most columns seen while not dense.
        selection: selected columns and boundary.
    """

    is_sliding = False
    is_croppable = True
    is_compileable = False
    supports_early_init = False

    def __init__(self, budget: int | None = None, recent: int = 0) -> None:
        self.budget = budget
        self.recent = recent
        self.dense = budget is None
        self.widest = 0
        self.selection = Selection(None, 0)
        self.is_initialized = False
        self._length = 0
        self._store: tuple[Tensor, Tensor] | None = None
        self._gathered: tuple[Tensor, Tensor] | None = None

    @property
    def keys(self) -> Tensor | None:
        """Every stored key, `[1, kv_heads, length, head_dim]`, rotated; a view."""
        return None if self._store is None else self._store[0][:, :, : self._length]

    @property
    def values(self) -> Tensor | None:
        """Every stored value, `[1, kv_heads, length, head_dim]`; a view."""
        return None if self._store is None else self._store[1][:, :, : self._length]

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store new columns `[1, kv_heads, new, head_dim]`; what comes back is what attention sees."""
        del args, kwargs
        new = key_states.shape[-2]
        first = self._first(new)
        self._append(key_states, value_states)
        seen = tuple(part[:, :, first : self._length] for part in self._whole())
        if self._gathered is not None and not self.dense:
            seen = tuple(torch.cat(pair, dim=2) for pair in zip(self._gathered, seen, strict=True))
        if not self.dense:
            self.widest = max(self.widest, seen[0].shape[2])
        return seen[0], seen[1]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Columns that attention will see, and the position that the first of them pretends to have."""
        kept = self._length - self._first(query_length)
        if self._gathered is not None and not self.dense:
            kept += self._gathered[0].shape[2]
        return kept + query_length, self._length - kept

    def get_seq_length(self) -> int:
        """Stored columns, from which positions are counted."""
        return self._length

    def get_max_length(self) -> int:
        """No limit."""
        return -1

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the newest `-tokens_to_remove` columns."""
        self._length -= abs(tokens_to_remove)

    def select(self, columns: Tensor | None, boundary: int) -> None:
        """Attend to `columns` `[1, kv_heads, selected]`, and to the newest ones from `boundary` on."""
        self.selection = Selection(columns, boundary)
        self._gathered = None
        if columns is not None:
            at = columns[..., None].expand(-1, -1, -1, self._whole()[0].shape[-1])
            values_at = columns[..., None].expand(-1, -1, -1, self._whole()[1].shape[-1])
            self._gathered = (self._whole()[0].gather(2, at), self._whole()[1].gather(2, values_at))

    def seen(self, position: int) -> Tensor:
        """Which stored columns a query at `position` sees, bool `[kv_heads, length]`, its own included."""
        keys, _ = self._whole()
        found = torch.zeros(keys.shape[1], self._length, dtype=torch.bool, device=keys.device)
        if self.dense:
            found[:, : position + 1] = True
            return found
        if self.selection.columns is not None:
            found.scatter_(1, self.selection.columns[0], True)
        found[:, self._start(position + 1) : position + 1] = True
        return found

    def _first(self, new: int) -> int:
        return 0 if self.dense else self._start(self._length + new)

    def _start(self, end: int) -> int:
        """First column of the window whose last column is `end` - 1."""
        if self.selection.columns is None:
            return max(end - (self.budget or end), 0)
        return max(end - self.recent, self.selection.boundary, 0)

    def _append(self, keys: Tensor, values: Tensor) -> None:
        end = self._length + keys.shape[2]
        if self._store is None:
            self._store = (_room(keys, end + _SPARE), _room(values, end + _SPARE))
            self.is_initialized = True
        elif end > self._store[0].shape[2]:
            old = self._store
            self._store = (_room(keys, 2 * end), _room(values, 2 * end))
            for place, part in zip(self._store, old, strict=True):
                place[:, :, : self._length] = part[:, :, : self._length]
        for place, part in zip(self._store, (keys, values), strict=True):
            place[:, :, self._length : end] = part
        self._length = end

    def _whole(self) -> tuple[Tensor, Tensor]:
        if self._store is None:
            raise ValueError("the layer holds nothing yet")
        return self._store


def _room(like: Tensor, columns: int) -> Tensor:
    return like.new_empty(like.shape[0], like.shape[1], columns, like.shape[3])


@cache
def _layer_class() -> type:
    from transformers.cache_utils import CacheLayerMixin

    # transformers asks with isinstance whether a layer counts tokens.
    return type("SubsetLayer", (SubsetColumns, CacheLayerMixin), {"lazy_initialization": lambda *_: None})


def subset_layer(budget: int | None, recent: int) -> SubsetColumns:
    """A new layer that transformers takes for one of its own."""
    layer: SubsetColumns = _layer_class()(budget, recent)
    return layer
