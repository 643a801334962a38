"""Multiply-accumulates of a prefill, exact and filled (paper section 2.5).

Counted, per layer and row: the q, k, v and o projections and the gated MLP. Attention costs
2 x heads x head_dim per pair of a query and a key it sees, as exact causal sums; a sliding layer's
rows see at most its window. A filled row costs, in every late layer, the split layer included, one
map of map_width x hidden and the k and v projections; with the identity only those projections; with
no fill nothing. What maps read besides the state is computed once per filled row. Embeddings, norms
and the head are left out on both sides.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from ridgefit.cost.shape import ModelShape
from ridgefit.errors import BadInput

Fill = Literal["exact", "none", "identity", "ridge"]


class Arm(BaseModel):
    """How a prompt's prefix is handled in the late layers (paper table 3).

    Args:
        fill: what the late layers of a prefix row compute; "exact" runs them.
        split: first late layer.
        tail: last prompt rows that run every layer.
        sink_rows: first prompt rows that run every layer.
        chosen_rows: further prefix rows that run every layer, counted as evenly spread. They are filled too,
            since they are chosen when the fill is under way.
        map_width: what a map reads per row; the hidden width if None (the paper's maps).
        state_only: late layers whose map reads the hidden width alone, where others read more.
        row_macs: of a filled row, once: what its features and their bottleneck cost.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    fill: Fill
    split: int = Field(0, ge=0)
    tail: int = Field(0, ge=0)
    sink_rows: int = Field(0, ge=0)
    chosen_rows: int = Field(0, ge=0)
    map_width: int | None = Field(None, gt=0)
    state_only: tuple[int, ...] = ()
    row_macs: int = Field(0, ge=0)


class Macs(BaseModel):
    """Multiply-accumulates of one prefill, exact and with an arm."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    exact: int
    arm: int

    @property
    def speedup_limit(self) -> float:
        """Most the arm can be faster by, were time proportional to multiply-accumulates."""
        return self.exact / self.arm


EXACT = Arm(fill="exact")


def pop(layers: int) -> Arm:
    """POP as published: the identity from two thirds of the depth, rounded up, with one tail row.

    22 of 32 layers, 24 of 36 (paper section 2.5 and table 17).
    """
    return Arm(fill="identity", split=-(-2 * layers // 3), tail=1)


def prefill_macs(shape: ModelShape, arm: Arm, tokens: int) -> Macs:
    """Multiply-accumulates of prefilling `tokens` rows, exact and with `arm`.

    Raises:
        BadInput: the split is not a layer above the first, or the tail is zero or longer than the
            prompt.
    """
    return Macs(exact=_prefill(shape, EXACT, tokens), arm=arm_macs(shape, arm, tokens))


def arm_macs(shape: ModelShape, arm: Arm, tokens: int) -> int:
    """Multiply-accumulates of prefilling `tokens` rows with `arm`; raises as `prefill_macs`."""
    check_arm(shape, arm, tokens)
    return _prefill(shape, arm, tokens)


def check_arm(shape: ModelShape, arm: Arm, tokens: int) -> None:
    """Refuse what no prefill can do; raises as `prefill_macs`."""
    if tokens < 1:
        raise BadInput(f"a prompt of {tokens} tokens cannot be prefilled", "use --tokens 1 or more")
    if arm.fill == "exact":
        return
    if not 0 < arm.split < shape.layers:
        raise BadInput(
            f"split {arm.split} is not a layer between 1 and {shape.layers - 1} of this "
            f"{shape.layers}-layer model",
            f"choose --split between 1 and {shape.layers - 1}",
        )
    if not 0 < arm.tail <= tokens:
        raise BadInput(
            f"tail {arm.tail} is not between 1 and the prompt's {tokens} tokens",
            f"choose --tail between 1 and {tokens}",
        )


def crossover(shape: ModelShape, arm: Arm, other: Arm, *, longest: int = 1 << 20) -> int | None:
    """Prompt length, in tokens, above which `arm` costs less than `other`.

    The point where the two costs are equal, interpolated between whole lengths and rounded; 0 where
    `arm` is cheaper at every length above both tails, None where it is not even at `longest` tokens.
    """

    def gap(tokens: int) -> int:
        return arm_macs(shape, arm, tokens) - arm_macs(shape, other, tokens)

    # At the tail's own length every row is exact and there is nothing to compare.
    low, high = max(arm.tail, other.tail) + 1, longest
    if gap(high) >= 0:
        return None
    if gap(low) < 0:
        return 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if gap(middle) >= 0 else (low, middle)
    above, below = gap(low), gap(high)
    return round(low + above / (above - below))


def visible_pairs(queries: range, keys: range, window: int | None = None) -> int:
    """Pairs of a query row and a key row that it sees: causal, and within `window` rows if there is one.

    Args:
        queries: positions of the query rows, step 1.
        keys: positions of the key rows, step 1.
        window: rows a query sees, itself included.
    """

    def at_least(age: int) -> int:
        # Pairs whose key is `age` or more rows older than its query.
        most = len(keys)
        first, last = queries.start - keys.start - age, queries.stop - keys.start - age
        return _ramp(last, most) - _ramp(first, most)

    return at_least(0) - (at_least(window) if window is not None else 0)


def _ramp(end: int, most: int) -> int:
    """Sum of min(t, most) for t = 1 .. end; 0 where `end` is not positive."""
    rising = max(0, min(end, most))
    return rising * (rising + 1) // 2 + max(0, end - most) * most


def _prefill(shape: ModelShape, arm: Arm, tokens: int) -> int:
    split = shape.layers if arm.fill == "exact" else arm.split
    filled = max(tokens - arm.tail - arm.sink_rows, 0) if arm.fill == "ridge" else 0
    return filled * arm.row_macs + sum(
        _exact_layer(shape, layer, tokens) if layer < split else _late_layer(shape, arm, layer, tokens)
        for layer in range(shape.layers)
    )


def _exact_layer(shape: ModelShape, layer: int, tokens: int) -> int:
    rows = range(tokens)
    return _rows(shape, layer, tokens) + _attention(shape) * visible_pairs(rows, rows, shape.window_of(layer))


def _late_layer(shape: ModelShape, arm: Arm, layer: int, tokens: int) -> int:
    window = shape.window_of(layer)
    tail = range(tokens - arm.tail, tokens)
    sinks = range(min(arm.sink_rows, tail.start))
    prefix = range(sinks.stop, tail.start)
    pairs = visible_pairs(sinks, sinks, window) + sum(
        visible_pairs(tail, keys, window)
        for keys in ((sinks, tail) if arm.fill == "none" else (range(tokens),))
    )
    # A sliding layer's cache is filled only where some tail row still looks.
    filled = len(prefix) if window is None or arm.chosen_rows else min(len(prefix), window - 1)
    chosen = min(arm.chosen_rows, len(prefix))
    places = (prefix.start + (2 * number + 1) * len(prefix) // (2 * chosen) for number in range(chosen))
    pairs += sum(place + 1 if window is None else min(place + 1, window) for place in places)
    width = shape.hidden if layer in arm.state_only else arm.map_width or shape.hidden
    per_filled_row = {
        "none": 0,
        "identity": 2 * shape.hidden * shape.kv_width,
        "ridge": 2 * shape.hidden * shape.kv_width + shape.hidden * width,
    }[arm.fill]
    exact_rows = len(sinks) + len(tail) + chosen
    return _rows(shape, layer, exact_rows) + _attention(shape) * pairs + filled * per_filled_row


def _rows(shape: ModelShape, layer: int, rows: int) -> int:
    projections = 2 * shape.hidden * (shape.heads * shape.head_dim + shape.kv_width)
    return rows * (projections + shape.mlp[layer].macs(shape.hidden))


def _attention(shape: ModelShape) -> int:
    return 2 * shape.heads * shape.head_dim
