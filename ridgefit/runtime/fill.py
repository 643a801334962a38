"""The fill as its users see it: load maps, apply them to a model for the length of a `with` block."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from ridgefit.errors import BadInput
from ridgefit.features import FeatureList
from ridgefit.maps.mapset import MapSet
from ridgefit.models import Port, port_of
from ridgefit.runtime.choice import RowChoice
from ridgefit.runtime.corrections import Corrections
from ridgefit.runtime.hooks import Application, Refinement
from ridgefit.runtime.inputs import (
    IdentityInputs,
    LateInputs,
    MappedInputs,
    Placement,
    place,
    place_bottleneck,
    require_widths,
)
from ridgefit.runtime.part_hooks import PartApplication
from ridgefit.runtime.report import FillReport
from ridgefit.runtime.selectors import Selector
from ridgefit.runtime.settings import require_exact_rows, require_refinement
from ridgefit.runtime.splice import Splice
from ridgefit.runtime.vocabulary import Vocabulary

Kind = Literal["ridge", "identity", "none"]


class RidgeFill:
    """A way of handling a prompt's prefix in the late layers (paper table 3).

    Args:
        kind: "ridge" (maps), "identity" (the split state) or "none" (nothing is written).
        split: first late layer; given by the maps for "ridge".
        maps: maps of that split, for "ridge" only.
    """

    def __init__(self, kind: Kind, split: int, maps: MapSet | None = None) -> None:
        if split < 1:
            raise BadInput(f"split {split} leaves no exact layers below it", "use a split of at least 1")
        if (maps is not None) != (kind == "ridge"):
            raise ValueError("maps go with kind 'ridge', and only with it")
        self.kind = kind
        self.split = split
        self.maps = maps
        self._placed: tuple[object, LateInputs] | None = None
        self._told: set[str] = set()
        self._vocabulary: Vocabulary | None = None
        self._choice: tuple[object, RowChoice] | None = None

    @classmethod
    def load(cls, path: str | Path, split: int | None = None) -> RidgeFill:
        """Maps from a folder written by `solve`, one source file, or a format-1 folder.

        Args:
            path: file or folder.
            split: which split, where there are several.

        Raises:
            BadInput: missing, damaged or ambiguous; see `ridgefit.maps.load_maps`.
        """
        from ridgefit.maps import load_maps

        return cls.of(load_maps(Path(path), split))

    @classmethod
    def of(cls, maps: MapSet) -> RidgeFill:
        """Maps that are already loaded."""
        return cls("ridge", maps.split, maps)

    @classmethod
    def identity(cls, split: int) -> RidgeFill:
        """Late layers read the split state as if it were their own input (POP's fill)."""
        return cls("identity", split)

    @classmethod
    def no_fill(cls, split: int) -> RidgeFill:
        """Late layers write nothing for the prefix, and no later row attends to it there."""
        return cls("none", split)

    @classmethod
    def pop(cls, n_layers: int) -> RidgeFill:
        """POP as published: identity from two thirds of the depth on, rounded up; apply it with `tail=1`.

        22 of 32 layers and 24 of 36 (paper section 2.5).
        """
        return cls.identity(max(1, -(-2 * n_layers // 3)))

    @contextlib.contextmanager
    def applied(
        self,
        model: nn.Module,
        *,
        tail: int,
        sink_rows: int = 0,
        split: int | None = None,
        plumb: bool = False,
        placement: Placement = "device",
        prompt_tokens: int | None = None,
        rows: Iterable[Selector] | None = None,
        tokenizer: object = None,
        corrections: Corrections | None = None,
        splice: Splice | None = None,
    ) -> Iterator[FillReport]:
        """Fill every prompt that the model reads inside the block, by `model(…)` or `model.generate(…)`.

        A call on an empty cache, or on none, with more than `tail` tokens is filled. Everything else runs
        stock: shorter prompts, decoding, and further turns on a cache that holds something. Of a filled
        prompt, only the last `tail` rows of the output exist; the others hold NaN. Prompts of a batch are
        padded on the left. When the block ends, however it ends, the model is as it was.

        A prompt that arrives in several calls on one cache is filled part by part, as it would be in one,
        if `prompt_tokens` says how long it is; without, only its first part is filled.

        In layers with a sliding window only the rows that the tail can still see are written, so a cache
        must not be rolled back by more than `tail` rows.

        Args:
            model: a model of a known family, in eval mode.
            tail: last prompt rows that run every layer.
            sink_rows: first prompt rows that run every layer.
            split: for a check only; must be the fill's own.
            plumb: put every hook in place but leave every row exact (for checks).
            placement: keep maps on the model's device, or in host memory, copied layer by layer.
            prompt_tokens: tokens of every prompt read inside the block, left padding included, where prompts
                arrive in parts; what comes after them on their cache runs stock.
            rows: selectors of further prefix rows that run every layer, each spending its budget on rows that
                sink rows and the selectors before it have not taken.
            tokenizer: the model's, for selectors that look at what tokens are.
            corrections: of filled keys and values, measured on each prompt's own tail.
            splice: put exact keys, values or both in place of all filled ones, to see which carry the error;
                runs the exact prefill as well.

        Yields:
            Counts, filled in as calls are made.

        Raises:
            BadInput: settings or maps that do not fit the model.
        """
        port = port_of(model)
        self._check(port, tail, sink_rows, split)
        inputs = self._inputs(port, placement)
        refinement = self._refinement(port, tail, rows, tokenizer, corrections, splice)
        application = self._application(port, inputs, tail, sink_rows, plumb, refinement, prompt_tokens)
        try:
            application.attach()
            yield application.report
        finally:
            application.detach()

    def check(self, port: Port, tokenizer: object = None) -> list[str]:
        """Compare the maps with a model.

        Returns:
            What is worth a warning: another name, revision, dtype or config; nothing for other fills.

        Raises:
            BadInput: dimensions, layer kinds, features or tokenizer do not fit; both values are named.
        """
        if not self.split < port.n_layers:
            raise BadInput(
                f"split {self.split} is past the last layer of this model, which is {port.n_layers - 1}",
                f"use a split from 1 to {port.n_layers - 1}",
            )
        if self.maps is None:
            return []
        found = self.maps.check(port.identity(tokenizer))
        if self.maps.source == "memory":  # made in this process, for this model
            found = []
        require_widths(self.maps, port)
        self._told.update(found)
        return found

    def _application(
        self,
        port: Port,
        inputs: LateInputs | None,
        tail: int,
        sink_rows: int,
        plumb: bool,
        refinement: Refinement,
        prompt_tokens: int | None,
    ) -> Application:
        if prompt_tokens is None:
            return Application(
                port, self.split, inputs, tail=tail, sink_rows=sink_rows, plumb=plumb, refinement=refinement
            )
        if inputs is None or refinement != Refinement():
            what = "chosen rows, corrections and splices need" if inputs else "no fill needs"
            raise BadInput(
                f"{what} the whole prompt at once, and it arrives in parts",
                "leave prompt_tokens out and give prompts in one call",
            )
        if prompt_tokens < 1:
            raise BadInput(f"a prompt of {prompt_tokens} tokens cannot be", "use its number of tokens")
        return PartApplication(
            port,
            self.split,
            inputs,
            tail=tail,
            sink_rows=sink_rows,
            plumb=plumb,
            prompt_tokens=prompt_tokens,
        )

    def _check(self, port: Port, tail: int, sink_rows: int, split: int | None) -> None:
        if split is not None and split != self.split:
            raise BadInput(
                f"split {split} was asked for, the fill is for split {self.split}", "load that split"
            )
        require_exact_rows(self.kind, port.attention, tail, sink_rows)
        told = set(self._told)
        for line in self.check(port):
            # No tokenizer is here to compare, and whoever called `check` has heard of the rest.
            if line not in told and not line.startswith("the tokenizer"):
                warnings.warn(line, stacklevel=4)
        port.check_attention()

    def _refinement(
        self,
        port: Port,
        tail: int,
        rows: Iterable[Selector] | None,
        tokenizer: object,
        corrections: Corrections | None,
        splice: Splice | None,
    ) -> Refinement:
        """What is done beside the plain fill, checked."""
        corrections = corrections if corrections is not None and corrections.any else None
        require_refinement(self.kind, port.attention, rows, corrections, splice)
        choice = None if rows is None else self._choice_of(tuple(rows), port, tail, tokenizer)
        return Refinement(choice, corrections, splice)

    def _choice_of(self, rows: tuple[Selector, ...], port: Port, tail: int, tokenizer: object) -> RowChoice:
        """Selectors made ready; kept, since their tables are read and compared only once that way."""
        vocabulary = self._vocabulary_of(tokenizer)
        key = (rows, port.vocab, tail, vocabulary)
        if self._choice is None or self._choice[0] != key:
            ready = RowChoice.ready(
                rows,
                port=port,
                split=self.split,
                tail=tail,
                vocabulary=vocabulary,
                maps=self.maps.path if self.maps is not None else None,
            )
            self._choice = (key, ready)
        return self._choice[1]

    def _vocabulary_of(self, tokenizer: object) -> Vocabulary | None:
        """What the tokens are; kept, so that a second block need not look them up again."""
        if tokenizer is None:
            return None
        if self._vocabulary is None or self._vocabulary.tokenizer is not tokenizer:
            self._vocabulary = Vocabulary(tokenizer)
        return self._vocabulary

    def _inputs(self, port: Port, placement: Placement) -> LateInputs | None:
        """Late inputs for this model; placed maps are kept, so that a second block costs nothing."""
        if self.kind == "none":
            return None
        if self.maps is None:
            return IdentityInputs()
        devices = tuple(str(port.layer_device(layer)) for layer in self.maps.layers)
        key = (devices, port.dtype, placement)
        if self._placed is None or self._placed[0] != key:
            with torch.inference_mode(mode=False):
                inputs = MappedInputs(
                    FeatureList(self.maps.features),
                    place(self.maps, port, placement),
                    place_bottleneck(self.maps, port),
                )
            self._placed = (key, inputs)
        return self._placed[1]
