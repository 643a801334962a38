"""Multiply-accumulates that the maps of a split cost per filled row."""

from __future__ import annotations

from collections.abc import Sequence


def map_macs(
    hidden: int,
    widths: Sequence[int],
    *,
    bottleneck: tuple[int, int] | None = None,
    features: int = 0,
) -> int:
    """One map per late layer, the shared bottleneck once, and the features once.

    Args:
        hidden: width of a layer's input.
        widths: columns of each late layer's map.
        bottleneck: inputs and outputs of what stands before the maps; None without.
        features: what computing the maps' inputs costs.
    """
    through = 0 if bottleneck is None else bottleneck[0] * bottleneck[1]
    return hidden * sum(widths) + through + features
