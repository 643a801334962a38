"""Costs in a result: the cost room's for plain maps, counted by hand for those that read more."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ridgefit import cost
from ridgefit.evaluate.arms import Arm, resolve_arms
from ridgefit.evaluate.macs import prefill_shares
from ridgefit.evaluate.result import load_result
from ridgefit.evaluate.run import evaluate
from ridgefit.evaluate.tables import arm_grid
from ridgefit.maps import LayerMap, MapSet
from ridgefit.models import LoadedModel, port_of
from ridgefit.recipe import ArmSettings, EvalSettings, NllSettings
from ridgefit.runtime import RidgeFill

HIDDEN, MLP, LAYERS, SPLIT, RANK = 32, 48, 6, 3, 5
PROMPT, TAIL, SINKS = 120, 40, 4
FILLED = PROMPT - TAIL - SINKS


def maps(features: tuple[str, ...], widths: dict[int, int], bottleneck: int | None = None) -> MapSet:
    return MapSet.of(
        {layer: LayerMap(torch.zeros(HIDDEN, width), torch.zeros(HIDDEN)) for layer, width in widths.items()},
        features=features,
        bottleneck=None if bottleneck is None else torch.ones(bottleneck, RANK),
    )


def ridge(found: MapSet, sinks: int = SINKS) -> Arm:
    return Arm("ridge", "ridge", SPLIT, None, sinks, RidgeFill.of(found))


LATE = range(SPLIT, LAYERS)


def test_plain_arms_cost_what_the_cost_room_says(tiny: LoadedModel) -> None:
    shape = cost.shape_from_config(tiny.model.config.to_dict())
    plain = maps(("state",), dict.fromkeys(LATE, HIDDEN))
    settings = [
        ArmSettings(kind="identity", split=SPLIT, sink_rows=SINKS),
        ArmSettings(kind="none", split=SPLIT),
        ArmSettings(kind="pop"),
    ]
    arms = [*resolve_arms(settings, None, LAYERS), ridge(plain)]
    expected = [
        cost.Arm(fill="exact"),
        cost.Arm(fill="identity", split=SPLIT, tail=TAIL, sink_rows=SINKS),
        cost.Arm(fill="none", split=SPLIT, tail=TAIL),
        cost.pop(LAYERS),
        cost.Arm(fill="ridge", split=SPLIT, tail=TAIL, sink_rows=SINKS),
    ]
    found = prefill_shares(tiny.port, arms, PROMPT, TAIL)
    whole = cost.arm_macs(shape, expected[0], PROMPT)
    assert list(found) == [arm.label for arm in arms]
    for share, arm in zip(found.values(), expected, strict=True):
        assert share == pytest.approx(cost.arm_macs(shape, arm, PROMPT) / whole, rel=1e-12)


@pytest.mark.parametrize(
    ("found", "more"),
    [
        # previous row in every layer, at full width
        (maps(("state", "previous-1"), dict.fromkeys(LATE, 2 * HIDDEN)), 3 * HIDDEN * HIDDEN),
        # through a bottleneck, in two of three layers
        (
            maps(("state", "previous-1"), {3: HIDDEN, 4: HIDDEN + RANK, 5: HIDDEN + RANK}, bottleneck=HIDDEN),
            HIDDEN * RANK + 2 * HIDDEN * RANK,
        ),
        # MLP activations cost their two products once
        (maps(("state", "mlp"), dict.fromkeys(LATE, HIDDEN + MLP)), 2 * HIDDEN * MLP + 3 * HIDDEN * MLP),
    ],
)
def test_maps_that_read_more_cost_more(tiny: LoadedModel, found: MapSet, more: int) -> None:
    shape = cost.shape_from_config(tiny.model.config.to_dict())
    whole = cost.arm_macs(shape, cost.Arm(fill="exact"), PROMPT)
    plain = prefill_shares(tiny.port, [ridge(maps(("state",), dict.fromkeys(LATE, HIDDEN)))], PROMPT, TAIL)
    share = prefill_shares(tiny.port, [ridge(found)], PROMPT, TAIL)
    assert share["ridge"] - plain["ridge"] == pytest.approx(FILLED * more / whole, rel=1e-9)


def test_a_window_is_filled_no_farther_back(tiny_model) -> None:
    """gemma3: layers 3 and 4 see 8 rows, layer 5 all."""
    port = port_of(tiny_model("gemma3"))
    shape = cost.shape_from_config(port.config.to_dict())
    plain = ridge(maps(("state",), dict.fromkeys(LATE, HIDDEN)), sinks=0)
    ridge_macs = cost.arm_macs(shape, cost.Arm(fill="ridge", split=SPLIT, tail=TAIL), PROMPT)
    whole = cost.arm_macs(shape, cost.Arm(fill="exact"), PROMPT)
    found = prefill_shares(port, [plain], PROMPT, TAIL)
    assert found["ridge"] == pytest.approx(ridge_macs / whole, rel=1e-12)


def test_a_result_holds_and_shows_them(tiny: LoadedModel, documents: Path, tmp_path: Path) -> None:
    task = NllSettings(data=(str(documents),), prompt=PROMPT, tail=TAIL, scored=30, documents=2)
    arms = (ArmSettings(kind="identity", split=SPLIT),)
    evaluate(tiny, EvalSettings(arms=arms, tasks=(task,), resamples=100), None, tmp_path)
    found = load_result(tmp_path).tasks[0]
    assert found.macs["exact"] == 1
    assert 0.5 < found.macs["identity s3"] < 1
    grid = arm_grid(found)
    assert grid.heads[1] == "MACs"
    assert grid.rows[0][1] == "100 %"
    assert grid.rows[1][1] == f"{100 * found.macs['identity s3']:.0f} %"
