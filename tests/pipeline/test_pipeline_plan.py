"""Plans: the paper's crossovers and the reference limits, from the function and from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ridgefit import cost
from ridgefit.cli.app import main
from ridgefit.errors import BadInput
from ridgefit.pipeline.plan import find_config, plan
from ridgefit.recipe import PlanSettings


def printed(capsys: pytest.CaptureFixture[str], line: str) -> Any:
    assert main([*line.split(), "--json"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return json.loads(said.out)


@pytest.mark.parametrize(
    ("model", "split", "tokens"),
    [
        ("llama-3.1-8b", 16, 14_333),
        ("llama-3.1-8b", 20, 45_660),
        ("qwen3-8b", 13, 10_552),
        ("qwen3-8b", 22, 58_891),
    ],
)
def test_crossovers_from_the_command_line(
    model: str, split: int, tokens: int, capsys: pytest.CaptureFixture[str]
) -> None:
    found = printed(capsys, f"plan {model} --split {split} --tail 4096 --tokens 32768 --arm ridge")
    assert found["cheaper_than_pop_above"] == tokens


@pytest.mark.parametrize(
    ("split", "tokens", "ratio"), [(13, 32_768, 0.759), (22, 32_768, 1.042), (22, 65_536, 0.994)]
)
def test_ratios_from_the_command_line(
    split: int, tokens: int, ratio: float, capsys: pytest.CaptureFixture[str]
) -> None:
    arm = printed(capsys, f"plan qwen3-8b --split {split} --tail 4096 --tokens {tokens}")
    pop = printed(capsys, f"plan qwen3-8b --tokens {tokens} --arm pop")
    assert round(arm["macs"]["arm"] / pop["macs"]["arm"], 3) == ratio
    assert arm["macs"]["pop"] == pop["macs"]["arm"]
    assert (pop["split"], pop["tail"]) == (24, 1)


@pytest.mark.parametrize(
    ("line", "limit"),
    [
        ("--split 13 --tail 4096 --tokens 16384", 1.672),
        ("--split 18 --tail 4096 --tokens 16384", 1.459),
        ("--split 22 --tail 4096 --tokens 16384", 1.324),
        ("--split 13 --tail 2048 --tokens 16384", 1.949),
        ("--split 24 --tail 1 --tokens 16384 --arm identity", 1.476),
        ("--split 13 --tail 4096 --tokens 32768", 1.951),
        ("--split 18 --tail 4096 --tokens 32768", 1.617),
        ("--split 22 --tail 4096 --tokens 32768", 1.422),
        ("--split 13 --tail 2048 --tokens 32768", 2.162),
        ("--split 24 --tail 1 --tokens 32768 --arm identity", 1.481),
    ],
)
def test_limits_from_the_command_line(line: str, limit: float, capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, f"plan qwen3-8b {line}")
    assert round(found["speedup_limit"], 3) == limit
    assert found["macs"]["exact"] / found["macs"]["arm"] == found["speedup_limit"]


def test_the_exact_arm_saves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "plan qwen3-8b --arm exact")
    assert (found["speedup_limit"], found["map_bytes"], found["split"]) == (1.0, 0, None)


def test_only_ridge_has_maps(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "plan qwen3-8b --split 13")["map_bytes"] == 23 * (2**25 + 2**13)
    for arm in ("none", "identity"):
        assert printed(capsys, f"plan qwen3-8b --split 13 --arm {arm}")["map_bytes"] == 0


@pytest.mark.parametrize("arm", ["ridge", "identity", "none", "exact", "pop"])
def test_text_for_people(arm: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "qwen3-8b", "--arm", arm, "--rate", "200"]) == 0
    said = capsys.readouterr().out
    assert "speedup limit" in said
    assert "split 13" in said
    assert "time at this rate" in said


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("qwen3-8b --split 0", "split 0 is not a layer between 1 and 35"),
        ("qwen3-8b --split 36", "split 36 is not"),
        ("qwen3-8b --split -1", "split -1 is negative"),
        ("qwen3-8b --tail 0", "tail 0 is not between 1 and"),
        ("qwen3-8b --tail -4", "tail -4 is negative"),
        ("qwen3-8b --tail 20000 --tokens 16384", "tail 20000 is not between 1 and the prompt's 16384"),
        ("qwen3-8b --tokens 0", "0 tokens"),
        ("qwen3-8b --arm pop --split 3", "pop arm has its own split"),
        ("qwen3-8b --memory 16", "prefill with the maps resident of qwen3-8b needs"),
        ("qwen3-8b --memory 20", "capture of qwen3-8b needs"),
        ("qwen3-80b", "the model qwen3-80b does not exist"),
        ("bundled:nothing", "no bundled model 'nothing'"),
    ],
)
def test_refusals(line: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *line.split()]) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert (said.out, said.err.count("\n")) == ("", 1)


def test_what_fits_is_not_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "plan qwen3-8b --memory 141")["model_bytes"] > 16e9


def test_configs_are_found_in_folders_and_files(tmp_path: Path) -> None:
    config = cost.preset_config("cpu")
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert find_config(str(tmp_path)) == find_config(str(tmp_path / "config.json")) == config
    assert plan(PlanSettings(model=str(tmp_path), tokens=1024)).shape["layers"] == config["num_hidden_layers"]


def test_bad_config_files(tmp_path: Path) -> None:
    for text, words in (("{", "not valid JSON"), ("[]", "not a JSON object"), ('{"model_type": "x"}', "'x'")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(BadInput, match=words):
            plan(PlanSettings(model=str(tmp_path)))


def test_wider_maps_cost_what_they_cost() -> None:
    """Reference limits of maps that read three rows."""
    for tokens, limit in ((16_384, 1.515), (32_768, 1.754)):
        settings = PlanSettings(model="qwen3-8b", split=13, tail=4096, tokens=tokens, map_width=3 * 4096)
        assert round(plan(settings).speedup_limit, 3) == limit


def test_sink_rows_are_counted() -> None:
    base = {"model": "qwen3-8b", "split": 13, "tail": 4096}
    none, four = (plan(PlanSettings(**base, sink_rows=rows)).macs["arm"] for rows in (0, 4))
    assert none < four < none * 1.001


def test_suggestions_are_used_where_nothing_is_said() -> None:
    found = plan(PlanSettings(model="llama-3.1-8b", tokens=8192))
    assert (found.split, found.tail) == (found.suggestion.split, found.suggestion.tail) == (16, 2048)


def test_seconds_follow_the_rate() -> None:
    found = plan(PlanSettings(model="qwen3-8b", rate=100))
    assert found.seconds is not None
    assert found.seconds["exact"] == pytest.approx(found.macs["exact"] / 1e14)
    assert found.seconds["capture"] == pytest.approx(found.capture["macs"] / 1e14)
    assert plan(PlanSettings(model="qwen3-8b")).seconds is None


def test_capture_agrees_with_what_a_capture_asks_for() -> None:
    """The capture room checks free memory and disk by its own estimate; a plan must not promise less."""
    from ridgefit.capture import estimate
    from ridgefit.recipe import CaptureSettings

    shape = cost.shape_from_config(cost.preset_config("cpu"))
    asked = estimate(shape, CaptureSettings(split=(6,)), longest=2048, tokens=400_000, product="fp32")
    found = plan(PlanSettings(model="cpu", split=6)).capture
    assert (found["memory_bytes"], found["disk_bytes"]) == (asked.sums, asked.disk)


@pytest.mark.parametrize(
    ("line", "limits"),
    [
        ("", (1.672, 1.951, 2.377)),
        ("--features state,previous-1,previous-2", (1.515, 1.754, 2.217)),
        ("--features state,previous-1,previous-2 --rank 256", (1.666, 1.943, 2.371)),
        # That count leaves the MLP's own products out, which map_width alone does too.
        ("--map-width 20480", (1.385, 1.594, 2.078)),
        ("--features state,previous-1,mlp", (1.370, 1.575, 2.061)),
    ],
)
def test_limits_of_maps_that_see_their_neighbours(
    line: str, limits: tuple[float, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """An independent count, at 16K, 32K and 120K tokens."""
    for tokens, limit in zip((16_384, 32_768, 120_000), limits, strict=True):
        found = printed(capsys, f"plan qwen3-8b --split 13 --tail 4096 --tokens {tokens} {line}")
        assert found["speedup_limit"] == pytest.approx(limit, abs=6e-4)


def test_layers_that_read_the_state_alone_and_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    base = "plan qwen3-8b --split 13 --tail 4096 --tokens 16384 --sink-rows 4"
    plain = printed(capsys, base)
    found = printed(capsys, f"{base} --features state,previous-1 --rank 32 --layers first:5")
    hidden, filled, late = 4096, 16_384 - 4096 - 4, 36 - 13
    assert found["macs"]["arm"] - plain["macs"]["arm"] == filled * (5 * hidden * 32 + hidden * 32)
    assert found["map_bytes"] - plain["map_bytes"] == 2 * (5 * hidden * 32 + hidden * 32)
    assert plain["map_bytes"] == 2 * late * (hidden * hidden + hidden)
    assert found["reads"] == "state + previous-1 through rank 32, 18 layers the state alone"
    assert plain["reads"] == "state"
    wide = printed(capsys, f"{base} --features state,mlp")
    width = hidden + 12_288
    assert wide["capture"]["memory_bytes"] == cost.capture_bytes(
        cost.shape_from_config(cost.preset_config("qwen3-8b")), (13,), width=width
    )
    assert wide["macs"]["arm"] - plain["macs"]["arm"] == filled * (
        late * hidden * 12_288 + 2 * hidden * 12_288
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--features state,previus-1", "did you mean 'previous-1'"),
        ("--features state,lower-14 --split 13", "lower-14 lies below the first layer"),
        ("--features previous-1 --rank 5000", "wider than the 4096 inputs that previous-1"),
        ("--rank 8", "maps of the state alone have no bottleneck"),
        ("--features previous-1 --layers 1-3", "none of the late layers"),
        ("--features previous-1 --arm identity", "the identity arm has no maps"),
        ("--features previous-1 --map-width 5000", "follows from its features"),
        ("--features previous-1 --split 99", "split 99 is not a layer between"),
    ],
)
def test_reads_that_cannot_be(line: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "qwen3-8b", *line.split()]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
