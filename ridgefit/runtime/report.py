"""What a fill did while it was applied."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class FillReport:
    """Counts over all calls made inside one `applied` block; padding is not counted.

    Attributes:
        filled: prefills in which late layers ran only some rows.
        exact: prefills left alone because the prompt was not longer than the tail.
        rows_filled: prompt rows whose late layers were skipped.
        rows_exact: prompt rows of filled prefills that ran every layer.
    """

    filled: int = 0
    exact: int = 0
    rows_filled: int = 0
    rows_exact: int = 0
