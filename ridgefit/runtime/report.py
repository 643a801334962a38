"""What a fill did while it was applied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass
class FillReport:
    """Counts over all calls made inside one `applied` block; padding is not counted.

    Attributes:
        filled: prefills in which late layers ran only some rows.
        exact: prefills left alone because the prompt was not longer than the tail.
        rows_filled: prompt rows whose late layers were skipped.
        rows_exact: prompt rows of filled prefills that ran every layer.
        rows_chosen: prefix rows among them that selectors chose.
        prompts: samples of filled prefills.
        held_bytes: most bytes of filled keys and values held between the two sweeps of a probed prefill.
    """

    filled: int = 0
    exact: int = 0
    rows_filled: int = 0
    rows_exact: int = 0
    rows_chosen: int = 0
    prompts: int = 0
    held_bytes: int = 0

    def held(self, buffers: Mapping[int, Sequence[Tensor]]) -> None:
        """Note what a first sweep left, by layer."""
        found = sum(part.numel() * part.element_size() for pair in buffers.values() for part in pair)
        self.held_bytes = max(self.held_bytes, found)
