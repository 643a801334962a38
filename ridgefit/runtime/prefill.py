"""One filled prefill: below the split all rows, from the split on only exact rows (paper section 2.1)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ridgefit.features import FeatureInputs
from ridgefit.models import Port, RowCache, Rows
from ridgefit.models.call import cache_of, layer_input, with_cache, with_layer_input
from ridgefit.models.masks import attends_by_runs, row_mask, rows_alone_mask
from ridgefit.runtime.inputs import LateInputs

Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Plan:
    """Which rows of a prompt run the late layers, and which are filled.

    Attributes:
        rows: rows that run every layer.
        valid: `[batch, columns]` bool, False for left padding; None without padding.
        stop: columns before it are filled unless they are among `rows`.
        start: columns before it need no fill.
    """

    rows: Rows
    valid: Tensor | None
    stop: int
    start: int = 0

    @property
    def fills(self) -> bool:
        """Whether there is anything to fill."""
        return self.start < self.stop


class Prefill:
    """Stands between a decoder and its late layers for the time of one call.

    Args:
        port: the model.
        split: first late layer.
        plan: exact and filled rows.
        inputs: gives filled rows' layer inputs; None writes nothing for them.
        plumb: leave every row and mask as it is, and only pass through the stand-in cache.
    """

    def __init__(
        self, port: Port, split: int, plan: Plan, inputs: LateInputs | None, *, plumb: bool = False
    ) -> None:
        self._port = port
        self._split = split
        self._plan = plan
        self._inputs = inputs
        self._plumb = plumb
        self._lower: dict[int, Tensor] = {}
        self._kept: Tensor | None = None
        self._shared: dict[tuple[str, torch.device], dict[str, Any]] = {}
        self._standin: RowCache | None = None
        self.cache: Any = None

    @property
    def lower(self) -> tuple[int, ...]:
        """Layers below the split whose inputs the maps read."""
        if self._inputs is None or self._plumb or not self._plan.fills:
            return ()
        return tuple(self._split - depth for depth in self._inputs.features.lower)

    def keep_lower(self, layer: int, state: Tensor) -> None:
        """Take the input `[batch, columns, hidden]` of a layer among `lower`."""
        self._lower[self._split - layer] = state

    def enter(self, layer: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """The call that a late layer gets instead: exact rows, and a cache that holds the filled ones."""
        hidden = layer_input(args, kwargs)
        if layer == self._split and not self._plumb:
            self._keep(hidden)
            hidden = self._plan.rows.take(hidden, dim=1)
            args, kwargs = with_layer_input(args, kwargs, hidden)
        self.cache = cache_of(kwargs)
        self._standin = self._fill(layer, kwargs)
        if not self._plumb:
            kwargs = {**kwargs, **self._rows_only(layer, hidden.device, kwargs)}
        return args, with_cache(kwargs, self._standin)

    def leave(self, layer: int, output: Tensor) -> Tensor:
        """Give the layer's keys and values to the real cache; after the last layer, all rows come back.

        Filled rows have no output; they hold NaN, so that a use of them is seen and not believed.
        """
        standin, self._standin = self._standin, None
        if self.cache is not None and standin is not None:
            self.cache.update(standin.keys, standin.values, layer)
        if layer < self._port.n_layers - 1 or self._plumb:
            return output
        rows = self._plan.rows
        whole = output.new_full((output.shape[0], rows.total, output.shape[2]), float("nan"))
        rows.put(whole, output, dim=1)
        return whole

    def hidden_columns(self) -> Tensor:
        """`[batch or 1, columns]` bool, True for columns that late layers never wrote."""
        index = self._plan.rows.index(self._port.device)
        hidden = torch.ones(index.shape[0], self._plan.rows.total, dtype=torch.bool, device=index.device)
        return hidden.scatter_(1, index, value=False)

    def _keep(self, state: Tensor) -> None:
        """Compute, once for all late layers, what their maps read of the filled rows."""
        plan = self._plan
        if self._inputs is None or not plan.fills:
            return
        rows = slice(0, plan.stop + self._inputs.features.ahead)
        found = FeatureInputs(
            state=state[:, rows],
            valid=None if plan.valid is None else plan.valid[:, rows].to(state.device),
            lower={depth: kept[:, rows] for depth, kept in self._lower.items()},
            mlp=partial(self._port.mlp_activations, self._split),
        )
        self._lower = {}
        self._kept = self._inputs.read(found)[:, plan.start : plan.stop].contiguous()

    def _fill(self, layer: int, kwargs: dict[str, Any]) -> RowCache:
        """Keys and values that `layer` writes for filled rows, in buffers of the prompt's length."""
        plan, rows = self._plan, self._plan.rows
        if self._inputs is None:
            return RowCache(rows, alone=not self._plumb)
        device = self._port.layer_device(layer)
        by_runs = self._by_runs(layer, device, kwargs)
        if self._kept is None:
            return RowCache(rows, by_runs=by_runs)
        self._kept = kept = self._kept.to(device)
        first = max(self._first_seen(layer), plan.start)
        inputs = self._inputs.predict(layer, kept[:, first - plan.start :])
        rotary = tuple(part[:, first : plan.stop].to(device) for part in kwargs["position_embeddings"])
        filled = self._port.write(layer, inputs, (rotary[0], rotary[1]))
        keys, values = (self._buffer(part, first) for part in filled)
        return RowCache(rows, keys, values, first=self._first_attended(layer), by_runs=by_runs)

    def _buffer(self, filled: Tensor, first: int) -> Tensor:
        """`filled` at its columns in a buffer for all of them; zeros before, exact rows to come."""
        batch, heads, _, width = filled.shape
        buffer = filled.new_empty(batch, heads, self._plan.rows.total, width)
        buffer[:, :, :first].zero_()
        buffer[:, :, first : self._plan.stop].copy_(filled)
        return buffer

    def _first_seen(self, layer: int) -> int:
        """First column that the window of the first tail row still sees in `layer`."""
        window = self._port.window(layer)
        return 0 if window is None else max(0, self._plan.stop - window + 1)

    def _first_attended(self, layer: int) -> int:
        """First column handed to attention: a window's columns, if no sink row needs the start."""
        return self._first_seen(layer) if self._plan.rows.is_tail and self._kept is not None else 0

    def _by_runs(self, layer: int, device: torch.device, kwargs: dict[str, Any]) -> bool:
        """Whether the exact rows of `layer` attend run by run instead of under a mask."""
        if self._plumb or self._inputs is None:
            return False
        return attends_by_runs(
            kwargs["attention_mask"],
            self._plan.rows,
            first=self._first_attended(layer),
            attention=self._port.attention,
            device=device,
        )

    def _rows_only(self, layer: int, device: torch.device, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Mask and positions of the exact rows; the same for all layers of a kind."""
        key = (self._port.kind(layer), device)
        if key not in self._shared:
            rows = self._plan.rows
            stock = kwargs["attention_mask"]
            padded = self._plan.valid is not None
            if self._inputs is None:
                mask = rows_alone_mask(stock, rows, padded=padded)
            else:
                first = self._first_attended(layer)
                attention = self._port.attention
                mask = row_mask(stock, rows, first=first, padded=padded, attention=attention, device=device)
            positions = kwargs.get("position_ids")
            by_runs = self._by_runs(layer, device, kwargs)
            self._shared[key] = {
                "attention_mask": mask,
                **({"is_causal": False} if by_runs else {}),
                "position_embeddings": tuple(rows.take(part, 1) for part in kwargs["position_embeddings"]),
                "position_ids": None if positions is None else rows.take(positions, dim=1),
            }
        return self._shared[key]
