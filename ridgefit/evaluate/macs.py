"""What an arm's prefill costs in multiply-accumulates, as a share of the exact one (paper section 2.5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ridgefit import cost
from ridgefit.cost.macs import EXACT
from ridgefit.errors import BadInput
from ridgefit.evaluate.arms import Arm
from ridgefit.features import FeatureList, SplitShape
from ridgefit.maps import MapSet
from ridgefit.models import Port

BY_TEXT = ("special", "digits", "protected", "lexical_net")
"""Selectors that choose as many rows as the text holds of something."""


def prefill_shares(port: Port, arms: Sequence[Arm], prompt: int, tail: int) -> dict[str, float]:
    """Arm label -> multiply-accumulates of prefilling `prompt` tokens, the exact prefill being 1.

    Counted as in `ridgefit.cost`: maps of any width, a shared bottleneck and the features a map reads
    included. An arm whose cost the prompt's length does not tell is left out; nothing is found for a model
    whose config tells no shape.
    """
    try:
        shape = cost.shape_from_config(port.config.to_dict())
    except BadInput:
        return {}
    exact = cost.arm_macs(shape, EXACT, prompt)
    found: dict[str, float] = {}
    for arm in arms:
        if arm.split is None:
            found[arm.label] = 1.0
            continue
        fill = arm.kind if arm.kind in ("none", "identity") else "identity"
        own = arm.tail_of(tail)
        chosen = _chosen(arm, prompt)
        if chosen is None:
            continue
        plain = cost.Arm(
            fill=fill,
            split=arm.split,
            tail=own,
            sink_rows=arm.sink_rows,
            chosen_rows=min(chosen, prompt - own),
        )
        macs = cost.arm_macs(shape, plain, prompt)
        if arm.fill is not None and arm.fill.maps is not None:
            macs += _maps(port, arm.fill.maps, max(prompt - own - arm.sink_rows, 0), windows=not arm.rows)
        found[arm.label] = macs / exact
    return found


def _chosen(arm: Arm, prompt: int) -> int | None:
    """Rows that the selectors of an arm choose or probe with; None where the prompt's text decides, or where
    corrections or a splice cost what is not counted.
    """
    if arm.corrections is not None or arm.splice is not None:
        return None
    total = 0
    for one in arm.rows:
        own: dict[str, Any] = one.model_dump()
        if own.get("base_rules") or own.get("like") or one.select in BY_TEXT:
            return None
        if "rows" in own:
            total += len(set(own["rows"]))
        elif own.get("count") is not None:
            total += own["count"]
        else:
            total += round((own.get("share") or 0.1) * prompt)
        total += own["window"] if one.select == "probe" else 0
    return total


def _maps(port: Port, maps: MapSet, rows: int, *, windows: bool) -> int:
    """Maps, bottleneck and features for `rows` filled rows; fewer where a layer has a window."""
    macs = rows * FeatureList(maps.features).macs(SplitShape.of(port, maps.layers.start))
    if maps.bottleneck is not None:
        rest, rank = maps.bottleneck.shape
        macs += rows * rest * rank
    for layer in maps.layers:
        window = port.window(layer) if windows else None
        filled = rows if window is None else min(rows, window - 1)
        macs += filled * maps.out_width * (maps.out_width if layer in maps.state_only else maps.in_width)
    return macs
