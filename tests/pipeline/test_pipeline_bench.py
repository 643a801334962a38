"""`bench prefill`: what is timed, against what, and how it is reported."""

from __future__ import annotations

import json
import statistics
from typing import Any

import pytest
import torch

from ridgefit import cost
from ridgefit.cli.app import main
from ridgefit.errors import BadInput, CheckFailed
from ridgefit.pipeline import bench
from ridgefit.pipeline.bench import PrefillBench, bench_prefill
from ridgefit.recipe import BenchPrefillSettings

SMALL: dict[str, Any] = {
    "tokens": (40, 56),
    "split": (3, 6),
    "tail": (8,),
    "repeats": 3,
    "warmup": 1,
    "vocab": 64,
    "sink_rows": 2,
}


@pytest.fixture(scope="module")
def result() -> PrefillBench:
    steps: list[tuple[int, int, str]] = []
    found = bench_prefill(BenchPrefillSettings(**SMALL), lambda *step: steps.append(step))
    assert [step[0] for step in steps] == list(range(1, 49))
    assert {step[1] for step in steps} == {2 * 6 * 4}
    return found


def test_every_arm_is_timed_beside_exact(result: PrefillBench) -> None:
    arms = [(t.tokens, t.arm, t.split, t.tail, t.sink_rows) for t in result.timings]
    for tokens in (40, 56):
        assert [arm[1:] for arm in arms if arm[0] == tokens] == [
            ("exact", None, None, 0),
            ("identity", 3, 8, 2),
            ("identity", 6, 8, 2),
            ("ridge", 3, 8, 2),
            ("ridge", 6, 8, 2),
            ("pop", 8, 1, 0),
        ]


def test_figures_follow_from_the_rounds(result: PrefillBench) -> None:
    config = cost.preset_config("cpu") | {"vocab_size": 64}
    shape = cost.shape_from_config(config)
    for timing in result.timings:
        exact = next(t for t in result.timings if (t.tokens, t.arm) == (timing.tokens, "exact"))
        assert len(timing.rounds) == 3
        assert timing.seconds == statistics.median(timing.rounds)
        assert timing.speedup == exact.seconds / timing.seconds
        assert timing.share == timing.speedup / timing.limit
        fill = {"exact": "exact", "ridge": "ridge"}.get(timing.arm, "identity")
        arm = cost.Arm.model_validate(
            {
                "fill": fill,
                "split": timing.split or 0,
                "tail": timing.tail or 0,
                "sink_rows": timing.sink_rows,
            }
        )
        counted = cost.prefill_macs(shape, arm, timing.tokens)
        assert timing.limit == counted.speedup_limit
        assert timing.rate == pytest.approx(counted.arm / timing.seconds / 1e12)


def test_the_file_says_what_ran(result: PrefillBench) -> None:
    assert result.versions["torch"] == torch.__version__
    assert (result.device, result.dtype, result.attention, result.vocab) == ("cpu", "float32", "sdpa", 64)
    assert result.machine["cores"]
    assert PrefillBench.model_validate_json(result.model_dump_json()) == result


def made(seed: int) -> tuple[torch.nn.Module, dict[int, Any]]:
    config = cost.preset_config("cpu") | {"vocab_size": 64, "num_hidden_layers": 2}
    generator = torch.Generator("cpu").manual_seed(seed)
    model = bench._random_model(config, torch.float32, torch.device("cpu"), "sdpa", generator)
    plans = {9: [("ridge", cost.Arm(fill="ridge", split=1, tail=1))]}
    return model, bench._random_maps(cost.shape_from_config(config), plans, model, generator)


def test_weights_and_maps_depend_on_the_seed_alone() -> None:
    (one, maps_one), (same, maps_same), (other, maps_other) = made(1), made(1), made(2)
    for name, weight in one.state_dict().items():
        assert torch.equal(weight, same.state_dict()[name])
    head = "model.embed_tokens.weight"
    assert not torch.equal(one.state_dict()[head], other.state_dict()[head])
    first, again, else_ = (maps[1].maps.layer(1).weight for maps in (maps_one, maps_same, maps_other))
    assert torch.equal(first, again)
    assert not torch.equal(first, else_)
    assert 0.05 < float((first.float() - torch.eye(len(first))).norm(dim=1).mean()) < 0.2


def test_an_arm_that_fills_nothing_is_not_a_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stock:
        def applied(self, model: Any, **settings: Any) -> Any:
            from contextlib import nullcontext

            from ridgefit.runtime import FillReport

            return nullcontext(FillReport())

    monkeypatch.setattr(bench, "_fill", lambda arm, maps: None if arm.fill == "exact" else Stock())
    with pytest.raises(CheckFailed, match="filled nothing"):
        bench_prefill(BenchPrefillSettings(tokens=(24,), tail=(8,), repeats=1, warmup=0, vocab=64))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"preset": "gpt"}, "no preset 'gpt'"),
        ({"split": (0,)}, "split 0"),
        ({"split": (12,)}, "split 12"),
        ({"split": (-1,)}, "split -1"),
        ({"tail": (0,)}, "tail 0"),
        ({"tail": (40,)}, "leaves nothing to fill"),
        ({"tail": (39,), "sink_rows": 1}, "leaves nothing to fill"),
    ],
)
def test_refused_before_anything_is_built(
    change: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "_random_model", lambda *_: pytest.fail("a model was built"))
    with pytest.raises(BadInput, match=words):
        bench_prefill(BenchPrefillSettings(**{"tokens": (40,), "tail": (8,)} | change))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_device_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "prefill", "--device", "cuda", "--tokens", "40", "--tail", "8"]) == 2
    assert "is not on this machine" in capsys.readouterr().err


def test_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    line = "bench prefill --tokens 32 --tail 8 --split 6 --arms ridge,pop --repeats 1 --warmup 0 --vocab 64"
    assert main([*line.split(), "--json", "--seed", "3"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [timing["arm"] for timing in found["timings"]] == ["exact", "ridge", "pop"]
    assert found["seed"] == 3
    assert main(line.split()) == 0
    said = capsys.readouterr().out
    assert "prefill of cpu on" in said
    assert "share" in said


def test_defaults_fit_the_preset() -> None:
    """16K and 32K for real dimensions, something a laptop can do otherwise."""
    for name in cost.preset_names():
        shape = cost.shape_from_config(cost.preset_config(name))
        for tokens in bench._LENGTHS.get(name, bench._LONG):
            arms = bench._arms(shape, BenchPrefillSettings(preset=name), tokens)
            assert [arm for arm, _ in arms] == ["exact", "identity", "ridge", "pop"]
            assert tokens <= cost.preset_config(name)["max_position_embeddings"]
