"""A fill on a model whose prompts arrive in several calls on one cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ridgefit.errors import BadInput
from ridgefit.models import Port, Rows
from ridgefit.models.call import DecoderCall, cache_length
from ridgefit.models.masks import padding_of
from ridgefit.runtime.hooks import Application, compiled
from ridgefit.runtime.inputs import LateInputs
from ridgefit.runtime.part_fill import PartFill
from ridgefit.runtime.parts import Part, Progress

# Marks a cache that holds the beginning of a prompt. An attribute of the cache, so that copies of the cache
# stay marked.
_PROMPT = "ridgefit_prompt"


@dataclass(frozen=True)
class _Step:
    """The part that runs now, and how far its prompt will have come."""

    progress: Progress
    columns: int
    pads: tuple[int, ...]

    def taken(self) -> Progress:
        """Progress after it."""
        before = self.progress
        return Progress(before.tokens, before.seen + self.columns, self.pads, before.carry)


class PartApplication(Application):
    """One fill, applied to one model that reads prompts of a known length in parts.

    Args:
        port: the model.
        split: first late layer.
        inputs: gives filled rows' layer inputs.
        tail: last rows that run every layer.
        sink_rows: first rows that run every layer.
        plumb: hooks on, nothing filled.
        prompt_tokens: columns of a prompt, left padding included.

    Raises:
        BadInput: the maps read a control feature.
    """

    def __init__(
        self,
        port: Port,
        split: int,
        inputs: LateInputs,
        *,
        tail: int,
        sink_rows: int = 0,
        plumb: bool = False,
        prompt_tokens: int,
    ) -> None:
        super().__init__(port, split, inputs, tail=tail, sink_rows=sink_rows, plumb=plumb)
        self._late_inputs = inputs
        self._tokens = prompt_tokens
        self._step: _Step | None = None
        if inputs.features.controls:
            raise BadInput(
                f"the feature {inputs.features.controls[0]} is a control, which a prompt in parts cannot be "
                "filled with",
                "use maps without control features",
            )

    def _decide(self, call: DecoderCall) -> None:
        """A call is a prompt's first part, a further one, or comes after the prompt."""
        self._step = None
        held = cache_length(call.cache)
        progress: Progress | None = getattr(call.cache, _PROMPT, None)
        if not held:
            progress = Progress(self._tokens)
            if self._tokens <= self._tail:
                self.report.exact += 1
                return
            if not self._plumb:
                self.report.filled += 1
                self.report.prompts += call.batch
        if progress is None:
            return
        if progress.seen != held:
            raise BadInput(
                f"the cache holds {held} columns, and the prompt's parts so far had {progress.seen}",
                "give the parts in order on one cache, or begin again on an empty one",
            )
        self._take(call, progress)

    def _take(self, call: DecoderCall, progress: Progress) -> None:
        columns = call.columns
        valid = padding_of(call.attention_mask, columns, progress.seen)
        pads = progress.padded(valid, call.batch)
        if not any(pads):
            valid = None
        part = Part.of(progress, columns, pads, tail=self._tail, sinks=self._sink_rows)
        if self._plumb:
            part = Part(Rows.everything(columns), None, 0, 0, (), ())
        else:
            self.report.rows_exact += sum(part.exact)
            self.report.rows_filled += sum(part.filled)
        self._step = _Step(progress, columns, pads)
        self._hook_fill(
            call,
            PartFill(
                self._port,
                self._split,
                part.on(self._port.device),
                progress,
                valid,
                self._late_inputs,
                plumb=self._plumb,
            ),
        )

    def _leave(self, layer: int, output: Tensor) -> Tensor:
        output = super()._leave(layer, output)
        cache: Any = self._prefill.cache if self._prefill is not None else None
        if layer == self._port.n_layers - 1 and self._step is not None and cache is not None:
            progress = self._step.taken()
            setattr(cache, _PROMPT, progress)
            if progress.seen >= progress.tokens:
                delattr(cache, _PROMPT)
        return output

    def _refuse_compiled(self, call: DecoderCall) -> None:
        if call.columns > 1:
            raise compiled()
