"""Attention of any rows of a prompt over everything before them: true to their columns, and without a mask of
all rows.

Where a kernel tells its log-sum-exp, rows are halved: the later half sees every column before its first row
without a mask, in one call, and what is left are two problems of half the size. Half of all the work is in
the first call and half of the rest in the next two, so that nearly everything runs in calls large enough to
fill a GPU. Elsewhere rows go block by block under masks of their own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ridgefit.models.rows import Rows
from ridgefit.models.runs import Attended, attend_run, attend_unmasked, fast_kernel, merged

BLOCK_ROWS = 256
"""Rows that share one mask. A block's scores stay small, and so does what a fast kernel may not touch."""
SPAN = 4096
"""Columns between the first and the last row of a block: beyond them masked work would outgrow the rest."""
MASK_ENTRIES = 1 << 24
"""Most entries of one block's mask, query heads of a group counted."""


@dataclass(frozen=True)
class Block:
    """Some of a sample's rows: numbers `start` to `stop` among the rows, from column `first` to `last`."""

    start: int
    stop: int
    first: int
    last: int


class ScatteredRows:
    """Causal attention for rows that stand anywhere in a prompt.

    Args:
        rows: the query rows; a column may stand twice, both then give the same.
        window: columns that a row sees, its own included; None for all before it.
        pads: padding columns in front of each sample; empty without padding. A padding row sees itself.
    """

    def __init__(self, rows: Rows, *, window: int | None = None, pads: Sequence[int] = ()) -> None:
        self._columns = rows.index()
        self._window = window
        self._pads = tuple(pads) or (0,)
        self._on_device: dict[torch.device, Tensor] = {}

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None = None) -> Tensor:
        """Attend.

        Args:
            query: `[batch, heads, rows, width]`.
            key: `[batch, kv_heads, columns, width]` of the whole prompt.
            value: the same for values.
            scale: of the scores; 1 / sqrt(width) if absent.

        Returns:
            `[batch, heads, rows, width]`.
        """
        alike = len(self._columns) == 1 and len(self._pads) == 1
        if alike:
            return self._sample(0, query, key, value, scale)
        one = []
        for sample in range(query.shape[0]):
            own = slice(sample, sample + 1)
            one.append(self._sample(sample, query[own], key[own], value[own], scale))
        return torch.cat(one)

    def _sample(self, sample: int, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        columns = self._columns[sample if len(self._columns) > 1 else 0]
        pad = self._pads[sample if len(self._pads) > 1 else 0]
        there = self._columns_on(query.device)[sample if len(self._columns) > 1 else 0]
        halves = self._window is None and fast_kernel(query, key, value)
        tail = self._tail_of(columns, pad) if halves else len(columns)
        listed = columns[:tail].tolist()
        masked = bisect_left(listed, pad) if halves else tail  # a padding row sees itself alone
        parts = []
        for block in blocks(listed[:masked], query.shape[1] // key.shape[1], self._window):
            asked = query[:, :, block.start : block.stop]
            parts.append(self._block(asked, key, value, block, there[block.start : block.stop], pad, scale))
        if masked < tail:
            place = slice(masked, tail)
            halved = _Halves(query[:, :, place], key, value, listed[place], there[place], scale)
            parts.append(halved.attend(0, tail - masked, pad)[0].to(query.dtype))
        if tail < len(columns):
            parts.append(attend_run(query[:, :, tail:], key[:, :, pad:], value[:, :, pad:], scale))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)

    def _tail_of(self, columns: Tensor, pad: int) -> int:
        """First of the rows that are the prompt's last columns, one after another, and no padding."""
        rows = len(columns)
        if int(columns[0]) < pad:
            return rows
        straight = columns == torch.arange(int(columns[-1]) - rows + 1, int(columns[-1]) + 1)
        broken = (~straight).nonzero()
        return int(broken[-1]) + 1 if len(broken) else 0

    def _block(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        block: Block,
        columns: Tensor,
        pad: int,
        scale: float | None,
    ) -> Tensor:
        low = pad if self._window is None else max(pad, block.first - self._window + 1)
        low, high = min(low, block.first), block.last + 1
        place, own_column = torch.arange(low, high, device=query.device), columns[:, None]
        visible = (place <= own_column) & (place >= pad)
        if self._window is not None:
            visible &= place > own_column - self._window
        visible |= place == own_column
        return _masked(query, key[:, :, low:high], value[:, :, low:high], visible, scale)

    def _columns_on(self, device: torch.device) -> Tensor:
        if device not in self._on_device:
            self._on_device[device] = self._columns.to(device, non_blocking=True)
        return self._on_device[device]


@dataclass(frozen=True)
class _Halves:
    """Rows of one sample, none of them padding, on a kernel that takes no mask and tells its log-sum-exp.

    Attributes:
        query: `[1, heads, rows, width]`.
        key: `[1, kv_heads, columns, width]`.
        value: the same for values.
        columns: of the rows, ascending.
        place: the same on the query's device.
        scale: of the scores.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    columns: Sequence[int]
    place: Tensor
    scale: float | None

    def attend(self, start: int, stop: int, low: int) -> Attended:
        """Rows `start` to `stop` over columns `low` to each row's own; attention in float32."""
        first, last = self.columns[start], self.columns[stop - 1]
        if stop - start <= BLOCK_ROWS and last - first <= SPAN:
            return self._before(start, stop, low, first, self._own(start, stop, first, last + 1))
        middle = (start + stop) // 2
        turn = self.columns[middle]
        upper = self.attend(start, middle, low)
        lower = self._before(middle, stop, low, turn, self.attend(middle, stop, turn))
        return torch.cat([upper[0], lower[0]], dim=2), torch.cat([upper[1], lower[1]], dim=2)

    def _before(self, start: int, stop: int, low: int, high: int, rest: Attended) -> Attended:
        """`rest`, and the columns from `low` to `high`, which all of the rows see."""
        if low >= high:
            return rest
        key, value = self.key[:, :, low:high], self.value[:, :, low:high]
        return merged(attend_unmasked(self.query[:, :, start:stop], key, value, self.scale), rest)

    def _own(self, start: int, stop: int, low: int, high: int) -> Attended:
        """The columns among which the rows stand, under a mask."""
        visible = torch.arange(low, high, device=self.place.device) <= self.place[start:stop, None]
        key, value = self.key[:, :, low:high], self.value[:, :, low:high]
        return _scored(self.query[:, :, start:stop], key, value, visible, self.scale)


def blocks(columns: Sequence[int], groups: int, window: int | None) -> Iterator[Block]:
    """Cut ascending columns into blocks: few rows, close together, with masks that stay small."""
    start = 0
    for number, column in enumerate(columns):
        if number == start:
            continue
        reach = column if window is None else min(column, column - columns[start] + window)
        full = number - start >= BLOCK_ROWS or column - columns[start] > SPAN
        if full or (number - start + 1) * groups * (reach + 1) > MASK_ENTRIES:
            yield Block(start, number, columns[start], columns[number - 1])
            start = number
    if columns:
        yield Block(start, len(columns), columns[start], columns[-1])


def _folded(query: Tensor, kv_heads: int) -> Tensor:
    """Query heads of a group as more rows: `[batch, kv_heads, group * rows, width]`; nothing is repeated."""
    batch, _, rows, width = query.shape
    return query.reshape(batch, kv_heads, -1, rows, width).flatten(2, 3)


def _masked(query: Tensor, key: Tensor, value: Tensor, visible: Tensor, scale: float | None) -> Tensor:
    """Attention under a mask `[rows, columns]`, on whatever kernel takes one."""
    asked = _folded(query, key.shape[1])
    mask = visible.repeat(query.shape[1] // key.shape[1], 1)[None, None]
    attended = F.scaled_dot_product_attention(asked, key, value, mask, scale=scale)
    return attended.reshape(*query.shape[:3], value.shape[-1])


def _scored(query: Tensor, key: Tensor, value: Tensor, visible: Tensor, scale: float | None) -> Attended:
    """Attention under a mask in which every row sees something, and its log-sum-exp, in plain products."""
    asked = _folded(query, key.shape[1])
    mask = visible.repeat(query.shape[1] // key.shape[1], 1)
    factor = scale if scale is not None else query.shape[-1] ** -0.5
    scores = (asked @ key.transpose(-1, -2)).float() * factor
    scores = scores.masked_fill_(~mask, float("-inf"))
    total = scores.logsumexp(dim=-1)
    shares = (scores - total.unsqueeze(-1)).exp_().to(value.dtype)
    return (shares @ value).reshape(*query.shape[:3], value.shape[-1]), total.reshape(query.shape[:3])
