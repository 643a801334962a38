"""Which rows of one call are exact: lower layers watched, the late ones probed, the selectors asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ridgefit.models import Port, Rows
from ridgefit.models.call import default_positions, layer_input
from ridgefit.runtime.choice import RowChoice
from ridgefit.runtime.prefill import Plan, Prefill
from ridgefit.runtime.received import received_in
from ridgefit.runtime.report import FillReport
from ridgefit.runtime.selectors import Asked, Probed, Prompt
from ridgefit.runtime.sweep import Buffers, first_sweep


class Selection:
    """The choice for the samples of one call: watches lower layers, then names the rows.

    Args:
        choice: the selectors.
        port: the model.
        split: first late layer.
        tail: last rows.
        sink_rows: first rows of every sample that are exact in any case.
        ids: `[batch, columns]`, None if the caller gave embeddings.
        batch: samples.
        columns: of the call, padding included.
        pads: padding columns in front of each sample; empty without padding.
    """

    def __init__(
        self,
        choice: RowChoice,
        port: Port,
        split: int,
        *,
        tail: int,
        sink_rows: int = 0,
        ids: Tensor | None,
        batch: int,
        columns: int,
        pads: Sequence[int] = (),
    ) -> None:
        self._choice = choice
        self._port = port
        self._split = split
        self._tail = tail
        self._sink_rows = sink_rows
        self._ids = ids
        self._columns = columns
        self._pads = tuple(pads) or (0,) * batch
        self._padded = any(self._pads)
        self._received: dict[Asked | Probed, Tensor] = {}

    @property
    def layers(self) -> tuple[int, ...]:
        """Lower layers to watch."""
        return tuple(sorted({layer for ask in self._choice.asked(self._split) for layer in ask.layers}))

    @property
    def probes(self) -> tuple[Probed, ...]:
        """Probes to run at the split."""
        return self._choice.probed(self._split)

    def watch(self, layer: int, hidden: Tensor, position_ids: Tensor | None) -> None:
        """Add the attention that prefix columns receive in a lower layer, whose input is `hidden`."""
        for ask in self._choice.asked(self._split):
            if layer in ask.layers:
                stop = self._columns - self._tail if ask.before_tail else self._columns
                rows = range(max(0, stop - ask.window), stop)
                valid = self.valid(hidden.device)
                found = received_in(self._port, layer, hidden, rows, position_ids=position_ids, valid=valid)
                self.add(ask, found)

    def add(self, ask: Asked | Probed, found: Tensor) -> None:
        """Add attention `[batch, columns]` to what has been received."""
        held = self._received.get(ask)
        self._received[ask] = found if held is None else held + found.to(held.device)

    def valid(self, device: torch.device) -> Tensor | None:
        """`[batch, columns]` bool, False for padding; None without."""
        if not self._padded:
            return None
        starts = torch.tensor(self._pads, device=device)[:, None]
        return torch.arange(self._columns, device=device) >= starts

    def choose(self) -> list[list[int]]:
        """Columns of the prefix to run exactly, for each sample, ascending."""
        received = {ask: found.cpu() for ask, found in self._received.items()}
        ids = None if self._ids is None else self._ids.tolist()
        found = []
        for sample, pad in enumerate(self._pads):
            rows = self._columns - pad
            prefix = max(rows - self._tail, 0)
            prompt = Prompt(
                rows=rows,
                prefix=prefix,
                ids=None if ids is None else ids[sample][pad:],
                vocabulary=self._choice.vocabulary,
                frequencies=self._choice.frequencies,
                received={ask: part[sample, pad : pad + prefix] for ask, part in received.items()},
            )
            sinks = list(range(min(self._sink_rows, prefix)))
            chosen = self._choice.rows(prompt, self._split, sinks) if prefix else {}
            found.append([pad + row for row in sorted(set().union(*chosen.values()))])
        return found

    def hook(self) -> list[RemovableHandle]:
        """Watch the lower layers whose attention the selectors read."""

        def watch(layer: int, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.watch(layer, layer_input(args, kwargs), kwargs.get("position_ids"))

        return [
            self._port.layers[layer].register_forward_pre_hook(partial(watch, layer), with_kwargs=True)
            for layer in self.layers
        ]

    def settle(
        self, prefill: Prefill, plan: Plan, state: Tensor, position_ids: Tensor | None, report: FillReport
    ) -> None:
        """At the split: probe if a selector asks for it, choose, and tell the prefill which rows are exact.

        Args:
            prefill: of this call.
            plan: its plan, with the tail as only exact rows.
            state: `[batch, columns, hidden]` entering the split layer.
            position_ids: `[batch or 1, columns]`; counted from 0 if absent.
            report: to be added to.
        """
        held: dict[int, Buffers] = {}
        if self.probes:
            prefill.keep(state, position_ids)
            positions = (
                default_positions(self._columns, state.device) if position_ids is None else position_ids
            )
            held, received = first_sweep(
                self._port,
                self._split,
                state,
                prefill.buffers,
                windows=tuple(probe.rows for probe in self.probes),
                tail=self._tail,
                position_ids=positions,
                valid=plan.valid,
            )
            for probe in self.probes:
                self.add(probe, received[probe.rows])
            report.held(held)
        columns = self.choose()
        rows = Rows.chosen(self._columns, self._tail, columns)
        prefill.replan(replace(plan, rows=rows.to(self._port.device)), held)
        report.filled += 1
        report.prompts += len(columns)
        for pad, own in zip(self._pads, columns, strict=True):
            tokens = self._columns - pad
            report.rows_exact += min(self._tail, tokens) + len(own)
            report.rows_filled += max(tokens - self._tail, 0) - len(own)
            report.rows_chosen += len(own)
