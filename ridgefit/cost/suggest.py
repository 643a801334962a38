"""A split and a tail to start from, with where each comes from in the paper."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from ridgefit.cost.shape import ModelShape

LONGEST_TAIL = 4096


class Suggestion(BaseModel):
    """A split and a tail, and why."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    split: int
    tail: int
    why: str


def suggest(shape: ModelShape, tokens: int) -> Suggestion:
    """Split and tail for a model and a prompt length.

    Keys that are normalised before they are cached survive a split at 3/8 of the depth; keys that are
    not need 1/2, where the fitted fill is again far better than the identity (paper sections 3.2, 6.1
    and 6.6). The tail is the paper's 4,096 rows (section 2.4, table 4), or a quarter of a prompt that
    is too short for it.
    """
    split = max(1, shape.layers * 3 // 8 if shape.qk_norm else shape.layers // 2)
    tail = min(LONGEST_TAIL, max(1, tokens // 4))
    depth = (
        "3/8 of the depth: keys are normalised (QK-norm; paper sections 3.2 and 6.1)"
        if shape.qk_norm
        else "1/2 of the depth: keys are not normalised (no QK-norm; paper sections 6.1 and 6.6)"
    )
    rows = (
        "4,096 rows (paper section 2.4)"
        if tail == LONGEST_TAIL
        else "a quarter of a prompt below 16,384 tokens"
    )
    return Suggestion(split=split, tail=tail, why=f"split at {depth}; tail of {rows}")
