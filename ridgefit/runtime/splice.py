"""Exact keys, values or both in place of filled ones, in every late layer: which of them carries the error
(RidgeFill sections 3.1 and 6.6). A diagnosis: it runs the exact prefill too.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from ridgefit.models import Port, Written

Splice = Literal["keys", "values", "both"]
SPLICES: tuple[Splice, ...] = ("keys", "values", "both")


class ExactWrites:
    """What every late layer writes for the prefix in the exact model.

    Args:
        port: the model.
        split: first late layer.
        state: `[batch, columns, hidden]` entering the split layer, exact.
        stop: columns of the prefix, padding included.
        splice: what is put in place of the filled rows.
        position_ids: `[batch or 1, columns]`.
        valid: `[batch, columns]` bool, False for padding.
    """

    def __init__(
        self,
        port: Port,
        split: int,
        state: Tensor,
        stop: int,
        splice: Splice,
        *,
        position_ids: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> None:
        self._splice = splice
        self._written: dict[int, Written] = {}
        for layer in range(split, port.n_layers):
            # Kept before rotary: the filled rows' own positions turn them.
            self._written[layer] = port.written(layer, state[:, :stop])
            if layer < port.n_layers - 1:
                state = port.run_layers(layer, layer + 1, state, position_ids=position_ids, valid=valid)

    def put(self, layer: int, filled: Written, first: int) -> Written:
        """`filled`, the rows from column `first` on and before rotary, with what is exact in its place."""
        exact = Written(*(part[:, :, first:] for part in self._written[layer]))
        return Written(
            filled.keys if self._splice == "values" else exact.keys,
            filled.values if self._splice == "keys" else exact.values,
        )
