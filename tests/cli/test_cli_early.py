"""What settings and a config show to be wrong is said before a model is loaded, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml

from ridgefit.cli.app import main
from ridgefit.maps import FREQUENCIES, Frequencies, LayerMap, MapSet, write_source
from ridgefit.models import load

NLL = "nll,data=bundled:development,prompt=512,tail=128,scored=64"
IDENTITY = "identity,split=6"
PLAN = "plan bundled:llama --split 6 --features state,mlp"
BENCH = "bench prefill --model bundled:llama --tokens 512 --tail 64 --arms ridge --features state,mlp"
RIFT_ADA = "generate bundled:llama --prompt x --draft self --draft-policy rift-ada"
DEMO = Path(__file__).parents[2] / "recipes" / "demo.yaml"


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder; a model that is loaded fails the test."""

    def loaded(*_: object, **__: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(load, "_loaded", loaded)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], room: Path, *words: str, status: int = 2) -> str:
    before = sorted(room.rglob("*"))
    found = main([*words, "--quiet"])
    said = capsys.readouterr()
    assert (found, said.out) == (status, ""), said.err
    assert len(said.err.strip().splitlines()) == 1, said.err
    assert sorted(room.rglob("*")) == before, "something was written"
    return said.err


@pytest.mark.parametrize(
    ("arms", "tasks", "words"),
    [
        (f"{IDENTITY},rows=attention share=1.5", NLL, "must be less than or equal to 1"),
        (
            f"{IDENTITY},rows=atention",
            NLL,
            "question_blind, probe, random, longer_tail, explicit: did you mean",
        ),
        (f"{IDENTITY},rows=atention", NLL, "did you mean attention?\n"),
        (f"{IDENTITY},rows=attention pool=0", NLL, "rows[0].pool is '0', must be greater than or equal to 1"),
        (f"{IDENTITY},rows=probe pool=4", NLL, "rows[0].pool: a pool of 4 rows has no middle one"),
        (f"{IDENTITY},rows=attention shard=0.2", NLL, "there is no setting --arms[0].rows[0].shard"),
        (f"{IDENTITY},rows=probe", NLL, "the probe asks with 256 rows, and the tail that holds them has 128"),
        (f"{IDENTITY},tail=64,rows=probe window=100", NLL, "the tail that holds them has 64"),
        ("pop,rows=probe", NLL, "the tail that holds them has 1: lower the probe's `window`"),
        (f"{IDENTITY},rows=attention layers=3/7", NLL, "layer 7 is not among the exact layers 0 to 5"),
        ("identity,split=2,rows=attention", NLL, "none of the layers 3, 7, 11, 15 lies below split 2"),
        ("identity,split=2,rows=question_blind", NLL, "none of the layers 3, 7, 11, 15 lies below split 2"),
        (f"{IDENTITY},rows=random like=probe", NLL, "the tail that holds them has 128"),
        (f"{IDENTITY},rows=random like=nothing", NLL, "cannot be like 'nothing', which is no selector"),
        (f"{IDENTITY},rows=random share=0.1 count=3", NLL, "random rows have both a share and a count"),
        (f"{IDENTITY},rows=digits,rows=digits", NLL, "rows are chosen by digits twice"),
        (f"{IDENTITY},rows=explicit rows=384", NLL, "row 384 is outside the prefix, which is rows 0 to 383"),
        (f"{IDENTITY},rows=protected", NLL, "none lies beside the maps"),
        (f"{IDENTITY},rows=protected frequencies=gone", NLL, "there is no frequency table gone"),
        (f"{IDENTITY},splice=keys,corrections=key_shift", NLL, "a splice leaves corrections nothing"),
        ("none,split=6,rows=digits", NLL, "none is none"),
        ("identity,split=12", NLL, "splits at layer 12, and the model has layers 0 to 11"),
        (f"{IDENTITY},tail=512", NLL, "a tail of 512 would leave nothing to fill"),
        (IDENTITY, "needle,prompt=100000", "positions and the model has"),
        (IDENTITY, "needle,haystack=gone.txt", "gone.txt"),
        (IDENTITY, "nll,data=gone.jsonl", "gone.jsonl"),
        (IDENTITY, "agreement,data=gone.jsonl", "gone.jsonl"),
    ],
)
def test_arms_that_no_sample_could_make_right(
    arms: str, tasks: str, words: str, room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ("eval", "bundled:llama", "--arms", arms, "--tasks", tasks, "--out", str(room / "out"))
    said = refused(capsys, room, *line)
    assert words in said


@pytest.mark.parametrize(
    ("arms", "words"),
    [
        ("none,split=6", "no fill hides columns, which flash_attention_2 has no mask for"),
        (
            f"{IDENTITY},sink-rows=4",
            "sink rows stand apart from the tail, which flash_attention_2 has no mask",
        ),
        (f"{IDENTITY},rows=digits", "chosen rows need masks, and flash_attention_2 has none"),
        (f"{IDENTITY},corrections=key_shift", "corrections need masks, and flash_attention_2 has none"),
    ],
)
def test_masks_that_an_attention_does_not_have(
    arms: str, words: str, room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ("eval", "bundled:llama", "--arms", arms, "--tasks", NLL, "--out", str(room / "out"))
    said = refused(capsys, room, *line, "--attention", "flash_attention_2")
    assert words in said
    assert "arm '" in said
    assert "in task 'nll 512/128'" in said


def test_a_frequency_table_of_another_tokenizer(room: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layers = {layer: LayerMap(torch.eye(256), torch.zeros(256)) for layer in range(6, 12)}
    write_source(room / "maps.safetensors", MapSet.of(layers))
    Frequencies.counted([torch.arange(9)], 9, "0" * 64).write(room / FREQUENCIES)
    line = ("eval", "bundled:llama", "--maps", "maps.safetensors", "--tasks", NLL, "--out", "out")
    said = refused(capsys, room, *line, "--arms", "ridge,rows=protected")
    assert "it counts 9 tokens, the model has" in said


def test_a_results_folder_in_use(room: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (room / "out").mkdir()
    (room / "out" / "thesis.tex").touch()
    for line in (
        ("eval", "bundled:llama", "--arms", IDENTITY, "--tasks", NLL),
        ("eval", "bundled:kimi_linear", "--policy", "gone"),
        ("calibrate", "recall", "bundled:kimi_linear", "--data", "bundled:calibration"),
    ):
        assert "out already exists and is not empty" in refused(capsys, room, *line, "--out", "out")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("eval bundled:kimi_linear --policy ./gone --out out", "policy folder gone does not exist"),
        ("calibrate recall bundled:kimi_linear --data gone.jsonl --out out", "gone.jsonl"),
        ("calibrate recall bundled:kimi_linear --data bundled:calibration --selector x --out out", "'x'"),
        ("calibrate refresh bundled:llama --data gone.jsonl --out out", "gone.jsonl"),
        ("train draft bundled:draft --target bundled:llama --data gone.jsonl --out out", "gone.jsonl"),
        ("eval bundled:llama --tasks acceptance,data=gone.jsonl --out out", "gone.jsonl"),
        (RIFT_ADA, "rift-ada needs a controller"),
        (
            f"{RIFT_ADA} --controller ./gone",
            "controller gone does not exist",
        ),
    ],
)  # fmt: skip
def test_policies_and_drafts(line: str, words: str, room: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in refused(capsys, room, *line.split())


def test_a_run_is_refused_before_its_capture(room: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ridge arms too, hours before there are maps for them."""
    recipe = yaml.safe_load(DEMO.read_text()) | {"work": "work"}
    place = room / "run.yaml"
    for rows, words in (
        (["probe"], "the probe asks with 256 rows"),
        ([{"attention": {"layers": [9]}}], "layer 9 is not among the exact layers"),
        ([{"explicit": {"rows": [4000]}}], "row 4000 is outside the prefix"),
    ):
        recipe["evaluate"]["arms"] = [{"kind": "ridge", "rows": rows}]
        recipe["evaluate"]["tasks"][0]["tail"] = 128
        place.write_text(yaml.safe_dump(recipe))
        said = refused(capsys, room, "run", str(place))
        assert words in said
        assert "in task 'nll 1024/128'" in said


def test_maps_of_an_arm_of_a_run_are_looked_for(room: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that the run itself will write are not there yet."""
    recipe = yaml.safe_load(DEMO.read_text()) | {"work": "work"}
    place = room / "run.yaml"
    recipe["evaluate"]["arms"] = [{"kind": "ridge", "maps": "./gone/maps"}]
    place.write_text(yaml.safe_dump(recipe))
    assert "gone/maps does not exist" in refused(capsys, room, "run", str(place))
    recipe["evaluate"]["arms"] = [{"kind": "ridge", "maps": "work/maps-int8"}]
    place.write_text(yaml.safe_dump(recipe))
    assert main(["run", str(place), "--quiet"]) == 1
    assert "a model was loaded" in capsys.readouterr().err


def test_protected_rows_of_a_run_wait_for_its_capture(room: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table that they need is not there yet, so that loading the model is what comes next."""
    recipe = yaml.safe_load(DEMO.read_text()) | {"work": "work"}
    recipe["evaluate"]["arms"] = [{"kind": "ridge", "rows": ["protected"]}]
    place = room / "run.yaml"
    place.write_text(yaml.safe_dump(recipe))
    assert main(["run", str(place), "--quiet"]) == 1
    assert "a model was loaded" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (f"{PLAN} --layers first:99",
         "layers first:99 of candidate 'mlp_first99' are more than the 5 layers above split 6: use first:5"),
        (f"{PLAN} --layers 8-99",
         "reach past the last layer, which is 11: use 8-11"),
        (f"{PLAN} --layers 2-8",
         "begin below split 6, where no layer is filled: use 6-8"),
        (f"{PLAN} --layers 20-30", "are none of the late layers"),
        (f"{BENCH} --split 6 --layers first:6", "are more than the 5 layers above split 6"),
        (f"{BENCH} --split 6,8 --layers 5-9", "begin below split 6"),
    ],
)  # fmt: skip
def test_layers_that_there_are_not(
    arguments: str, words: str, room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refused(capsys, room, *arguments.split())


def test_the_first_layers_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    line = f"{PLAN} --layers first:5 --json"
    assert main(line.split()) == 0
