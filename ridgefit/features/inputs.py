"""What features are computed from, and what they keep from one part of a prompt to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from ridgefit.cost import ModelShape
from ridgefit.models import Port

# Stands for "in an earlier part of the prompt" where a sample's first row is asked for.
EARLIER = -(1 << 40)


class SplitShape(NamedTuple):
    """Dimensions that features' widths and costs depend on.

    Attributes:
        split: first late layer.
        hidden: width of the hidden state.
        mlp: width of the split layer's MLP activations; None where it has no single MLP (experts).
    """

    split: int
    hidden: int
    mlp: int | None

    @classmethod
    def of(cls, port: Port, split: int) -> SplitShape:
        """Of a loaded model."""
        return cls(split, port.hidden, port.mlp_width(split))

    @classmethod
    def of_config(cls, shape: ModelShape, split: int) -> SplitShape:
        """Of a config; a split outside the model takes its last layer's MLP."""
        mlp = shape.mlp[min(split, shape.layers - 1)]
        return cls(split, shape.hidden, None if mlp.experts else mlp.width)


@dataclass
class FeatureCarry:
    """What a prompt's earlier rows left for the features of its next ones. Begins empty.

    Attributes:
        rows: `[batch]` rows of each sample so far, padding left out; None before the first part.
        held: by feature name, whatever it keeps.
    """

    rows: Tensor | None = None
    held: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class FeatureInputs:
    """What the exact lower layers produced for some consecutive rows of each sample.

    Attributes:
        state: `[batch, rows, hidden]` entering the split layer.
        valid: `[batch, rows]` bool, False for padding on either side; None where every row is real.
        lower: K -> `[batch, rows, hidden]` entering layer split - K, for the K that are asked for.
        mlp: the split layer's MLP activations `[…, mlp]` of states `[…, hidden]`.
    """

    state: Tensor
    valid: Tensor | None = None
    lower: Mapping[int, Tensor] = field(default_factory=dict)
    mlp: Callable[[Tensor], Tensor] | None = None

    @property
    def rows(self) -> int:
        """Rows of each sample, padding included."""
        return self.state.shape[1]


class Opening(NamedTuple):
    """Where samples begin, as seen from one part of a prompt.

    Attributes:
        first: `[batch, 1]` int64, the row of this part that is a sample's first: `EARLIER` where it came in
            an earlier part, the number of rows where it is still to come. None: row 0 of every sample.
        past: `[batch, 1]` int64, real rows of each sample in earlier parts; None: there were no parts.
        valid: as in `FeatureInputs`.
    """

    first: Tensor | None
    past: Tensor | None
    valid: Tensor | None

    @classmethod
    def of(cls, inputs: FeatureInputs, carry: FeatureCarry | None) -> Opening:
        """Read from the padding and from what the earlier parts left; nothing waits for the device."""
        state, valid = inputs.state, inputs.valid
        past = None if carry is None or carry.rows is None else carry.rows[:, None]
        if valid is None and past is None:
            return cls(None, None, None)
        if valid is None:
            first = torch.zeros(len(state), 1, dtype=torch.int64, device=state.device)
        else:
            real = valid.any(dim=1, keepdim=True)
            first = valid.int().argmax(dim=1, keepdim=True).masked_fill(~real, inputs.rows)
        if past is not None:
            first = first.masked_fill(past > 0, EARLIER)
        return cls(first, past, valid)

    def real(self, rows: int, device: torch.device) -> Tensor:
        """`[batch or 1, 1 or rows]` number of real rows of each sample in this part."""
        if self.valid is None:
            return torch.full((1, 1), rows, dtype=torch.int64, device=device)
        return self.valid.sum(dim=1, keepdim=True)

    def first_state(self, state: Tensor) -> Tensor:
        """`[batch, 1, hidden]`, each sample's first row where it is in this part, else any row."""
        if self.first is None:
            return state[:, :1]
        at = self.first.clamp(0, state.shape[1] - 1)[:, :, None]
        return state.gather(1, at.expand(-1, 1, state.shape[2]))
