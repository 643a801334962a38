"""Bad inputs through the command line: one sentence, exit status 2, and nothing half-written."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from ridgefit.cli.app import main
from ridgefit.errors import BadInput
from ridgefit.files import require_unused

TEXT = "the cat sat on the mat and the dog sat on the log; 12 34 "
Folder = Callable[..., Path]


class Bench(NamedTuple):
    """A place to go wrong in."""

    model: Path
    data: Path
    out: Path
    refused: Callable[..., str]

    def capture(self, words: str, **changes: Any) -> str:
        """Run a capture that must be refused with a sentence that holds `words`."""
        given = {"split": 3, "data": self.data, "window": 64, "out": self.out, "device": "cpu"} | changes
        model = given.pop("model", self.model)
        options = [part for key, value in given.items() for part in (f"--{key.replace('_', '-')}", value)]
        return self.refused(words, "capture", model, *options)


@pytest.fixture
def bench(tiny_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Bench:
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"text": (TEXT[i:] + TEXT[:i]) * 3}) + "\n" for i in range(40)))
    out = tmp_path / "out"

    def refused(words: str, *arguments: Any) -> str:
        capsys.readouterr()
        status = main([*map(str, arguments), "--quiet"])
        said = capsys.readouterr()
        # transformers' own bars are not ours to judge
        lines = [line for line in said.err.splitlines() if line and not line.startswith("Loading weights")]
        assert (status, said.out) == (2, ""), said.err
        assert len(lines) == 1, said.err
        assert lines[0].startswith("ridgefit: ")
        assert words in lines[0]
        assert not [path for path in tmp_path.rglob("*") if "partial" in path.name]
        return lines[0]

    return Bench(tiny_folder("llama"), data, out, refused)


def nothing_but_a_lock(folder: Path) -> bool:
    return not folder.exists() or {path.name for path in folder.iterdir()} <= {".lock"}


def test_a_model_that_is_not_there(bench: Bench, tmp_path: Path) -> None:
    for command in ("capture", "doctor", "generate", "eval"):
        rest = {
            "capture": ("--split", 3, "--data", bench.data, "--out", bench.out),
            "doctor": (),
            "generate": ("--prompt", "x", "--arm", "exact"),
            "eval": ("--arms", "exact", "--tasks", "needle", "--out", bench.out),
        }[command]
        bench.refused(f"{tmp_path}/none", command, tmp_path / "none", *rest)
        if command in ("capture", "generate"):
            bench.refused("no weights", command, "qwen3-8b", *rest)
            bench.refused("no weights", command, bench.model / "config.json", *rest)
    assert not bench.out.exists()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("GatedRepoError", "gated"),
        ("RepositoryNotFoundError", "no public model"),
        ("RevisionNotFoundError", "no revision"),
        ("LocalEntryNotFoundError", "cannot be reached"),
        ("OfflineModeIsEnabled", "cannot be reached"),
    ],
)
def test_names_that_the_hub_refuses(
    error: str, words: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    def refuse(*_: Any, **__: Any) -> str:
        kind = getattr(huggingface_hub.errors, error)
        made = kind.__new__(kind)
        Exception.__init__(made, "401 Client Error.\nRequest ID: x")
        raise made

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refuse)
    bench.refused(words, "doctor", "org/name@main")
    bench.refused(words, "plan", "org/name@main")
    bench.capture(words, model="org/name@main")
    assert not bench.out.exists()


@pytest.mark.parametrize(
    ("split", "words"), [(0, "split 0"), (6, "split 6"), (-1, "split -1"), ("x", "must be a whole number")]
)
def test_splits_outside_the_model(split: Any, words: str, bench: Bench) -> None:
    bench.capture(words, split=split)
    assert not bench.out.exists()


def test_a_split_named_twice(bench: Bench) -> None:
    bench.capture("name one twice", split="3,3")
    assert not bench.out.exists()


def test_a_device_that_is_not_there(bench: Bench) -> None:
    for device in ("cuda:77", *(() if torch.cuda.is_available() else ("cuda",))):
        bench.capture("not on this machine", device=device)
        bench.refused("not on this machine", "bench", "prefill", "--device", device)
    assert not bench.out.exists()


def test_a_folder_that_holds_something_is_refused_before_a_model_is_loaded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ridgefit.pipeline import capture

    def load(*_: Any, **__: Any) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr(capture, "load_model", load)
    bench.out.mkdir()
    (bench.out / "thesis.tex").touch()
    bench.capture("holds no capture")


def test_folders_that_may_not_be_written(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write anywhere, so that the system's refusal is put in its mouth."""

    def refuse(*path: Any, **_: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", *map(str, path[:1]))

    given = ("--arms", "exact", "--tasks", f"nll,data={bench.data},prompt=32,tail=8,scored=4")
    line = ("eval", bench.model, *given, "--device", "cpu", "--out", bench.out)
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.mkdir", refuse)
        for said in (bench.capture("cannot write"), bench.refused("cannot write", *line)):
            assert "a folder that you may write to" in said
    with monkeypatch.context() as patch:
        patch.setattr("tempfile.mkdtemp", refuse)
        assert f"cannot write {bench.out} " in bench.refused(
            "", "quantize", wide_maps(tmp_path), "--out", bench.out
        )
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(BadInput, match="cannot write"):
        require_unused(bench.out)


def wide_maps(folder: Path) -> Path:
    from ridgefit.maps import LayerMap, MapSet, write_source

    layers = {layer: LayerMap(torch.eye(128), torch.zeros(128)) for layer in (3, 4, 5)}
    write_source(folder / "wide.safetensors", MapSet.of(layers))
    return folder / "wide.safetensors"


def test_tails_that_cannot_be(bench: Bench) -> None:
    line = ("generate", bench.model, "--prompt", TEXT, "--arm", "identity", "--split", 3, "--device", "cpu")
    bench.refused("--tail is '0'", *line, "--tail", 0)
    tasks = f"nll,data={bench.data},prompt=32,tail=32"
    arms = "exact,identity,split=3"
    given = ("--arms", arms, "--tasks", tasks, "--out", bench.out, "--device", "cpu")
    bench.refused("would leave nothing to fill", "eval", bench.model, *given)
    bench.refused("tail 4096 is not between", "plan", bench.model, "--tail", 4096, "--tokens", 128)
    assert nothing_but_a_lock(bench.out)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b'{"text": ""}\n{"text": "  "}\n', "empty documents"),
        (b'{"text": "a"}\n' * 20, "too short"),
        (b'{"text": "caf\xe9"}\n', "UTF-8"),
        (b'{"text": "a"\n', "JSON"),
        (b'{"other": "a"}\n', "text"),
    ],
    ids=["empty", "blank", "one-token", "latin-1", "broken", "no column"],
)
def test_text_that_cannot_be_used(content: bytes, words: str, bench: Bench) -> None:
    bench.data.write_bytes(content)
    bench.capture(words)
    assert nothing_but_a_lock(bench.out)


