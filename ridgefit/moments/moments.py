"""Centred sums of one set of rows: everything a ridge map needs to know about them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

FIELDS = ("mean_x", "mean_y", "sxx", "sxy", "syy")


@dataclass(slots=True)
class Moments:
    """Sufficient statistics of a split's ridge maps over `n` rows, all float64.

    A sum is centred at the mean of its own rows and is never formed as `XtX - n mean mean'`, which loses
    every digit of a channel whose mean is far larger than its deviation.

    Attributes:
        n: rows.
        mean_x: `[width]` mean of the maps' input.
        mean_y: `[layers, hidden]` mean input of every late layer, the split layer first.
        sxx: `[width, width]` sum of outer products of the centred inputs.
        sxy: `[layers, width, hidden]` the same of inputs with each late layer's input.
        syy: `[layers, hidden]` sum of squares of the centred late layers' inputs.
    """

    n: int
    mean_x: Tensor
    mean_y: Tensor
    sxx: Tensor
    sxy: Tensor
    syy: Tensor

    @classmethod
    def zeros(
        cls, width: int, layers: int, hidden: int, device: torch.device | str = "cpu", *, meta: bool = False
    ) -> Moments:
        """Moments of no rows. `meta` gives the shapes without memory."""
        place = torch.device("meta") if meta else torch.device(device)
        shapes = shapes_of(width, layers, hidden)
        return cls(0, *(torch.zeros(shapes[f], dtype=torch.float64, device=place) for f in FIELDS))

    @property
    def layers(self) -> int:
        """Late layers."""
        return self.sxy.shape[0]

    @property
    def width(self) -> int:
        """Channels of the maps' input."""
        return self.sxx.shape[0]

    @property
    def hidden(self) -> int:
        """Channels of a layer's input."""
        return self.sxy.shape[2]

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Field name and tensor, in the order of files."""
        for name in FIELDS:
            yield name, getattr(self, name)

    def clone(self) -> Moments:
        """An independent copy."""
        return Moments(self.n, *(tensor.clone() for _, tensor in self.tensors()))

    def merge_(self, other: Moments) -> Moments:
        """Add the rows of `other` in place (Chan, Golub and LeVeque's pairwise update) and return self.

        `S = Sa + Sb + (mean_b - mean_a) (mean_b - mean_a)' na nb / n`. Only one block of temporary memory,
        `[width, max(width, hidden)]`, is needed. The operations and their order are those of `merge_blocks`,
        so sums merged in memory and sums merged from file to file have the same bits.

        Raises:
            ValueError: the shapes differ.
        """
        if [t.shape for _, t in self.tensors()] != [t.shape for _, t in other.tensors()]:
            raise ValueError("moments of different shapes cannot be merged")
        step = MergeStep(self, other)
        merge_blocks(self.sxx, other.sxx, step.weighted_x, step.dx)
        for layer in range(self.layers):
            merge_blocks(self.sxy[layer], other.sxy[layer], step.weighted_x, step.dy[layer])
        self.syy.copy_(step.syy)
        self.mean_x.copy_(step.mean_x)
        self.mean_y.copy_(step.mean_y)
        self.n = step.n
        return self

    def symmetrise_(self) -> Moments:
        """Average `sxx` with its transpose in place; float32 products are not symmetric to the last bit."""
        self.sxx.add_(self.sxx.T.clone()).mul_(0.5)
        return self

    @staticmethod
    def combine(body: Moments, lead: Moments | None, *, drop_lead: bool = False) -> Moments:
        """Moments of all rows, or of the body alone; the arguments stay as they are.

        Args:
            body: sums of all rows but the first positions of each window.
            lead: sums of those first positions, None if they were not kept apart.
            drop_lead: leave them out.
        """
        return body if drop_lead or lead is None else merge(body, lead)


def merge(first: Moments, second: Moments) -> Moments:
    """Moments of the rows of both."""
    return first.clone().merge_(second)


def shapes_of(width: int, layers: int, hidden: int) -> dict[str, tuple[int, ...]]:
    """Shape of every field."""
    return {
        "mean_x": (width,),
        "mean_y": (layers, hidden),
        "sxx": (width, width),
        "sxy": (layers, width, hidden),
        "syy": (layers, hidden),
    }


class MergeStep:
    """The small quantities of one merge, from which the large blocks are merged one at a time.

    Args:
        first: gives `n`, `mean_x`, `mean_y` and `syy`; its other tensors are not read.
        second: the rows that are added.

    Attributes:
        n: rows together.
        mean_x: merged mean, `[width]`.
        mean_y: merged mean, `[layers, hidden]`.
        syy: merged sum of squares, `[layers, hidden]`.
        dx: difference of the means of x.
        dy: difference of the means of y.
        weighted_x: `dx` times na nb / n.
    """

    def __init__(self, first: Moments, second: Moments) -> None:
        self.n = first.n + second.n
        total = max(self.n, 1)
        between = first.n * second.n / total
        share = second.n / total
        self.dx = second.mean_x - first.mean_x
        self.dy = second.mean_y - first.mean_y
        self.weighted_x = self.dx * between
        self.mean_x = first.mean_x + self.dx * share
        self.mean_y = first.mean_y + self.dy * share
        self.syy = first.syy + second.syy + self.dy * self.dy * between


def merge_blocks(first: Tensor, second: Tensor, weighted_x: Tensor, dy: Tensor) -> Tensor:
    """Merge one `[width, channels]` block of sums into `first` in place."""
    first.add_(second)
    return first.add_(torch.outer(weighted_x, dy))
