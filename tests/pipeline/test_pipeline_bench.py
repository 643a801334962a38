"""`bench prefill`: what is timed, against what, and how it is reported."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ridgefit import cost
from ridgefit.cli.app import main
from ridgefit.errors import BadInput, CheckFailed
from ridgefit.maps import Defaults, Fingerprint, LayerMap, MapSet, SplitMaps, write_maps
from ridgefit.pipeline import bench
from ridgefit.pipeline.bench import PrefillBench, bench_prefill
from ridgefit.pipeline.bench_arms import arms_of, random_model, with_fills
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


WINDOW: dict[str, Any] = {"features": ("state", "previous-1", "previous-2"), "rank": 16}


def made(seed: int) -> tuple[torch.nn.Module, dict[Any, Any]]:
    config = cost.preset_config("cpu") | {"vocab_size": 64, "num_hidden_layers": 2}
    generator = torch.Generator("cpu").manual_seed(seed)
    model = random_model(config, torch.float32, torch.device("cpu"), "sdpa", generator)
    shape, settings = (
        cost.shape_from_config(config),
        BenchPrefillSettings(split=(1,), tail=(1,), arms=("ridge",), **WINDOW),
    )
    arms = [arm for arm in arms_of(shape, settings, 9, {}) if arm.name == "ridge"]
    plain, window = with_fills(shape, arms, {}, model, generator)
    assert plain.fill is not None
    assert window.fill is not None
    return model, {1: plain.fill, "window": window.fill}


def test_weights_and_maps_depend_on_the_seed_alone() -> None:
    (one, maps_one), (same, maps_same), (other, maps_other) = made(1), made(1), made(2)
    for name, weight in one.state_dict().items():
        assert torch.equal(weight, same.state_dict()[name])
    head = "model.embed_tokens.weight"
    assert not torch.equal(one.state_dict()[head], other.state_dict()[head])
    first, again, else_ = (maps[1].maps.layer(1).weight for maps in (maps_one, maps_same, maps_other))
    assert torch.equal(first, again)
    assert not torch.equal(first, else_)
    wide, wide_again = (maps["window"].maps.layer(1).weight for maps in (maps_one, maps_same))
    assert torch.equal(wide, wide_again)
    assert torch.equal(wide[:, : len(first)], first)
    assert wide.shape[1] == len(first) + 16
    assert 0.05 < float((first.float() - torch.eye(len(first))).norm(dim=1).mean()) < 0.2


def test_an_arm_that_fills_nothing_is_not_a_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stock:
        def applied(self, model: Any, **settings: Any) -> Any:
            from contextlib import nullcontext

            from ridgefit.runtime import FillReport

            return nullcontext(FillReport())

    stock: Any = Stock()
    monkeypatch.setattr(
        bench,
        "with_fills",
        lambda shape, arms, *_: [a if a.name == "exact" else replace(a, fill=stock) for a in arms],
    )
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
    monkeypatch.setattr(bench, "random_model", lambda *_: pytest.fail("a model was built"))
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
        settings, config = BenchPrefillSettings(preset=name), cost.preset_config(name)
        for tokens in bench._lengths(settings, config, torch.device("cpu")):
            arms = arms_of(shape, settings, tokens, {})
            assert [arm.name for arm in arms] == ["exact", "identity", "ridge", "pop"]
            assert tokens <= cost.preset_config(name)["max_position_embeddings"]


def test_plain_and_window_maps_side_by_side() -> None:
    settings = BenchPrefillSettings(**SMALL | {"split": (3,), "arms": ("ridge",)}, **WINDOW, layers="first:2")
    found = bench_prefill(settings)
    plain, window = (t for t in found.timings if t.tokens == 56 and t.arm == "ridge")
    assert (plain.reads, window.reads) == (
        "state",
        "state + previous-1 + previous-2 through rank 16, 7 layers the state alone",
    )
    shape = cost.shape_from_config(cost.preset_config("cpu") | {"vocab_size": 64})
    filled = 56 - 8 - 2
    more = filled * shape.hidden * (2 * 16 + 2 * 16)
    counted = cost.arm_macs(shape, cost.Arm(fill="ridge", split=3, tail=8, sink_rows=2), 56)
    exact = cost.arm_macs(shape, cost.Arm(fill="exact"), 56)
    assert plain.limit == exact / counted
    assert window.limit == exact / (counted + more)


@pytest.fixture
def own(tiny_loaded: Callable[..., Any], tmp_path: Path) -> tuple[str, Path]:
    """A tiny model's folder and maps of two splits for it, one of which reads the previous row."""
    loaded = tiny_loaded()
    port = loaded.port
    unit, none = torch.eye(port.hidden), torch.zeros(port.hidden)
    plain = MapSet.of(
        dict.fromkeys(range(2, port.n_layers), LayerMap(unit, none)), defaults=Defaults(tail=9, sink_rows=2)
    )
    wide = MapSet.of(
        dict.fromkeys(range(3, port.n_layers), LayerMap(torch.eye(port.hidden, 2 * port.hidden), none)),
        features=("state", "previous-1"),
        defaults=Defaults(tail=1000),
    )
    write_maps(
        tmp_path / "maps",
        [SplitMaps(plain), SplitMaps(wide)],
        fingerprint=Fingerprint.of(loaded.identity()),
    )
    return loaded.ref, tmp_path / "maps"