def test_text_that_is_not_there(bench: Bench, tmp_path: Path) -> None:
    bench.capture("none.jsonl", data=tmp_path / "none.jsonl")
    assert not bench.out.exists()


def copied(bench: Bench, to: Path) -> Path:
    shutil.copytree(bench.model, to)
    return to


def test_weights_that_are_not_numbers(bench: Bench, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    broken = copied(bench, tmp_path / "nan")
    weights = load_file(broken / "model.safetensors")
    name = next(key for key in weights if "layers.2.mlp.down" in key)
    weights[name][0, 0] = float("nan")
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    bench.refused("not finite", "doctor", broken, "--device", "cpu")
    bench.capture("not finite", model=broken)
    line = ("generate", broken, "--prompt", TEXT, "--device", "cpu")
    bench.refused("not numbers", *line, "--arm", "exact")
    bench.refused("not numbers", *line, "--arm", "identity", "--split", 3, "--tail", 8)


def test_weights_that_are_not_numbers_do_not_blame_the_maps(bench: Bench, maps: Path) -> None:
    from safetensors.torch import load_file, save_file

    broken = copied(bench, maps.parent / "nan")
    weights = load_file(broken / "model.safetensors")
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    bench.refused("not finite", "verify", maps, "--model", broken, "--device", "cpu")


@pytest.mark.parametrize("keep", [0, 5, 200, -40])
def test_weights_that_are_cut_short(keep: int, bench: Bench, tmp_path: Path) -> None:
    broken = copied(bench, tmp_path / "cut")
    file = broken / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    bench.capture("", model=broken)
    assert nothing_but_a_lock(bench.out)


@pytest.fixture
def maps(bench: Bench, tmp_path: Path) -> Path:
    from ridgefit.maps import Fingerprint, LayerMap, MapSet, write_source
    from ridgefit.models import load_model

    loaded = load_model(str(bench.model), device="cpu")
    layers = {layer: LayerMap(torch.eye(32), torch.zeros(32)) for layer in (3, 4, 5)}
    path = tmp_path / "maps.safetensors"
    write_source(path, MapSet.of(layers, fingerprint=Fingerprint.of(loaded.identity())))
    return path


def test_maps_of_another_model(bench: Bench, maps: Path, tiny_folder: Folder) -> None:
    for other in (tiny_folder("llama", hidden_size=64), tiny_folder("llama", num_hidden_layers=8)):
        line = ("--maps", maps, "--tail", 8, "--prompt", TEXT, "--device", "cpu")
        bench.refused("do not belong to this model", "generate", other, *line)


@pytest.mark.parametrize("keep", [0, 5, 200, -40])
def test_maps_that_are_cut_short(keep: int, bench: Bench, maps: Path, tmp_path: Path) -> None:
    maps.write_bytes(maps.read_bytes()[:keep])
    bench.refused("", "generate", bench.model, "--maps", maps, "--tail", 8, "--prompt", TEXT)
    bench.refused("", "inspect", maps)
    bench.refused("", "quantize", maps, "--out", tmp_path / "int8")
    assert not (tmp_path / "int8").exists()


def test_too_few_rows_for_no_penalty(bench: Bench, tmp_path: Path) -> None:
    bench.data.write_text("".join(json.dumps({"text": TEXT[i:] + TEXT[:i]}) + "\n" for i in range(3)))
    line = ("capture", bench.model, "--split", 3, "--data", bench.data, "--window", 8, "--device", "cpu")
    options = ("--max-windows", 2, "--min-tokens", 4, "--held-out", 0.4, "--out", bench.out, "--quiet")
    assert main([*map(str, (*line, *options))]) == 0
    given = ("--model", bench.model, "--device", "cpu", "--alphas", 0, "--out", tmp_path / "maps")
    bench.refused("rows", "solve", bench.out, *given)
    assert not (tmp_path / "maps").exists()


def test_a_full_disk(bench: Bench, maps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    said = bench.capture("free disk space")
    assert "0.00 GiB" not in said, "in units in which there is something to see"
    assert nothing_but_a_lock(bench.out)


def test_a_folder_in_use(bench: Bench) -> None:
    from ridgefit.files import folder_lock

    with folder_lock(bench.out):
        bench.capture("in use by another ridgefit process")
    assert nothing_but_a_lock(bench.out)


def test_a_folder_that_holds_something_else(bench: Bench, maps: Path) -> None:
    bench.out.mkdir()
    (bench.out / "thesis.txt").write_text("mine")
    bench.refused("", "quantize", maps, "--out", bench.out)
    assert [path.name for path in bench.out.iterdir()] == ["thesis.txt"]
