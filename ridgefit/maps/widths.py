"""Columns of each layer's map: all of what is kept of a row, or its split state alone.

What is kept of a row is its split state, then its other features: as they are, or through one bottleneck that
all late layers of the split share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from ridgefit.errors import BadInput

_MEND = "fetch or solve them again"


@dataclass(frozen=True)
class Bottleneck:
    """U of a split: all features but the state are kept as `rest @ U`.

    Attributes:
        shape: `(rest_width, rank)`.
        read: gives bf16 `[rest_width, rank]` on the CPU; may read a file.
    """

    shape: tuple[int, int]
    read: Callable[[], Tensor] = field(repr=False, compare=False)

    @classmethod
    def of(cls, weight: Tensor) -> Bottleneck:
        """One in memory, rounded to bf16.

        Raises:
            BadInput: it is not `[rest_width, rank]` with a rank of 1 to rest_width.
        """
        rest, rank = require_bottleneck(tuple(weight.shape), "the maps")
        return cls((rest, rank), weight.bfloat16)

    @property
    def rank(self) -> int:
        """Columns that it leaves of the rest."""
        return self.shape[1]


class Widths(NamedTuple):
    """Shapes of a split's maps.

    Attributes:
        out_width: rows of every map, the hidden width.
        in_width: columns of what is kept of a row.
        state_only: layers whose map has `out_width` columns and reads the state alone, others more.
    """

    out_width: int
    in_width: int
    state_only: tuple[int, ...]


def widths_of(
    shapes: Mapping[int, tuple[int, int]],
    features: Sequence[str],
    bottleneck: tuple[int, int] | None,
    where: str,
) -> Widths:
    """Judge the shapes `(out, in)` of a split's maps against what they say they read.

    Raises:
        BadInput: shapes that do not go together, or a bottleneck that nothing goes through.
    """
    out = next(iter(shapes.values()))[0]
    found = sorted({width for _, width in shapes.values()})
    wide = found[-1]
    plain = len(features) == 1
    first, *others = shapes
    if len({rows for rows, _ in shapes.values()}) > 1 or (len(found) > 1 and plain) or len(found) > 2:
        other = next(layer for layer in others if shapes[layer] != shapes[first])
        raise BadInput(
            f"the maps in {where} do not share one shape [out, in]: that of layer {first} is "
            f"{shapes[first]}, that of layer {other} is {shapes[other]}"
        )
    if bottleneck is not None and plain:
        raise BadInput(f"{where} holds a bottleneck, and its maps read the state alone", _MEND)
    if bottleneck is not None and wide != out + bottleneck[1]:
        raise BadInput(
            f"a map in {where} has {wide} columns, the state and a bottleneck of rank {bottleneck[1]} "
            f"have {out + bottleneck[1]}",
            _MEND,
        )
    if not plain and wide <= out:
        raise BadInput(
            f"the maps in {where} name the features {', '.join(features)} and have {wide} columns, those of "
            "the state alone or fewer",
            _MEND,
        )
    if len(found) == 2 and found[0] != out:
        raise BadInput(
            f"maps in {where} have {found[0]} columns, neither the {out} of the state nor all {wide}", _MEND
        )
    narrow = (layer for layer, shape in sorted(shapes.items()) if shape[1] != wide)
    return Widths(out, wide, tuple(narrow))


def require_bottleneck(shape: Sequence[int], where: str) -> tuple[int, int]:
    """`(rest_width, rank)` of a bottleneck's tensor.

    Raises:
        BadInput: it is no matrix, or is wider than what goes in.
    """
    if len(shape) != 2 or not 1 <= shape[1] <= shape[0]:
        raise BadInput(f"the bottleneck in {where} has shape {tuple(shape)}, not [rest, rank]", _MEND)
    return shape[0], shape[1]


def require_finite(weight: Tensor, where: str) -> Tensor:
    """A bottleneck's weight, refused where it holds what is no number.

    Raises:
        BadInput: a value is not finite.
    """
    if not bool(torch.isfinite(weight).all()):
        raise BadInput(f"the bottleneck{where} holds values that are not finite", _MEND)
    return weight
