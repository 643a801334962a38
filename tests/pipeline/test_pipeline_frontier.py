"""The rule that picks a candidate, on made-up scores; and the pick on a trained model."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgefit.capture import capture, load_capture
from ridgefit.corpus import build_store, read_documents
from ridgefit.evaluate.candidates import candidate_table
from ridgefit.models import load_model
from ridgefit.pipeline.frontier import CandidateScore, Gain, decide
from ridgefit.pipeline.probe import Probed, held_samples
from ridgefit.pipeline.solve import solve_with
from ridgefit.recipe import CaptureSettings, SolveSettings


def gain(mean: float, half: float = 0.05) -> Gain:
    return Gain(mean=mean, low=mean - half, high=mean + half, n=16)


def score(
    name: str,
    copied: float | None,
    macs: int,
    *,
    over: Gain | None = None,
    loss: Gain | None = None,
    keys: float = 0.9,
) -> CandidateScore:
    return CandidateScore(
        name=name,
        features=("state",),
        rank=None,
        metric=None,
        energy=None,
        wide_layers=(),
        alphas=(0.1,),
        keys=keys,
        values=0.9,
        copied=copied,
        recalled=0.9,
        loss=0.1,
        copied_gain=over,
        loss_gain=loss,
        macs=macs,
        extra=macs / 100 - 1,
    )


PLAIN = score("plain", 0.2, 100)


def test_the_cheapest_of_the_best_is_picked() -> None:
    found = [
        PLAIN,
        score("full", 0.95, 200, over=gain(0.75), loss=gain(0.0)),
        score("r64", 0.93, 112, over=gain(0.73), loss=gain(0.0)),
        score("r32", 0.91, 106, over=gain(0.71), loss=gain(0.0)),
        score("r8", 0.89, 101, over=gain(0.69), loss=gain(0.0)),
    ]
    name, reason = decide(found, 16)
    assert name == "r32", "r8 is more than 5 points below the best"
    assert "91%" in reason
    assert "20%" in reason
    assert "6.0%" in reason


@pytest.mark.parametrize(
    ("found", "prompts", "match"),
    [
        # the exact model is no ruler
        ([PLAIN, score("r", 0.9, 101, over=gain(0.7))], 3, "too few"),
        ([score("plain", None, 100), score("r", None, 101)], 16, "too few"),
        # nothing to win
        ([score("plain", 0.97, 100), score("r", 1.0, 101, over=gain(0.03, 0.01))], 16, "plain maps copy 97%"),
        # the gain may be chance, or rests on one sample
        ([PLAIN, score("r", 0.24, 101, over=gain(0.04, 0.05))], 16, "none copies 3 points more"),
        (
            [PLAIN, score("r", 0.9, 101, over=Gain(mean=0.7, low=None, high=None, n=1))],
            16,
            "none copies 3 points more",
        ),
        ([PLAIN, score("r", 0.1, 101, over=gain(-0.1), loss=gain(-0.2))], 16, "none copies 3 points more"),
        # one of many beats plain by a point, as one of many will
        ([PLAIN, score("r", 0.22, 101, over=gain(0.02, 0.01))], 16, "none copies 3 points more"),
        # it costs loss beyond the interval
        ([PLAIN, score("r", 0.9, 101, over=gain(0.7), loss=gain(0.1, 0.05))], 16, "the loss of each of 1"),
        ([PLAIN], 16, "none copies 3 points more"),
    ],
)
def test_plain_is_kept(found: list[CandidateScore], prompts: int, match: str) -> None:
    name, reason = decide(found, prompts)
    assert name == "plain"
    assert match in reason


def test_a_loss_within_its_interval_is_no_objection_and_a_worse_one_is_passed_over() -> None:
    found = [
        PLAIN,
        score("lossy", 1.0, 101, over=gain(0.8), loss=gain(0.2)),
        score("sound", 0.8, 110, over=gain(0.6), loss=gain(0.04)),
        score("no windows", 0.79, 111, over=gain(0.59), loss=None),
    ]
    assert decide(found, 16)[0] == "sound"
    assert decide([PLAIN, found[3]], 16)[0] == "no windows"


def test_equal_costs_are_told_apart_by_keys() -> None:
    found = [
        PLAIN,
        *(score(name, 0.9, 105, over=gain(0.7), keys=keys) for name, keys in (("a", 0.8), ("b", 0.9))),
    ]
    assert decide(found, 16)[0] == "b"


def test_gains_are_paired_and_leave_out_what_one_side_lacks() -> None:
    one = Probed({"copied": {"a": 1.0, "b": 0.5}, "recalled": {}, "novel_nll": {}})
    other = Probed({"copied": {"b": 0.25, "c": 0.0}, "recalled": {}, "novel_nll": {}})
    assert one.gains("copied", other) == {"b": 0.25}
    assert one.mean("copied") == 0.75
    assert one.mean("recalled") is None


@pytest.mark.slow
def test_on_a_trained_model_a_low_rank_previous_row_is_picked(tmp_path: Path) -> None:
    """Half a minute: the bundled model at half depth, of which plain maps lose digits that were repeated."""
    loaded = load_model("bundled:llama", dtype="float32")
    store = build_store(
        read_documents(["bundled:calibration"]),
        loaded.tokenizer,
        window=1024,
        max_windows=24,
        min_tokens=16,
        held_out=0.1,
    )
    settings = CaptureSettings(split=(6,), features=("state", "previous-1"))
    capture(loaded, store, settings, tmp_path / "capture")
    assert [sample.prompt.numel() for sample in held_samples(store, 2, 4)]
    report = solve_with(
        loaded,
        load_capture(tmp_path / "capture"),
        SolveSettings(
            features=("auto",),
            candidates=("previous-1", "previous-1/rank=16", "previous-1/rank=16/metric=input"),
            penalty="channel",
            drop_lead=True,
            alphas=(0.001, 0.01),
            probe_samples=12,
            probe_strings="numbers",
            probe_windows=3,
            probe_prompt=600,
            probe_tail=128,
        ),
        tmp_path / "maps",
    )
    frontier = report.splits[0].frontier
    assert frontier is not None
    plain, low, full = (frontier.of(name) for name in ("plain", "previous-1_r16", "previous-1"))
    assert frontier.exact_recalled > 0.95
    assert plain.copied is not None
    assert low.copied is not None
    assert full.copied is not None
    assert plain.copied < 0.93
    assert full.copied > 0.95
    assert low.copied > full.copied - 0.05
    assert low.copied_gain is not None
    assert low.copied_gain.above_zero
    assert low.extra < 0.1
    assert frontier.chosen.startswith("previous-1_r16")
    assert low.energy is not None
    assert 0.5 < low.energy < 1
    assert plain.keys < low.keys < full.keys
    assert "previous-1_r16" in candidate_table(6, frontier.model_dump()).chosen
