"""Commands end to end on tiny models, in process: what they print, where, and their exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from ridgefit.cli.app import main

Run = Callable[..., Any]
TEXT = "the cat sat on the mat and the dog sat on the log; 12 34 "


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """`run("plan", "x", status=0)` -> the object on stdout; there must be exactly one."""

    def go(*arguments: Any, status: int = 0) -> Any:
        found = main([*map(str, arguments), "--json"])
        said = capsys.readouterr()
        assert found == status, said.err
        assert said.out.count("\n") == 1, said.out
        return json.loads(said.out)

    return go


@pytest.fixture
def text(run: Run, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    """`text("plan", "x", status=0)` -> stdout and stderr without `--json`."""

    def go(*arguments: Any, status: int = 0) -> tuple[str, str]:
        found = main([*map(str, arguments)])
        said = capsys.readouterr()
        assert found == status, said.err
        return said.out, said.err

    return go


@pytest.fixture(scope="session")
def wide(tiny_folder: Callable[..., Path]) -> Path:
    """A model whose width is a multiple of 128, as int8 maps need."""
    return tiny_folder("llama", hidden_size=128)


@pytest.fixture(scope="session")
def maps(tmp_path_factory: pytest.TempPathFactory, wide: Path) -> Path:
    """A source file of near-identity maps for it, layers 3 to 5."""
    from ridgefit.maps import Fingerprint, LayerMap, MapSet, write_source
    from ridgefit.models import load_model

    loaded = load_model(str(wide), device="cpu")
    generator = torch.Generator().manual_seed(0)
    layers = {
        layer: LayerMap(
            torch.eye(128) + 0.02 * torch.randn(128, 128, generator=generator),
            0.02 * torch.randn(128, generator=generator),
        )
        for layer in range(3, 6)
    }
    path = tmp_path_factory.mktemp("maps") / "s3.safetensors"
    write_source(path, MapSet.of(layers, fingerprint=Fingerprint.of(loaded.identity())))
    return path


def test_inspect(run: Run, text: Run, maps: Path) -> None:
    found = run("inspect", maps)
    assert found["splits"]["3"]["layers"] == [3, 6]
    assert found["splits"]["3"]["shape"] == [128, 128]
    out, err = text("inspect", maps)
    assert "layers 3 to 5, maps 128 x 128 of state" in out
    assert err == ""


def test_quantize(run: Run, text: Run, maps: Path, tmp_path: Path) -> None:
    found = run("quantize", maps, "--out", tmp_path / "int8")
    assert found["largest_error_steps"] <= 0.51
    assert run("inspect", tmp_path / "int8")["layout"] == "format1-int8"
    again = run("quantize", maps, "--out", tmp_path / "int8", status=2)
    assert "already exists" in again["error"]
    out, _ = text("quantize", maps, "--out", tmp_path / "other")
    assert "largest error" in out


def test_verify(run: Run, text: Run, maps: Path, wide: Path, tmp_path: Path) -> None:
    assert run("verify", maps)["ok"] is True
    found = run("verify", maps, "--model", wide, "--device", "cpu", "--prompt", 40, "--tail", 8)
    assert found["ok"] is True
    assert any(line["check"] == "fingerprint" for line in found["lines"])
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(maps.read_bytes()[:-50])
    out, err = text("verify", damaged, status=1)
    assert "FAILED" in out
    assert "Traceback" not in err
    assert run("verify", damaged, status=1)["ok"] is False


def test_verify_wants_a_model_with_its_settings(run: Run, maps: Path) -> None:
    assert "--model is required" in run("verify", maps, "--device", "cpu", status=2)["error"]


def test_generate(run: Run, text: Run, maps: Path, wide: Path, tmp_path: Path) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text(TEXT * 4)
    line = ("generate", wide, "--maps", maps, "--prompt-file", prompt, "--tail", 8, "--new-tokens", 4)
    found = run(*line, "--device", "cpu")
    assert (found["split"], found["tail"], found["new_tokens"] <= 4) == (3, 8, True)
    assert found["rows_filled"] == found["prompt_tokens"] - 8
    parts = run(*line, "--device", "cpu", "--prefill-chunk", 13)
    assert (parts["text"], parts["rows_filled"]) == (found["text"], found["rows_filled"])
    out, err = text(*line, "--device", "cpu")
    assert out.strip() == found["text"].strip()
    assert "first token after" in err
    whole = [sys.executable, "-m", "ridgefit.cli.app", *map(str, line), "--device", "cpu", "--quiet"]
    quiet = subprocess.run(whole, capture_output=True, text=True, check=True, timeout=120)
    assert (quiet.stdout, quiet.stderr) == (out, "")


def test_generate_with_rows(run: Run, text: Run, maps: Path, wide: Path) -> None:
    line = ("generate", wide, "--maps", maps, "--prompt", TEXT * 4, "--tail", 8, "--new-tokens", 2)
    line += ("--device", "cpu")
    found = run(*line, "--rows", "sinks,count=2,digits,probe,count=5,window=8")
    assert found["rows_chosen"] >= 2 + 5
    assert found["rows_filled"] == found["prompt_tokens"] - 8 - found["rows_chosen"]
    assert found["peak_bytes"] > 1 << 20
    _, err = text(*line, "--rows", "sinks 4", "--rows", "random count=3")
    assert "and 7 chosen" in err
    for rows, said in (
        ("probe", "256 rows, and the tail that holds them has 8"),
        ("attention,share=1.5", "less than or equal to 1"),
        ("sink", "did you mean sinks"),
        ("protected", "none lies beside the maps"),
        ("random,share=0.1,count=3", "both a share and a count"),
        ("explicit,rows=9999", "outside the prefix"),
    ):
        assert said in run(*line, "--rows", rows, status=2)["error"]
    line = ("generate", wide, "--prompt", TEXT * 4, "--tail", 8, "--arm", "none", "--split", 3)
    assert "none is none" in run(*line, "--rows", "special", status=2)["error"]


def test_doctor(run: Run, text: Run, wide: Path) -> None:
    found = run("doctor", wide, "--device", "cpu", "--needle-samples", 0)
    assert found["ok"] is True
    assert found["suggestion"]["split"] == 3
    out, _ = text("doctor", wide, "--device", "cpu", "--needle-samples", 0)
    assert "start with --split 3" in out


def test_eval_and_report(run: Run, text: Run, maps: Path, wide: Path, tmp_path: Path) -> None:
    data = tmp_path / "dev.jsonl"
    rows = [json.dumps({"text": (TEXT[i:] + TEXT[:i]) * 8}) for i in range(3)]
    data.write_text("\n".join(rows) + "\n")
    line = (
        *("eval", wide, "--maps", maps, "--device", "cpu", "--resamples", 100, "--seed", 3),
        *("--arms", "exact,none,split=3,identity,ridge,sink_rows=2"),
        *("--tasks", f"nll,data={data},prompt=64,tail=16,scored=8", "--out", tmp_path / "eval"),
    )
    found = run(*line)
    assert [arm["kind"] for arm in found["arms"]] == ["exact", "none", "identity", "ridge"]
    assert found["identity"]["settings"]["seed"] == 3 or "seed" in json.dumps(found["identity"])
    out, _ = text(*line)
    assert "nll" in out
    assert run("report", tmp_path / "eval")["report"] == str(tmp_path / "eval" / "report.md")
    assert "# Evaluation" in (tmp_path / "eval" / "report.md").read_text()


@pytest.fixture
def calibration(tmp_path: Path) -> Path:
    path = tmp_path / "calibration.jsonl"
    rows = [json.dumps({"text": (TEXT[i:] + TEXT[:i]) * 3}) for i in range(40)]
    path.write_text("\n".join(rows) + "\n")
    return path


def test_capture_merge_solve(run: Run, text: Run, wide: Path, calibration: Path, tmp_path: Path) -> None:
    """Two shards merged give the moments of one capture, and maps come out of either."""
    line = ("capture", wide, "--device", "cpu", "--split", "2,3", "--data", calibration, "--window", 64)
    whole = run(*line, "--out", tmp_path / "whole")
    assert whole["record"]["state"] == "complete"
    for shard in (1, 2):
        run(*line, "--shard", f"{shard}/2", "--out", tmp_path / f"part{shard}")
    merged = run("merge", tmp_path / "part1", tmp_path / "part2", "--out", tmp_path / "merged")
    assert merged["moments"] == whole["record"]["moments"]
    given = ("--model", wide, "--device", "cpu", "--alphas", "0.01,1", "--drop-lead")
    solved = run("solve", tmp_path / "merged", "--out", tmp_path / "maps", *given)
    assert [split["split"] for split in solved["splits"]] == [2, 3]
    assert run("verify", tmp_path / "maps", "--model", wide, "--device", "cpu")["ok"] is True
    out, _ = text("inspect", tmp_path / "maps")
    assert out.count("  fit ") == out.count("  held out ") == 2, "each split has its own"
    out, _ = text("solve", tmp_path / "whole", "--out", tmp_path / "again", *given)
    assert "degrees of freedom" in out
    out, _ = text("merge", tmp_path / "part2", tmp_path / "part1", "--out", tmp_path / "merged2")
    assert whole["record"]["moments"]["2"]["sha256"] in out
    assert "in use" not in run(*line, "--out", tmp_path / "whole", status=2)["error"]


def test_a_recipe_fills_what_the_command_line_leaves_out(
    run: Run, wide: Path, calibration: Path, tmp_path: Path
) -> None:
    recipe = {
        "name": "x",
        "work": str(tmp_path / "work"),
        "model": {"model": str(wide), "device": "cpu"},
        "data": {"data": [str(calibration)], "window": 64},
        "capture": {"split": [2], "lead": 0},
        "evaluate": {"arms": [{"kind": "exact"}], "tasks": [{"task": "needle", "prompt": 96, "tail": 16}]},
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    found = run("capture", "--recipe", path, "--split", "4", "--out", tmp_path / "out")
    identity = found["record"]["identity"]
    assert (identity["split"], identity["lead"]) == ([4], 0)
    refused = run("capture", "--recipe", path, "--window", "9999", "--out", tmp_path / "no", status=2)
    assert "9999" in refused["error"]


def test_a_recipe_for_one_command_need_not_be_whole(
    run: Run, wide: Path, calibration: Path, tmp_path: Path
) -> None:
    path = tmp_path / "my.yaml"
    path.write_text(
        "evaluate:\n  arms: [{kind: exact}]\n  resamples: 100\n  tasks:\n"
        f"    - {{task: nll, data: [{calibration}], prompt: 32, tail: 8, scored: 4, documents: 2}}\n"
    )
    line = ("eval", wide, "--device", "cpu", "--recipe", path, "--out", tmp_path / "out")
    assert run(*line)["tasks"]
    more = (*line[:-1], tmp_path / "more", "--set", "evaluate.tasks.0.documents=1")
    assert run(*more)["tasks"][0]["samples"] == 1
    assert "no setting evaluate.task: did you" in run(*line, "--set", "evaluate.task=1", status=2)["error"]
    alone = (
        "eval",
        wide,
        "--arms",
        "exact",
        "--tasks",
        "needle",
        "--out",
        tmp_path,
        "--set",
        "evaluate.seed=1",
    )
    assert "name one with --recipe" in run(*alone, status=2)["error"]
    assert "MODEL is required" in run("eval", "--recipe", path, "--out", tmp_path, status=2)["error"]
    path.write_text(path.read_text().replace("resamples", "resmaples"))
    refused = run(*line, status=2)["error"]
    assert "my.yaml line 3: there is no setting evaluate.resmaples: did you mean evaluate.res" in refused
    path.write_text("evaluat: {}\n")
    assert "line 1: there is no setting evaluat: did you mean evaluate" in run(*line, status=2)["error"]


def test_eval_looks_at_maps_before_it_loads_a_model(
    run: Run, wide: Path, maps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ridgefit import models

    def load(*_: Any, **__: Any) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr(models, "load_model", load)
    line = ("eval", wide, "--device", "cpu", "--tasks", "needle", "--out", tmp_path / "out")
    assert "needs ridge maps" in run(*line, "--arms", "ridge", status=2)["error"]
    assert "not 4" in run(*line, "--arms", "ridge,split=4", "--maps", maps, status=2)["error"]


@pytest.mark.parametrize(
    ("about", "model"),
    [
        ({"name": "bundled:llama", "revision": None}, "bundled:llama"),
        ({"name": "org/name", "revision": "abc"}, "org/name@abc"),
        ({"name": "folder", "revision": None}, None),
        ({}, None),
    ],
)
def test_the_captured_model_is_found_again(
    about: dict[str, Any], model: str | None, run: Run, tmp_path: Path
) -> None:
    from ridgefit.errors import BadInput
    from ridgefit.pipeline.captured import captured_model

    record = {
        "state": "complete",
        "identity": {"model": {"dtype": "float32", "attention": "eager"}},
        "about": {"model": about},
        "shard": None,
        "leaves": [0, 8],
        "windows": 1,
        "tokens": 2,
    }
    (tmp_path / "capture.json").write_text(json.dumps(record))
    if model is None:
        with pytest.raises(BadInput, match="does not say where its model"):
            captured_model(tmp_path)
    else:
        found = captured_model(tmp_path)
        assert (found.model, found.dtype, found.attention) == (model, "float32", "eager")


def test_run(run: Run, text: Run, wide: Path, calibration: Path, tmp_path: Path) -> None:
    """The whole chain from a recipe, and once more: everything finished is kept."""
    recipe = {
        "name": "tiny",
        "work": str(tmp_path / "work"),
        "model": {"model": str(wide), "device": "cpu"},
        "data": {"data": [str(calibration)], "window": 64},
        "capture": {"split": [3]},
        "solve": {"alphas": [0.01, 1.0]},
        "evaluate": {
            "arms": [{"kind": "exact"}, {"kind": "identity", "split": 3}, {"kind": "ridge"}],
            "tasks": [
                {
                    "task": "nll",
                    "data": [str(calibration)],
                    "prompt": 32,
                    "tail": 8,
                    "scored": 4,
                    "documents": 2,
                }
            ],
            "resamples": 100,
        },
    }
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(recipe))
    first = run("run", path, "--seed", 5)
    assert first["stages"]["capture"] == "done"
    assert first["checks"]["ok"] is True
    out, _ = text("run", path, "--seed", 5)
    assert "capture" in out
    assert "kept" in out
    assert "written to" in out
    refused = run("run", path, "--set", "capture.bach=2", status=2)
    assert "did you mean capture.batch" in refused["error"]


def test_report_of_nothing(run: Run, tmp_path: Path) -> None:
    assert "no finished evaluation" in run("report", tmp_path, status=2)["error"]
    assert "gone does not exist: name the --out of" in run("report", tmp_path / "gone", status=2)["error"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("inspect none", "does not exist"),
        ("quantize none --out o", "does not exist"),
        ("verify none", "does not exist"),
        ("doctor none", "does not exist"),
        ("generate none --prompt x", "does not exist"),
        ("eval none --arms exact --tasks needle --out o", "does not exist"),
        ("capture none --split 3 --data x --out o", "none"),
        ("merge none --out o", "capture folder none does not exist"),
        ("solve none --out o", "capture folder none does not exist"),
        ("run none.yaml", "none.yaml does not exist"),
        ("run none.yaml --set a", "does not exist"),
    ],
)
def test_what_is_not_there(
    line: str, words: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = run(*line.split(), status=2)
    assert words in found["error"]
    assert list(tmp_path.iterdir()) == []
