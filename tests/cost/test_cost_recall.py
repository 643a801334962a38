"""The read budget against the paper's own figures and a count row by row."""

from __future__ import annotations

import pytest

from ridgefit.cost.recall import ReadBudget
from ridgefit.errors import BadInput


def test_the_papers_widths_give_145_of_576() -> None:
    """rho 1/32, rank 64, about 0.5 % of rows admitted: 18 + 124 + 3, 4.0 times less (VestigeKV, Eq. 2)."""
    budget = ReadBudget(latent=512, branch=64, kept=1 / 32, rank=64, fetched=0.005)
    assert budget.row == 576
    assert budget.attended == 18
    assert budget.scanned == 124
    assert budget.admitted == pytest.approx(2.88)
    assert round(budget.total) == 145
    assert budget.saving == pytest.approx(3.97, abs=0.01)


def test_a_count_row_by_row() -> None:
    rows, kept, fetched, rank = 1000, 40, 13, 8
    read = kept * 30 + (rows - kept) * (6 + rank + 1) + fetched * 30
    budget = ReadBudget(
        latent=24, branch=6, kept=kept / rows, rank=rank, fetched=fetched / rows, certificate=True
    )
    assert budget.total * rows == pytest.approx(read)


def test_without_recall_only_kept_rows_are_read() -> None:
    assert ReadBudget(latent=512, branch=64, kept=1 / 8, rank=0).total == 72


def test_a_sketch_is_never_wider_than_the_latent() -> None:
    assert ReadBudget(latent=8, branch=2, kept=0, rank=99).total == 10


def test_memory_is_saved_only_by_the_host() -> None:
    budget = ReadBudget(latent=512, branch=64, kept=1 / 32, rank=64)
    dense = 3200 * 576 * 2
    index = 3200 * 129 * 4
    assert budget.device_bytes(3200, entry_bytes=2, host=False) == dense + index
    assert budget.device_bytes(3200, entry_bytes=2, host=True) == dense // 32 + index
    with pytest.raises(BadInput, match="at least one"):
        budget.device_bytes(0, entry_bytes=2, host=True)
