"""Which tokens a model cannot simply copy from earlier text (paper section 3.1)."""

from __future__ import annotations

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

RUN = 8


def novel_tokens(tokens: torch.Tensor, start: int, *, run: int = RUN) -> torch.Tensor:
    """Positions from `start` on that lie inside no run that the prompt already holds.

    A run is any `run` consecutive tokens of `tokens`; it counts as copied if the prompt holds the same
    tokens at an earlier place, the whole of them before `start`. The run itself may begin in the prompt
    and reach to the end of `tokens`. What only repeats scored tokens stays novel, as in the paper.

    Args:
        tokens: prompt and scored tokens together, `[n]`, integer.
        start: first scored position, that is the prompt's length.
        run: length of a run; 8 in the paper.

    Returns:
        Boolean mask over the scored tokens, `[n - start]`.
    """
    ids = tokens.cpu().numpy().astype(np.int64)
    copied = np.zeros(ids.size, dtype=bool)
    if ids.size > run:
        names = _names(sliding_window_view(ids, run))
        _, first, which = np.unique(names, return_index=True, return_inverse=True)
        earliest = first[which]
        seen = (earliest < np.arange(names.size)) & (earliest + run <= start)
        for offset in range(run):
            copied[offset : offset + names.size] |= seen
    return torch.from_numpy(~copied[start:])


def _names(windows: NDArray[np.int64]) -> NDArray[np.int64]:
    """One number per window, equal exactly where the windows are equal (no hash, no collision)."""
    names = windows[:, 0]
    for column in range(1, windows.shape[1]):
        # Ranks stay below n, so the pair fits into 64 bits for any vocabulary below 2 ** 31.
        _, ranks = np.unique(names, return_inverse=True)
        names = ranks.astype(np.int64) * (1 << 31) + windows[:, column]
    return names
