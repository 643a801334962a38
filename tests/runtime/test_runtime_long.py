"""A prompt of 16,384 tokens on the CPU: no tensor of all rows by all columns, however rows are chosen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "recipes" / "bench_rows.py"
TOKENS = 16_384
# Freed memory goes back at once; what the allocator keeps would differ by 150 MiB from run to run.
MALLOC = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "1048576", "MALLOC_TRIM_THRESHOLD_": "1048576"}


@pytest.mark.slow
def test_peak_memory_and_time_of_a_long_prompt() -> None:
    """Each arm in a process of its own. One byte for every pair of tokens would be 256 MiB."""
    line = [sys.executable, str(SCRIPT), "--tokens", str(TOKENS)]
    said = subprocess.run(
        line, capture_output=True, text=True, check=True, timeout=900, env={**os.environ, **MALLOC}
    ).stdout
    found = {row["arm"]: row for row in map(json.loads, said.splitlines())}
    assert set(found) == {"exact", "plain", "random", "attention", "probe"}
    for arm in ("random", "attention", "probe"):
        assert found[arm]["rows_chosen"] == round(0.1 * TOKENS)
        # The plain fill's own tail and the stock model's activations are in every arm.
        assert found[arm]["grown_mib"] - found["plain"]["grown_mib"] < 128, found
    assert found["probe"]["held_between_sweeps_mib"] == 4 * 2 * TOKENS * 2 * 16 * 4 / 2**20
