"""One filled prefill: below the split all rows, from the split on only exact rows (paper section 2.1)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ridgefit.features import FeatureInputs
from ridgefit.models import Port, RowCache, Rows, ScatteredRows
from ridgefit.models.call import cache_of, layer_input, with_cache, with_layer_input
from ridgefit.models.masks import BOOLEAN, attends_by_runs, row_mask, rows_alone_mask
from ridgefit.models.port import Rotary
from ridgefit.models.runs import Attend, attend_runs
from ridgefit.runtime.corrections import Corrections, measured
from ridgefit.runtime.inputs import LateInputs
from ridgefit.runtime.splice import ExactWrites, Splice
from ridgefit.runtime.sweep import Buffers

Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Plan:
    """Which rows of a prompt run the late layers, and which are filled.

    Attributes:
        rows: rows that run every layer.
        valid: `[batch, columns]` bool, False for left padding; None without padding.
        stop: columns before it are filled unless they are among `rows`.
        start: columns before it need no fill.
        scattered: `rows` may stand anywhere in the prompt.
        masked: the caller's mask says more than causality and padding, and the rows attend under it.
        pads: padding columns in front of each sample; empty without padding.
    """

    rows: Rows
    valid: Tensor | None
    stop: int
    start: int = 0
    scattered: bool = False
    masked: bool = False
    pads: tuple[int, ...] = ()

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
        corrections: of filled keys and values; None for none.
        splice: exact keys or values in place of filled ones; None for none.
    """

    def __init__(
        self,
        port: Port,
        split: int,
        plan: Plan,
        inputs: LateInputs | None,
        *,
        plumb: bool = False,
        corrections: Corrections | None = None,
        splice: Splice | None = None,
    ) -> None:
        self._port = port
        self._split = split
        self._plan = plan
        self._inputs = inputs
        self._plumb = plumb
        self._corrections = corrections
        self._splice = splice
        self._exact: ExactWrites | None = None
        self._lower: dict[int, Tensor] = {}
        self._kept: Tensor | None = None
        self._held: dict[int, Buffers] = {}
        self._scattered: dict[int | None, ScatteredRows] = {}
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
            self.keep(hidden, kwargs.get("position_ids"))
            hidden = self._plan.rows.take(hidden, dim=1)
            args, kwargs = with_layer_input(args, kwargs, hidden)
        self.cache = cache_of(kwargs)
        self._standin = self._fill(layer, kwargs, hidden)
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

    def replan(self, plan: Plan, held: dict[int, Buffers]) -> None:
        """Take the rows that a first sweep has led to, and the buffers it has filled."""
        self._plan = plan
        self._held = held

    def keep(self, state: Tensor, position_ids: Tensor | None) -> None:
        """Compute, once for all late layers, what their maps read of filled rows, and of measured ones."""
        plan = self._plan
        if self._inputs is None or not plan.fills or self._kept is not None:
            return
        if self._splice is not None:
            self._exact = ExactWrites(
                self._port,
                self._split,
                state,
                plan.stop,
                self._splice,
                position_ids=position_ids,
                valid=plan.valid,
            )
        stop = plan.stop + self._measured
        rows = slice(0, stop + self._inputs.features.ahead)
        found = FeatureInputs(
            state=state[:, rows],
            valid=None if plan.valid is None else plan.valid[:, rows].to(state.device),
            lower={depth: kept[:, rows] for depth, kept in self._lower.items()},
            mlp=partial(self._port.mlp_activations, self._split),
        )
        self._lower = {}
        self._kept = self._inputs.read(found)[:, plan.start : stop].contiguous()

    @property
    def _measured(self) -> int:
        """First tail rows on which corrections are measured."""
        tail = self._plan.rows.total - self._plan.stop
        return 0 if self._corrections is None else min(self._corrections.rows, tail)

    def _fill(self, layer: int, kwargs: dict[str, Any], hidden: Tensor) -> RowCache:
        """Keys and values that `layer` writes for filled rows, in buffers of the prompt's length."""
        rows = self._plan.rows
        if self._inputs is None:
            return RowCache(rows, alone=not self._plumb)
        device = self._port.layer_device(layer)
        attend = self._attend(layer, device, kwargs)
        if self._kept is None:
            return RowCache(rows, attend=attend)
        rotary = kwargs["position_embeddings"]
        buffers = self._held.pop(layer, None) or self.buffers(layer, rotary)
        self._correct(layer, hidden, rotary, buffers)
        keys, values = buffers
        return RowCache(rows, keys, values, first=self._first_attended(layer), attend=attend)

    def buffers(self, layer: int, rotary: Rotary) -> Buffers:
        """Keys and values `[batch, kv_heads, columns, head_dim]` with what `layer` writes for filled rows.

        Args:
            layer: layer number.
            rotary: its cosines and sines of all columns.
        """
        if self._inputs is None or self._kept is None:
            raise ValueError("nothing is filled")
        plan = self._plan
        self._kept = kept = self._kept.to(self._port.layer_device(layer))
        first = self._first_written(layer)
        inputs = self._inputs.predict(layer, kept[:, first - plan.start : plan.stop - plan.start])
        written = self._port.written(layer, inputs)
        if self._exact is not None:
            written = self._exact.put(layer, written, first)
        keys = self._port.rotate(layer, written.keys, _part(rotary, first, plan.stop, kept.device))
        return self._buffer(keys, first), self._buffer(written.values, first)

    def _correct(self, layer: int, hidden: Tensor, rotary: Rotary, buffers: Buffers) -> None:
        """Amend filled rows by what the first tail rows say of this layer; `hidden` is of the exact rows."""
        if self._corrections is None or self._inputs is None or self._kept is None:
            return
        plan, rows, device = self._plan, self._measured, hidden.device
        tail = hidden.shape[1] - (plan.rows.total - plan.stop)
        end = plan.stop + rows
        amendment = measured(
            self._corrections,
            self._port,
            layer,
            hidden[:, tail : tail + rows],
            self._inputs.predict(layer, self._kept[:, plan.stop - plan.start : end - plan.start]),
            _part(rotary, plan.stop, end, device),
            None if plan.valid is None else plan.valid[:, plan.stop : end].to(device),
        )
        first = self._first_written(layer)
        keys, values = (part[:, :, first : plan.stop] for part in buffers)
        values.copy_(amendment.values(values))
        keys.copy_(amendment.keys(self._port, layer, keys, _part(rotary, first, plan.stop, device)))

    def _buffer(self, filled: Tensor, first: int) -> Tensor:
        """`filled` at its columns in a buffer for all of them; zeros before, exact rows to come."""
        batch, heads, _, width = filled.shape
        buffer = filled.new_empty(batch, heads, self._plan.rows.total, width)
        buffer[:, :, :first].zero_()
        buffer[:, :, first : self._plan.stop].copy_(filled)
        buffer[:, :, self._plan.stop :].zero_()  # a probe must not meet numbers that are none
        return buffer

    def _first_written(self, layer: int) -> int:
        """First column that is filled in `layer`."""
        return max(self._first_seen(layer), self._plan.start)

    def _first_seen(self, layer: int) -> int:
        """First column that the window of the first tail row still sees in `layer`; 0 with rows before it."""
        window = self._port.window(layer)
        return 0 if window is None or self._plan.scattered else max(0, self._plan.stop - window + 1)

    def _first_attended(self, layer: int) -> int:
        """First column handed to attention: a window's columns, if no sink row needs the start."""
        return self._first_seen(layer) if self._plan.rows.is_tail and self._kept is not None else 0

    def _attend(self, layer: int, device: torch.device, kwargs: dict[str, Any]) -> Attend | None:
        """How the exact rows of `layer` attend where it is not under a mask."""
        if self._plumb or self._inputs is None:
            return None
        if self._plan.scattered:
            if self._plan.masked or self._port.attention != BOOLEAN:
                return None
            window = self._port.window(layer)
            if window not in self._scattered:
                self._scattered[window] = ScatteredRows(self._plan.rows, window=window, pads=self._plan.pads)
            return self._scattered[window]
        by_runs = attends_by_runs(
            kwargs["attention_mask"],
            self._plan.rows,
            first=self._first_attended(layer),
            attention=self._port.attention,
            device=device,
        )
        return partial(attend_runs, runs=self._plan.rows.runs) if by_runs else None

    def _rows_only(self, layer: int, device: torch.device, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Mask and positions of the exact rows; the same for all layers of a kind."""
        key = (self._port.kind(layer), device)
        if key not in self._shared:
            rows = self._plan.rows
            stock = kwargs["attention_mask"]
            padded = self._plan.valid is not None
            attend = self._attend(layer, device, kwargs)
            if self._inputs is None:
                mask = rows_alone_mask(stock, rows, padded=padded)
            elif attend is not None:
                mask = None
            else:
                first = self._first_attended(layer)
                attention = self._port.attention
                mask = row_mask(stock, rows, first=first, padded=padded, attention=attention, device=device)
            positions = kwargs.get("position_ids")
            self._shared[key] = {
                "attention_mask": mask,
                **({} if attend is None else {"is_causal": False}),
                "position_embeddings": tuple(rows.take(part, 1) for part in kwargs["position_embeddings"]),
                "position_ids": None if positions is None else rows.take(positions, dim=1),
            }
        return self._shared[key]


def _part(rotary: Rotary, first: int, stop: int, device: torch.device) -> Rotary:
    """Cosines and sines of some columns."""
    cos, sin = (part[:, first:stop].to(device) for part in rotary)
    return cos, sin
