"""A fill on a model: hooks that come with the `with` block and leave with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ridgefit.errors import BadInput
from ridgefit.models import Port, Rows
from ridgefit.models.call import DecoderCall, cache_columns, cache_length, cache_of, layer_input
from ridgefit.models.masks import hide_columns, padding_of
from ridgefit.runtime.choice import RowChoice
from ridgefit.runtime.corrections import Corrections
from ridgefit.runtime.inputs import LateInputs
from ridgefit.runtime.prefill import Call, Plan, Prefill
from ridgefit.runtime.report import FillReport
from ridgefit.runtime.selection import Selection
from ridgefit.runtime.splice import Splice

# Marks a cache whose late layers hold nothing for some columns. An attribute of the cache, so that copies
# of the cache stay marked.
_HIDDEN = "ridgefit_hidden_columns"


@dataclass(frozen=True)
class Refinement:
    """What is done beside the plain fill.

    Attributes:
        choice: exact rows of the prefix besides sink rows; None for none.
        corrections: of filled keys and values; None for none.
        splice: exact keys or values in place of filled ones, to see where the error is; None for none.
    """

    choice: RowChoice | None = None
    corrections: Corrections | None = None
    splice: Splice | None = None


class Application:
    """One fill, applied to one model.

    Args:
        port: the model.
        split: first late layer.
        inputs: gives filled rows' layer inputs; None writes nothing for them.
        tail: last rows that run every layer.
        sink_rows: first rows that run every layer.
        plumb: hooks on, nothing filled.
        refinement: rows, corrections, splices.
    """

    def __init__(
        self,
        port: Port,
        split: int,
        inputs: LateInputs | None,
        *,
        tail: int,
        sink_rows: int = 0,
        plumb: bool = False,
        refinement: Refinement | None = None,
    ) -> None:
        self._port = port
        self._split = split
        self._inputs = inputs
        self._tail = tail
        self._sink_rows = sink_rows
        self._plumb = plumb
        self._refinement = refinement or Refinement()
        self._prefill: Prefill | None = None
        self._selection: Selection | None = None
        self._plan: Plan | None = None
        self._within = False
        self._outer: list[RemovableHandle] = []
        self._inner: list[RemovableHandle] = []
        self.report = FillReport()

    def attach(self) -> None:
        """Put the two hooks on the decoder; late layers get theirs only for the calls that need them.

        Raises:
            BadInput: another fill is on this model.
        """
        decoder = self._port.decoder
        for hook in decoder._forward_pre_hooks.values():
            if isinstance(getattr(hook, "__self__", None), Application):
                raise BadInput("a fill is already applied to this model", "leave its `with` block first")
        self._outer = [
            decoder.register_forward_pre_hook(self._before, with_kwargs=True),
            decoder.register_forward_hook(self._after, always_call=True),
        ]

    def detach(self) -> None:
        """Take every hook off again."""
        self._release()
        for handle in self._outer:
            handle.remove()
        self._outer = []

    def _before(self, decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Decide what a call of the decoder is: a prompt to fill, a short prompt, or a continuation."""
        call = DecoderCall.parse(args, kwargs, self._port.config)
        if torch.compiler.is_compiling():
            self._refuse_compiled(call)
            return
        if decoder.training:
            raise BadInput("the model is in training mode, and a fill is for inference", "call model.eval()")
        self._release()  # of a call that was interrupted
        self._decide(call)

    def _decide(self, call: DecoderCall) -> None:
        """A call is a prompt longer than the tail, a shorter one, or goes on from what its cache holds."""
        marked = hasattr(call.cache, _HIDDEN)
        # A StaticCache keeps its length on the device; a decode step must not wait for it.
        asks = call.columns > 1 or marked
        opens = call.cache is None or (asks and cache_length(call.cache) == 0)
        if opens and call.columns > self._tail:
            self._start(call)
        elif opens:
            self.report.exact += 1
            if marked:
                delattr(call.cache, _HIDDEN)
        elif marked:
            self._hook_layers(self._hide)

    def _after(self, decoder: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """End of a call, reached also when it failed."""
        del decoder, args, output
        self._release()

    def _release(self) -> None:
        for handle in self._inner:
            handle.remove()
        self._inner = []
        self._prefill = self._selection = None

    def _start(self, call: DecoderCall) -> None:
        """Hook the late layers for a filled prefill."""
        plan = self._first_plan(call)
        prefill = Prefill(
            self._port,
            self._split,
            plan,
            self._inputs,
            plumb=self._plumb,
            corrections=self._refinement.corrections,
            splice=self._refinement.splice,
        )
        if self._refinement.choice is not None and not self._plumb:
            self._plan = plan
            self._selection = Selection(
                self._refinement.choice,
                self._port,
                self._split,
                tail=self._tail,
                sink_rows=self._sink_rows,
                ids=call.ids,
                batch=call.batch,
                columns=call.columns,
                pads=plan.pads,
            )
        self._hook_fill(call, prefill)

    def _hook_fill(self, call: DecoderCall, prefill: Prefill) -> None:
        """Hook the late layers, and the lower ones whose inputs the maps read."""
        if call.recorded:
            raise BadInput(
                f"{call.recorded} was asked for, and filled rows have no such output in late layers",
                "ask for it outside the fill",
            )
        self._prefill = prefill
        if self._selection is not None:
            self._inner += self._selection.hook()
        for layer in prefill.lower:
            keep = partial(_before_layer, self._keep_lower, layer)
            self._inner.append(self._port.layers[layer].register_forward_pre_hook(keep, with_kwargs=True))
        self._hook_layers(self._enter, self._leave)

    def _first_plan(self, call: DecoderCall) -> Plan:
        """Exact rows that do not depend on what the prompt holds: sink rows and tail."""
        columns = call.columns
        if self._plumb:
            return Plan(Rows.everything(columns), None, stop=0)
        valid = padding_of(call.attention_mask, columns)
        pads = [] if valid is None else _left_pads(valid)
        if not any(pads):
            valid, pads = None, []
        stop = columns - self._tail
        if self._refinement.choice is not None:
            rows = Rows(columns, ((stop, columns),))
            mask = call.attention_mask
            plain = mask is None or (isinstance(mask, Tensor) and mask.ndim == 2)
            return Plan(rows, valid, stop, scattered=True, masked=not plain, pads=tuple(pads))
        rows = Rows.sinks_and_tail(columns, self._tail, self._sink_rows, pads)
        leading = len(rows.runs) == 2 and rows.runs[0][0] == 0
        plan = Plan(rows.to(self._port.device), valid, stop, rows.runs[0][1] if leading else 0)
        self._count(call.batch, columns, pads)
        return plan

    def _count(self, batch: int, columns: int, pads: list[int]) -> None:
        self.report.filled += 1
        self.report.prompts += batch
        for pad in pads or [0] * batch:
            prefix = max(columns - pad - self._tail, 0)
            filled = max(prefix - self._sink_rows, 0)
            self.report.rows_filled += filled
            self.report.rows_exact += columns - pad - filled

    def _hook_layers(
        self,
        before: Callable[[int, tuple[Any, ...], dict[str, Any]], Call],
        after: Callable[[int, Tensor], Tensor] | None = None,
    ) -> None:
        for layer in range(self._split, self._port.n_layers):
            block = self._port.layers[layer]
            enter = partial(_before_layer, before, layer)
            self._inner.append(block.register_forward_pre_hook(enter, with_kwargs=True))
            if after is not None:
                self._inner.append(block.register_forward_hook(partial(_after_layer, after, layer)))

    def _keep_lower(self, layer: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        if self._prefill is not None:
            self._prefill.keep_lower(layer, layer_input(args, kwargs))
        return args, kwargs

    def _enter(self, layer: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        if self._prefill is None or self._within:  # a probe runs late layers from within the hook
            return args, kwargs
        self._within = True
        try:
            if layer == self._split and self._selection is not None and self._plan is not None:
                state, positions = layer_input(args, kwargs), kwargs.get("position_ids")
                self._selection.settle(self._prefill, self._plan, state, positions, self.report)
            return self._prefill.enter(layer, args, kwargs)
        finally:
            self._within = False

    def _leave(self, layer: int, output: Tensor) -> Tensor:
        if self._prefill is None or self._within:
            return output
        output = self._prefill.leave(layer, output)
        cache = self._prefill.cache
        if layer == self._split and self._inputs is None and not self._plumb and cache is not None:
            setattr(cache, _HIDDEN, self._prefill.hidden_columns())
        return output

    def _hide(self, layer: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Keep columns that late layers never wrote out of a later call's attention."""
        cache = cache_of(kwargs)
        hidden: Tensor = getattr(cache, _HIDDEN)
        state = layer_input(args, kwargs)
        keys, first = cache_columns(cache, state.shape[1], layer)
        mask = hide_columns(
            kwargs["attention_mask"], hidden.to(state.device), queries=state.shape[1], keys=keys, first=first
        )
        return args, {**kwargs, "attention_mask": mask}

    def _refuse_compiled(self, call: DecoderCall) -> None:
        if call.columns > self._tail or self._inputs is None:
            raise compiled()


def compiled() -> BadInput:
    """What is wrong with a call that is traced, and how to mend it."""
    return BadInput(
        "the call runs inside torch.compile, where a fill cannot act",
        "call the prefill uncompiled, or pass disable_compile=True to generate",
    )


def _before_layer(
    before: Callable[[int, tuple[Any, ...], dict[str, Any]], Call],
    layer: int,
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Call:
    del module
    return before(layer, args, kwargs)


def _after_layer(
    after: Callable[[int, Tensor], Tensor], layer: int, module: nn.Module, args: Any, output: Tensor
) -> Tensor:
    del module, args
    return after(layer, output)


def _left_pads(valid: Tensor) -> list[int]:
    """Padding columns in front of each sample; one read from the device.

    Raises:
        BadInput: padding stands elsewhere, or a sample has no token at all.
    """
    columns = valid.shape[1]
    tokens = valid.sum(dim=1)
    position = torch.arange(columns, device=valid.device)
    in_front = (valid == (position >= columns - tokens[:, None])).all()
    *counts, left = torch.cat([tokens, in_front[None].to(tokens.dtype)]).tolist()
    if not left:
        raise BadInput(
            "the attention mask has right padding or holes, and the tail is counted from the prompt's end",
            "set tokenizer.padding_side = 'left'",
        )
    if min(counts) == 0:
        raise BadInput("a sample of the batch has no tokens", "leave empty prompts out")
    return [columns - count for count in counts]
