"""A prompt of known length that arrives in several calls: which rows of each part are exact.

A row is exact for where it stands in the whole prompt, so that a prompt in parts is filled as it would be in
one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ridgefit.errors import BadInput
from ridgefit.features import FeatureCarry
from ridgefit.models import Rows


@dataclass
class Progress:
    """How far a prompt has come; kept on its cache, so that copies of the cache go on from there.

    Attributes:
        tokens: columns of the whole prompt, left padding included.
        seen: columns of the parts so far.
        pads: padding columns of each sample so far; None before the first part.
        carry: what the maps' features keep of earlier rows.
    """

    tokens: int
    seen: int = 0
    pads: tuple[int, ...] | None = None
    carry: FeatureCarry = field(default_factory=FeatureCarry)

    def padded(self, valid: Tensor | None, batch: int) -> tuple[int, ...]:
        """Padding columns of each sample with those of the next part; one read from the device if it has any.

        Args:
            valid: `[batch, columns]` bool of the part, False for padding; None without.
            batch: samples.

        Raises:
            BadInput: padding stands elsewhere than in front of a sample.
        """
        before = self.pads or (0,) * batch
        if valid is None:
            return before
        columns = valid.shape[1]
        tokens = valid.sum(dim=1)
        position = torch.arange(columns, device=valid.device)
        in_front = (valid == (position >= columns - tokens[:, None])).all()
        *counts, left = torch.cat([tokens, in_front[None].to(tokens.dtype)]).tolist()
        began = [pad < self.seen for pad in before]
        if not left or any(count < columns and old for count, old in zip(counts, began, strict=True)):
            raise BadInput(
                "the attention mask has right padding or holes, and rows are counted from its start",
                "set tokenizer.padding_side = 'left'",
            )
        return tuple(pad + columns - count for pad, count in zip(before, counts, strict=True))


@dataclass(frozen=True)
class Part:
    """The rows of one call that run the late layers.

    Attributes:
        rows: of the call's columns; one at least, because a layer needs a row to run on.
        kept: `[samples, rows]` bool, which of them are exact; the others run for nothing. None: all are.
        stop: columns of the call before it are filled unless they are exact.
        tail: column of the call where the prompt's tail begins; it may lie beyond.
        exact: exact rows of each sample, padding left out.
        filled: filled rows of each sample, padding left out.
    """

    rows: Rows
    kept: Tensor | None
    stop: int
    tail: int
    exact: tuple[int, ...]
    filled: tuple[int, ...]

    def on(self, device: torch.device) -> Part:
        """The same with its rows on `device`."""
        return replace(self, rows=self.rows.to(device))

    @classmethod
    def of(cls, progress: Progress, columns: int, pads: Sequence[int], *, tail: int, sinks: int) -> Part:
        """Which rows of the next `columns` columns are exact.

        Sink rows are each sample's first rows that are not padding; a sample too short to have them before
        the tail gets the columns just before the tail, as in one call.

        Args:
            progress: of the parts before.
            columns: of this part.
            pads: padding columns of each sample up to the end of this part.
            tail: last rows of the prompt that are exact.
            sinks: first rows of it that are exact.
        """
        first, prefix = progress.seen, progress.tokens - tail
        stop = min(max(prefix - first, 0), columns)
        sinks = min(sinks, prefix)
        ranges = []
        for pad in pads:
            start = min(pad, prefix - sinks) - first
            ranges.append((min(max(start, 0), stop), min(max(start + sinks, 0), stop)))
        padding = [min(max(pad - first, 0), columns) for pad in pads]
        exact, filled = [], []
        for pad, (begin, end) in zip(padding, ranges, strict=True):
            exact.append(max(end - max(begin, pad), 0) + columns - max(stop, pad))
            filled.append(columns - pad - exact[-1])
        rows, kept = _rows(ranges, columns, stop)
        return cls(rows, kept, stop, prefix - first, tuple(exact), tuple(filled))


def _rows(ranges: Sequence[tuple[int, int]], columns: int, stop: int) -> tuple[Rows, Tensor | None]:
    """Rows `[begin, end)` of each sample and all from `stop` on, as many for every sample."""
    if len({span if span[0] < span[1] else (0, 0) for span in ranges}) == 1:
        begin, end = ranges[0]
        runs = tuple(run for run in ((begin, end), (stop, columns)) if run[0] < run[1])
        if runs:
            return Rows(columns, runs), None
        return Rows(columns, ((columns - 1, columns),)), torch.zeros(1, 1, dtype=torch.bool)
    column = torch.arange(columns)
    begins, ends = (torch.tensor(side)[:, None] for side in zip(*ranges, strict=True))
    wanted = ((column >= begins) & (column < ends)) | (column >= stop)
    count = int(wanted.sum(dim=1).max())
    # Exact rows first, then any others to make up the number, all in order of columns.
    chosen = wanted.int().argsort(dim=1, descending=True, stable=True)[:, :count].sort(dim=1).values
    return Rows(columns, columns=chosen), wanted.gather(1, chosen)