def test_a_users_own_model_and_maps(own: tuple[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    model, maps = own
    line = ["bench", "prefill", "--model", model, "--maps", str(maps), "--tokens", "48", "--repeats", "2"]
    assert main([*line, "--arms", "ridge,identity", "--json"]) == 0
    found = PrefillBench.model_validate_json(capsys.readouterr().out)
    assert [(t.arm, t.split, t.tail, t.sink_rows, t.reads) for t in found.timings] == [
        ("exact", None, None, 0, None),
        ("ridge", 2, 9, 2, "state"),
        ("ridge", 3, 12, 0, "state + previous-1"),
        ("identity", 2, 9, 2, None),
        ("identity", 3, 12, 0, None),
    ]
    assert found.preset is None
    assert found.base is not None
    assert found.base["tokenizer_sha256"]
    assert set(found.maps or {}) == {"ridgefit.json", "s2.safetensors", "s3.safetensors"}
    assert all(timing.speedup > 0 for timing in found.timings)
    assert main([*line, "--split", "3", "--arms", "ridge"]) == 0
    assert "previous-1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--split", "4"), "holds no split 4, only 2, 3"),
        (("--features", "state,previous-1"), "maps say themselves what they read"),
        (("--vocab", "99"), "has its own vocabulary"),
        (("--tokens", "12", "--split", "2", "--tail", "12"), "leaves nothing to fill"),
    ],
)
def test_what_does_not_go_with_own_maps(
    more: tuple[str, ...], words: str, own: tuple[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model, maps = own
    assert main(["bench", "prefill", "--model", model, "--maps", str(maps), "--tokens", "48", *more]) == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_maps_need_their_model(own: tuple[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "prefill", "--maps", str(own[1])]) == 2
    assert "maps belong to a model" in " ".join(capsys.readouterr().err.split())


def test_maps_of_another_model_are_refused(
    own: tuple[str, Path], tiny_folder: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    other = str(tiny_folder("qwen3"))
    assert main(["bench", "prefill", "--model", other, "--maps", str(own[1]), "--tokens", "48"]) == 2
    assert "family" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("rows", "label", "chosen", "counted"),
    [
        ("random,share=0.25", "random 25 %", 14, 14),
        ("sinks,count=5,explicit,rows=20,rows=21", "sinks 5, explicit (rows=20/21)", 3 + 2, 3 + 2),
        ("attention,count=3", "attention 3", 3, 3),
        ("probe,count=3,window=6", "probe (count=3 window=6)", 3, 3 + 6),
    ],
)
def test_rows_are_timed_beside_the_plain_fill(
    rows: str, label: str, chosen: int, counted: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two sink rows are exact in any case: of five first rows three are left to choose."""
    line = "bench prefill --tokens 56 --tail 8 --split 6 --sink-rows 2 --arms identity,ridge --vocab 64"
    assert main([*line.split(), "--repeats", "1", "--warmup", "0", "--rows", rows, "--json"]) == 0
    found = PrefillBench.model_validate_json(capsys.readouterr().out).timings
    assert [(t.arm, t.rows, t.rows_chosen) for t in found] == [
        ("exact", None, 0),
        ("identity", None, 0),
        ("identity", label, chosen),
        ("ridge", None, 0),
        ("ridge", label, chosen),
    ]
    shape = cost.shape_from_config(cost.preset_config("cpu") | {"vocab_size": 64})
    exact = cost.arm_macs(shape, cost.Arm(fill="exact"), 56)
    for timing in found[1:]:
        fill = "ridge" if timing.arm == "ridge" else "identity"
        more = counted if timing.rows else 0
        arm = cost.Arm(fill=fill, split=6, tail=8, sink_rows=2, chosen_rows=more)
        assert timing.limit == exact / cost.arm_macs(shape, arm, 56)
        assert timing.share == timing.speedup / timing.limit
    assert found[2].limit < found[1].limit


def test_rows_by_what_tokens_are(own: tuple[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Of a user's own model, whose tokenizer tells; its random prompt holds a digit or it does not."""
    model, maps = own
    line = ["bench", "prefill", "--model", model, "--maps", str(maps), "--tokens", "48", "--repeats", "1"]
    assert main([*line, "--arms", "ridge", "--split", "2", "--rows", "digits,random,count=2", "--json"]) == 0
    plain, chosen = PrefillBench.model_validate_json(capsys.readouterr().out).timings[1:]
    assert (plain.rows, chosen.rows) == (None, "digits, random 2")
    assert chosen.rows_chosen >= 2
    assert main([*line, "--arms", "ridge", "--split", "2", "--rows", "random,count=2"]) == 0
    said = capsys.readouterr().out
    assert "chosen" in said
    assert "random 2" in said


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "--rows special",
            "special rows are chosen by what tokens are, and random weights have no tokenizer",
        ),
        ("--rows random,like=digits", "random weights have no tokenizer"),
        ("--rows random,share=1.1", "must be less than or equal to 1"),
        ("--rows atention", "did you mean attention"),
        ("--rows probe", "the probe asks with 256 rows, and the tail that holds them has 8"),
        ("--rows attention,layers=3,layers=7", "layer 7 is not among the exact layers 0 to 5"),
        ("--rows explicit,rows=48", "row 48 is outside the prefix, which is rows 0 to 47 of 56"),
        (
            "--rows random --attention flash_attention_2",
            "chosen rows need masks, and flash_attention_2 has none",
        ),
        ("--rows random --arms pop", "for the pop arm, which has its own split and tail"),
    ],
)
def test_rows_that_are_refused_before_anything_is_built(
    line: str, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "random_model", lambda *_: pytest.fail("a model was built"))
    before = "bench prefill --tokens 56 --repeats 1" + ("" if "pop" in line else " --split 6 --tail 8")
    assert main([*before.split(), *line.split()]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
