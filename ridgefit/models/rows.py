"""A subset of a prompt's rows: runs of columns where possible, which are views; lists are copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """Columns of a prompt, ascending; a sample with fewer rows than others repeats its first.

    Attributes:
        total: columns of the whole prompt, left padding included.
        runs: half-open ranges that every sample shares; empty when `columns` is given.
        columns: `[samples or 1, rows]` int64 where samples differ or rows are scattered.
    """

    total: int
    runs: tuple[tuple[int, int], ...] = ()
    columns: Tensor | None = None

    @classmethod
    def everything(cls, total: int) -> Rows:
        """Every column, as one run."""
        return cls(total, ((0, total),))

    @classmethod
    def sinks_and_tail(cls, total: int, tail: int, sinks: int, pads: Sequence[int] = ()) -> Rows:
        """The last `tail` columns and each sample's first `sinks` columns that are not padding.

        A sample too short to have `sinks` columns before the tail gets the columns just before the tail
        instead, so that all samples keep the same number of rows.

        Args:
            total: columns.
            tail: rows at the end, 1 to `total`.
            sinks: rows at the start.
            pads: padding columns in front of each sample; empty without padding.
        """
        prefix = total - tail
        sinks = min(sinks, prefix)
        if sinks == 0:
            return cls(total, ((prefix, total),))
        starts = [min(pad, prefix - sinks) for pad in pads] or [0]
        if len(set(starts)) == 1:
            return cls(total, ((starts[0], starts[0] + sinks), (prefix, total)))
        first = torch.tensor(starts)[:, None] + torch.arange(sinks)
        last = torch.arange(prefix, total).expand(len(starts), tail)
        return cls(total, columns=torch.cat([first, last], dim=1))

    @classmethod
    def chosen(cls, total: int, tail: int, columns: Sequence[Sequence[int]]) -> Rows:
        """Each sample's chosen columns before the tail, and the tail.

        All samples get as many rows as the one with most: the others repeat their first row, which computes
        the same thing twice and writes it twice to one place.

        Args:
            total: columns.
            tail: rows at the end.
            columns: each sample's own, ascending; those of the tail are left out of it.
        """
        prefix = total - tail
        lists = [[*(column for column in own if column < prefix), *range(prefix, total)] for own in columns]
        most = max(len(own) for own in lists)
        return cls(total, columns=torch.tensor([[own[0]] * (most - len(own)) + own for own in lists]))

    @property
    def count(self) -> int:
        """Rows per sample."""
        if self.columns is not None:
            return self.columns.shape[1]
        return sum(stop - start for start, stop in self.runs)

    @property
    def is_tail(self) -> bool:
        """Whether the rows are the last columns and nothing else."""
        return self.columns is None and len(self.runs) == 1 and self.runs[0][1] == self.total

    def index(self, device: torch.device | str = "cpu") -> Tensor:
        """Columns `[samples or 1, rows]` int64."""
        if self.columns is not None:
            return self.columns.to(device)
        return torch.cat([torch.arange(start, stop, device=device) for start, stop in self.runs])[None]

    def to(self, device: torch.device | str) -> Rows:
        """The same rows with their columns on `device`."""
        if self.columns is None:
            return self
        return Rows(self.total, columns=self.columns.to(device, non_blocking=True))

    def take(self, source: Tensor, dim: int) -> Tensor:
        """These rows of `source` along `dim`: a view for one run, else a copy.

        Args:
            source: `[samples or 1, …]` with `total` entries along `dim`.
            dim: the dimension of columns.
        """
        if self.columns is None:
            parts = [source.narrow(dim, start, stop - start) for start, stop in self.runs]
            return parts[0] if len(parts) == 1 else torch.cat(parts, dim=dim)
        samples = max(source.shape[0], self.columns.shape[0])
        source = source.expand(samples, *source.shape[1:])
        return source.gather(dim, self._index_like(source, dim))

    def put(self, target: Tensor, source: Tensor, dim: int) -> None:
        """Write `source`, which has one entry per row along `dim`, into these rows of `target`."""
        if self.columns is not None:
            target.scatter_(dim, self._index_like(source, dim), source)
            return
        offset = 0
        for start, stop in self.runs:
            target.narrow(dim, start, stop - start).copy_(source.narrow(dim, offset, stop - start))
            offset += stop - start

    def _index_like(self, like: Tensor, dim: int) -> Tensor:
        """Columns, expanded to the shape of `like` except for one entry per row along `dim`."""
        dim %= like.ndim
        columns = self.index(like.device)
        shape = [1] * like.ndim
        shape[0], shape[dim] = columns.shape
        size = list(like.shape)
        size[dim] = columns.shape[1]
        return columns.view(shape).expand(size)
