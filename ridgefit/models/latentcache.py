"""One latent layer's rows: on the device or partly in host memory, with what a reader keeps beside them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

if TYPE_CHECKING:
    from ridgefit.models.latenthooks import LatentHooks

MARK = "_ridgefit_latent"
"""Attribute of returned tensors: which layer they are of, and whether a reader reads them."""


class LatentLayer(DynamicLayer):
    """Rows of one latent layer: all on the device, or the first `offset` columns in host memory.

    Attributes:
        states: per sequence, whatever the reader keeps; travels with copies and reordering, and is replaced,
            never changed in place.
        starts: per sequence, its first column that is no padding.
        offset: columns that only host memory holds.
        host: `[batch, offset, latent + branch]`, pinned beside a GPU; None without such columns.
    """

    keys: Tensor
    values: Tensor

    def __init__(self, hooks: LatentHooks) -> None:
        super().__init__()
        self.hooks = hooks
        self.states: list[Any] = []
        self.starts: list[int] = []
        self.offset = 0
        self.host: Tensor | None = None

    @classmethod
    def adopt(cls, layer: DynamicLayer, hooks: LatentHooks) -> LatentLayer:
        """A cache layer with the rows that another one holds."""
        new = cls(hooks)
        if layer.is_initialized:
            new.lazy_initialization(layer.keys, layer.values)
            new.keys, new.values = layer.keys, layer.values
        return new

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Append rows; returns latents and branches, marked while the hooks are on."""
        reads = self.hooks.open and self.hooks.reader.reads(self, key_states.shape[-2])
        if self.offset and not reads:
            self.bring_back()
        latents, branches = super().update(key_states, value_states, *args, **kwargs)
        if not self.hooks.open:
            return latents, branches
        latents = latents.view_as(latents)  # a view: a mark on `self.keys` would be a cycle that pins memory
        setattr(latents, MARK, (self, reads))
        return latents, branches

    def get_seq_length(self) -> int:
        """Columns, padding and those in host memory included."""
        return self.offset + int(super().get_seq_length())

    def rows(self, sequence: int, columns: Tensor) -> Tensor:
        """Rows `[columns, latent + branch]` of a sequence, on the device, copied.

        Args:
            sequence: which of the batch.
            columns: int64, ascending, counted from the first column with padding.
        """
        return self.fetch(sequence, columns)()

    def fetch(self, sequence: int, columns: Tensor) -> Callable[[], Tensor]:
        """Begin to bring rows to the device; what comes back waits for them.

        Beside a GPU, rows from host memory travel on a stream of their own, while the caller goes on.
        """
        if self.host is None:
            return partial(self._on_device, sequence, columns)
        far = int(torch.searchsorted(columns, self.offset))
        picked = self.host[sequence].index_select(0, columns[:far].to(self.host.device))
        near = columns[far:] - self.offset
        if not self.keys.is_cuda:
            return lambda: torch.cat([picked, self._on_device(sequence, near)])
        stream = self.hooks.copies(self.keys.device)
        with torch.cuda.stream(stream):
            arriving = picked.pin_memory().to(self.keys.device, non_blocking=True)

        def arrived() -> Tensor:
            here = torch.cuda.current_stream(self.keys.device)
            here.wait_stream(stream)
            arriving.record_stream(here)
            return torch.cat([arriving, self._on_device(sequence, near)])

        return arrived

    def send_to_host(self, offset: int) -> None:
        """Move the columns before `offset` to host memory, exactly."""
        count = offset - self.offset
        if count <= 0:
            return
        moved = torch.cat([self.keys[:, 0, :count], self.values[:, 0, :count]], dim=-1).to("cpu")
        self.host = moved if self.host is None else torch.cat([self.host, moved], dim=1)
        if self.keys.is_cuda:
            self.host = self.host.pin_memory()
        self.keys, self.values = self.keys[:, :, count:].clone(), self.values[:, :, count:].clone()
        self.offset = offset

    def bring_back(self) -> None:
        """Every column on the device again."""
        if self.host is None:
            return
        width = self.keys.shape[-1]
        back = self.host.to(self.keys.device)[:, None]
        self.keys = torch.cat([back[..., :width], self.keys], dim=-2)
        self.values = torch.cat([back[..., width:], self.values], dim=-2)
        self.host, self.offset = None, 0

    def reset(self) -> None:
        """Forget all rows and what the reader kept of them."""
        super().reset()
        self.states, self.starts, self.host, self.offset = [], [], None, 0

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last rows; what the reader kept is found anew at the next step."""
        self.bring_back()
        super().crop(tokens_to_remove)
        self.states = [None] * len(self.states)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Rows and the reader's state follow the beams."""
        self._select(beam_idx, super().reorder_cache, beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each sequence `repeats` times."""
        order = torch.arange(len(self.states)).repeat_interleave(repeats)
        self._select(order, super().batch_repeat_interleave, repeats)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Only some sequences, by number or by mask."""
        order = indices.nonzero().flatten() if indices.dtype == torch.bool else indices
        self._select(order, super().batch_select_indices, indices)

    def _select(self, order: Tensor, parent: Any, argument: Any) -> None:
        if self.is_initialized and self.keys.numel():
            parent(argument)
        if self.host is not None:
            self.host = self.host.index_select(0, order.to(self.host.device))
        if self.states:
            chosen = order.tolist()
            self.states = [self.states[place] for place in chosen]
            self.starts = [self.starts[place] for place in chosen]

    def _on_device(self, sequence: int, columns: Tensor) -> Tensor:
        picked = (part[sequence, 0].index_select(0, columns) for part in (self.keys, self.values))
        return torch.cat(tuple(picked), dim=-1)


def copied(cache: Any) -> Any:
    """A deep copy of a cache, to go on from one prefill in several ways."""
    return copy.deepcopy(cache)
