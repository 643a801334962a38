"""Quest: pages of neighbouring rows by an upper bound on their scores, for each query (Tang et al. 2024)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from ridgefit.runtime.recall.selectors.selector import Sees, Selector, Window

PAGE = 16


class PageSelector(Selector):
    """Keeps no fixed set: each query reads the pages whose box of rows could hold the largest scores.

    The bound is exact for rows that are not rotated (VestigeKV, Eq. 9). Heads share the latent rows, so they
    share the pages: a page counts by its largest share in any head's softmax over bounds.
    """

    name: ClassVar[str] = "quest"
    sees: ClassVar[Sees] = "each query"

    def scores(self, window: Window) -> Tensor:
        """None that lasts."""
        return torch.zeros(window.rows.shape[0], device=window.rows.device)

    def bound_rows(self, closed: int) -> int:
        """Rows' worth of entries that the bounds of `closed` rows take: a lowest and a highest row a page."""
        return 2 * -(-closed // PAGE)

    def pages(self, queries: Tensor, rows: Tensor, scale: float, count: int) -> Tensor:
        """Rows that each query reads.

        Args:
            queries: absorbed, `[heads, queries, width]` fp32.
            rows: `[rows, width]` fp32, all closed ones.
            scale: factor on inner products.
            count: rows to read at most, at least one page.

        Returns:
            bool `[queries, rows]`.
        """
        closed = rows.shape[0]
        pages = -(-closed // PAGE)
        room = pages * PAGE - closed
        low = pad(rows, (0, 0, 0, room), value=torch.inf).view(pages, PAGE, -1).amin(1)
        high = pad(rows, (0, 0, 0, room), value=-torch.inf).view(pages, PAGE, -1).amax(1)
        bound = scale * (queries.clamp(min=0) @ high.T + queries.clamp(max=0) @ low.T)
        share = bound.softmax(-1).amax(0)
        wanted = min(pages, max(1, count // PAGE))
        best = torch.argsort(share, dim=-1, descending=True, stable=True)[:, :wanted]
        chosen = torch.zeros(share.shape, dtype=torch.bool, device=rows.device).scatter_(1, best, True)
        return chosen.repeat_interleave(PAGE, dim=1)[:, :closed]
