"""The fill of one part of a prompt, on a cache that holds the parts before it."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ridgefit.features import FeatureInputs
from ridgefit.models import PartCache, Port, Rows
from ridgefit.models.call import cache_columns, cache_of, layer_input, with_cache, with_layer_input
from ridgefit.models.masks import COLUMNS_ONLY, as_mask, visible
from ridgefit.runtime.inputs import LateInputs
from ridgefit.runtime.parts import Part, Progress
from ridgefit.runtime.prefill import Call, Plan, Prefill


class PartFill(Prefill):
    """Stands between a decoder and its late layers for the time of one part.

    Exact rows attend to everything before them, parts before this one included; the mask they get is made
    from the one that the layer would have got for the whole part.

    Args:
        port: the model.
        split: first late layer.
        part: exact and filled rows.
        progress: of the prompt.
        valid: `[batch, columns]` bool, False for left padding; None without.
        inputs: gives filled rows' layer inputs.
        plumb: leave every row and mask as it is.
    """

    def __init__(
        self,
        port: Port,
        split: int,
        part: Part,
        progress: Progress,
        valid: Tensor | None,
        inputs: LateInputs,
        *,
        plumb: bool = False,
    ) -> None:
        super().__init__(port, split, Plan(part.rows, valid, part.stop), inputs, plumb=plumb)
        self._part = part
        self._progress = progress
        self._late_inputs = inputs

    def enter(self, layer: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """The call that a late layer gets instead: exact rows, and a cache that is given the filled ones."""
        hidden, part = layer_input(args, kwargs), self._part
        self.cache = cache_of(kwargs)
        if self._plumb:
            return args, with_cache(kwargs, PartCache(self.cache, part.rows))
        if layer == self._split:
            if part.stop:
                self._kept = self._read(hidden[:, : part.stop])
            args, kwargs = with_layer_input(args, kwargs, part.rows.take(hidden, dim=1))
        filled = self._filled(layer, kwargs) if part.stop else None
        standin = PartCache(self.cache, part.rows, part.kept, filled)
        device = self._port.layer_device(layer)
        return args, with_cache({**kwargs, **self._own_rows(layer, device, kwargs)}, standin)

    def leave(self, layer: int, output: Tensor) -> Tensor:
        """After the last layer, all rows come back; those that were not exact hold NaN."""
        if layer < self._port.n_layers - 1 or self._plumb:
            return output
        rows, kept = self._part.rows, self._part.kept
        if kept is not None:
            output = output.masked_fill(~kept.to(output.device)[:, :, None], float("nan"))
        whole = output.new_full((output.shape[0], rows.total, output.shape[2]), float("nan"))
        rows.put(whole, output, dim=1)
        return whole

    def _read(self, state: Tensor) -> Tensor:
        rows, valid = state.shape[1], self._plan.valid
        found = FeatureInputs(
            state=state,
            valid=None if valid is None else valid[:, :rows].to(state.device),
            lower={depth: kept[:, :rows] for depth, kept in self._lower.items()},
            mlp=partial(self._port.mlp_activations, self._split),
        )
        self._lower = {}
        return self._late_inputs.read(found, self._progress.carry).contiguous()

    def _filled(self, layer: int, kwargs: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
        """Keys and values of the part with what `layer` writes for filled rows; exact rows are to come."""
        if self._kept is None:
            return None
        part, window = self._part, self._port.window(layer)
        device = self._port.layer_device(layer)
        self._kept = kept = self._kept.to(device)
        # No row of the tail sees what lies further back than its window.
        first = 0 if window is None else min(max(part.tail - window + 1, 0), part.stop)
        cos, sin = (side[:, first : part.stop].to(device) for side in kwargs["position_embeddings"])
        written = self._port.write(layer, self._late_inputs.predict(layer, kept[:, first:]), (cos, sin))
        return self._whole(written.keys, first), self._whole(written.values, first)

    def _whole(self, filled: Tensor, first: int) -> Tensor:
        """`filled` at its columns in a buffer for all of the part; zeros elsewhere."""
        batch, heads, _, width = filled.shape
        buffer = filled.new_zeros(batch, heads, self._part.rows.total, width)
        buffer[:, :, first : self._part.stop].copy_(filled)
        return buffer

    def _own_rows(self, layer: int, device: torch.device, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Mask and positions of the rows that run; the same for all layers of a kind."""
        key = (self._port.kind(layer), device)
        if key not in self._shared:
            rows, positions = self._part.rows, kwargs.get("position_ids")
            self._shared[key] = {
                "attention_mask": self._mask(layer, device, kwargs["attention_mask"]),
                "position_embeddings": tuple(rows.take(side, 1) for side in kwargs["position_embeddings"]),
                "position_ids": None if positions is None else rows.take(positions, dim=1),
            }
        return self._shared[key]

    def _mask(self, layer: int, device: torch.device, stock: Tensor | None) -> Tensor | None:
        """What the rows that run see, from the mask `[batch or 1, 1, columns, keys]` of the whole part."""
        rows, seen = self._part.rows, self._progress.seen
        if self._port.attention in COLUMNS_ONLY:
            return stock  # the rows are the part's last ones, which is what such a mask means
        keys, first = (rows.total, 0) if self.cache is None else cache_columns(self.cache, rows.total, layer)
        if stock is None:
            last = rows.runs == ((rows.total - 1, rows.total),) and first + keys == seen + rows.total
            if last or (rows.count == rows.total and not seen):
                return None
            absolute = Rows(first + keys, columns=rows.index(device) + seen)
            shown = visible(absolute, window=self._port.window(layer), first=first, device=device)
            return as_mask(shown, self._port.attention, self._port.dtype)
        mask = rows.take(stock, dim=-2)
        if self._plan.valid is None:
            return mask
        # A row that sees nothing is not a number in some kernels, so padding sees itself.
        own = rows.index(mask.device)[:, None, :, None] + seen - first
        own = own == torch.arange(mask.shape[-1], device=mask.device)
        return mask | own if mask.dtype == torch.bool else mask.masked_fill(own, 0)
