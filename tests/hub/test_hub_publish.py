"""From maps and an evaluation to a published card, and back into a model by name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hub_server import TOKEN, Server

import ridgefit
from ridgefit.cli.app import main
from ridgefit.errors import BadInput
from ridgefit.evaluate import evaluate
from ridgefit.hub import Hub
from ridgefit.maps import Defaults, Fingerprint, LayerMap, MapSet, SplitMaps, load_maps, write_maps
from ridgefit.pipeline.bench import bench_prefill
from ridgefit.pipeline.publish import publish
from ridgefit.recipe import (
    ArmSettings,
    BenchPrefillSettings,
    EvalSettings,
    NeedleSettings,
    NllSettings,
    PushSettings,
)

BASE = "org/tiny@" + "a" * 40
TEXT = "the cat sat on the mat and the dog sat on the log; 12 34 and so on. "


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory, tiny_loaded: Callable[..., Any]) -> Path:
    """Near-identity maps of the tiny llama, splits 3 and 4."""
    loaded = tiny_loaded("llama")
    generator = torch.Generator().manual_seed(0)
    width = loaded.port.hidden

    def maps(split: int) -> MapSet:
        layers = {
            layer: LayerMap(
                torch.eye(width) + 0.02 * torch.randn(width, width, generator=generator), torch.zeros(width)
            )
            for layer in range(split, loaded.port.n_layers)
        }
        return MapSet.of(layers, defaults=Defaults(tail=16))

    folder = tmp_path_factory.mktemp("fitted") / "maps"
    splits = (SplitMaps(maps(split), alphas=(0.03,) * (6 - split), rows=100) for split in (3, 4))
    write_maps(folder, splits, fingerprint=Fingerprint.of(loaded.identity()))
    return folder


@pytest.fixture(scope="module")
def evaluated(
    tmp_path_factory: pytest.TempPathFactory, tiny_loaded: Callable[..., Any], fitted: Path
) -> Path:
    """A small real evaluation of split 3."""
    folder = tmp_path_factory.mktemp("evaluated")
    data = folder / "texts.jsonl"
    data.write_text("\n".join(json.dumps({"text": f"{n} {TEXT * 12}{n * 7}"}) for n in range(4)))
    settings = EvalSettings(
        arms=(ArmSettings(kind="identity", split=3), ArmSettings(kind="ridge", split=3)),
        tasks=(
            NllSettings(data=(str(data),), prompt=96, tail=24, scored=24),
            NeedleSettings(prompt=440, tail=24, samples=4, new_tokens=4, chat=False),
        ),
        resamples=100,
    )
    evaluate(tiny_loaded("llama"), settings, fitted, folder / "out")
    return folder / "out"


def settings(fitted: Path, **given: Any) -> PushSettings:
    return PushSettings(maps=fitted, repo="me/maps", base_model=BASE, **given)


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, int | float):
        yield float(value)
    elif isinstance(value, dict):
        for item in value.values():
            yield from numbers(item)
    elif isinstance(value, list):
        for item in value:
            yield from numbers(item)


def table_cells(card: str) -> list[str]:
    body = card.split("## Results")[1].split("## Limits")[0]
    rows = [line for line in body.splitlines() if line.startswith("|") and "---" not in line]
    return [cell for row in rows for cell in row.split("|")[2:-1] if re.search(r"\d", cell)]


def test_every_number_of_the_card_is_one_of_the_evaluation(
    server: Server, hub: Hub, fitted: Path, evaluated: Path, tmp_path: Path
) -> None:
    publish(settings(fitted, evaluation=evaluated, out=tmp_path / "r"), hub)
    card = (tmp_path / "r" / "README.md").read_text()
    known = list(numbers(json.loads((evaluated / "evaluation.json").read_text())))
    cells = [cell for cell in table_cells(card) if "95" not in cell]
    assert len(cells) >= 6
    for cell in cells:
        for written in re.findall(r"[+−-]?\d+(?:\.\d+)?", cell):
            value = float(written.replace("−", "-"))
            digits = len(written.partition(".")[2])
            near = 0.5 * 10**-digits + 1e-9
            assert any(abs(value - n) <= near or abs(value - 100 * n) <= near for n in known), (written, cell)
    assert (
        json.loads((tmp_path / "r" / "evaluation.json").read_text())
        == json.loads((evaluated / "evaluation.json").read_text())
        or "texts.jsonl" in (tmp_path / "r" / "evaluation.json").read_text()
    )
    assert str(evaluated.parent) not in (tmp_path / "r" / "evaluation.json").read_text()
    data = yaml.safe_load(card.split("---\n")[1])
    assert data["license"] == "apache-2.0", "the base model's card was asked"
    assert data["base_model"] == "org/tiny"
    assert "stated by the publisher" in card
    for path in re.findall(r"!\[[^]]*\]\(([^)]*)\)", card):
        assert (tmp_path / "r" / path).is_file()
    assert "needles found" in card
    assert "key" in card


def test_a_changed_number_changes_the_card(
    server: Server, hub: Hub, fitted: Path, evaluated: Path, tmp_path: Path
) -> None:
    table = json.loads((evaluated / "evaluation.json").read_text())
    score = table["tasks"][0]["measures"][0]["arms"][0]
    for measure in table["tasks"][0]["measures"]:
        measure["arms"][0]["mean"] = 7.654
    assert score["mean"] == 7.654
    (tmp_path / "evaluation.json").write_text(json.dumps(table))
    publish(settings(fitted, evaluation=tmp_path / "evaluation.json", out=tmp_path / "r"), hub)
    assert "7.654" in (tmp_path / "r" / "README.md").read_text()


def test_the_evaluation_must_be_of_these_maps(
    server: Server, hub: Hub, fitted: Path, evaluated: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    identity = Fingerprint.model_validate(json.loads((fitted / "ridgefit.json").read_text())["fingerprint"])
    layers = {n: LayerMap(torch.eye(32), torch.zeros(32)) for n in (3, 4, 5)}
    write_maps(other, [SplitMaps(MapSet.of(layers))], fingerprint=identity)
    with pytest.raises(BadInput, match=r"the evaluation is of other maps: ridgefit\.json had sha256"):
        publish(settings(other, evaluation=evaluated), hub)
    table = json.loads((evaluated / "evaluation.json").read_text())
    table["identity"]["model"]["tokenizer_sha256"] = "0" * 64
    (tmp_path / "evaluation.json").write_text(json.dumps(table))
    with pytest.raises(BadInput, match="the evaluation is of another model: its tokenizer_sha256 is 0000"):
        publish(settings(fitted, evaluation=tmp_path / "evaluation.json"), hub)
    table["identity"]["maps"] = None
    table["identity"]["model"]["tokenizer_sha256"] = identity.tokenizer_sha256
    (tmp_path / "evaluation.json").write_text(json.dumps(table))
    with pytest.raises(BadInput, match="the evaluation has no ridge arm"):
        publish(settings(fitted, evaluation=tmp_path / "evaluation.json"), hub)
    assert server.uploads == []


def test_a_repository_goes_as_it_is(server: Server, hub: Hub, fitted: Path, tmp_path: Path) -> None:
    first = publish(settings(fitted, out=tmp_path / "r"), hub)
    again = publish(PushSettings(maps=tmp_path / "r", repo="me/maps"), hub)
    rebuilt = publish(settings(fitted), hub)
    assert (again.moved, rebuilt.moved) == (False, False)
    assert first.sha == again.sha == rebuilt.sha


def test_a_licence_that_nobody_knows(server: Server, hub: Hub, fitted: Path) -> None:
    server.cards.clear()
    with pytest.raises(BadInput, match=r"the licence of org/tiny is not known .*: name it with --license"):
        publish(settings(fitted), hub)
    assert publish(settings(fitted, license="mit", dry_run=True), hub).sha is None
    server.cards["org/tiny"] = {"license": "llama3.2"}
    with pytest.raises(BadInput, match=r"inherit its licence llama3\.2, not mit"):
        publish(settings(fitted, license="mit"), hub)


@pytest.mark.filterwarnings("ignore:maps were fitted on name")
def test_by_name_into_a_model(
    server: Server,
    hub: Hub,
    fitted: Path,
    tiny_model: Callable[..., Any],
    random_tokens: Callable[..., torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sha = publish(settings(fitted), hub).sha
    monkeypatch.setattr("ridgefit.hub.download.Hub", lambda: hub)
    fill = ridgefit.RidgeFill.load(f"me/maps@{sha}", split=4)
    assert isinstance(fill, ridgefit.RidgeFill)
    model, ids = tiny_model("llama"), random_tokens(64)
    outputs = []
    for each in (fill, ridgefit.RidgeFill.load(fitted, split=4)):
        with torch.no_grad(), each.applied(model, tail=16) as report:
            outputs.append(model(ids).logits[:, -16:])
        assert report.rows_filled == 48
    assert torch.equal(*outputs)


def test_commands_take_names(
    server: Server,
    hub: Hub,
    fitted: Path,
    tiny_folder: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    publish(settings(fitted), hub)
    monkeypatch.setattr("ridgefit.hub.download.Hub", lambda: hub)
    assert main(["verify", "me/maps", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"]
    prompt = ["--prompt", TEXT, "--tail", "16", "--split", "4", "--new-tokens", "2", "--json"]
    assert main(["generate", str(tiny_folder("llama")), "--maps", "me/maps", *prompt]) == 0
    assert json.loads(capsys.readouterr().out)["rows_filled"] > 0


def test_maps_of_another_model_are_refused_by_field_and_both_values(
    server: Server, hub: Hub, fitted: Path, tiny_loaded: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(settings(fitted), hub)
    monkeypatch.setattr("ridgefit.hub.download.Hub", lambda: hub)
    fill = ridgefit.RidgeFill.load("me/maps", split=3)
    mine = tiny_loaded("llama").identity()
    said: dict[str, str] = {}
    assert fill.maps is not None
    assert fill.check(tiny_loaded("llama").port, tiny_loaded("llama").tokenizer) == []
    changes: dict[str, Any] = {
        "tokenizer_sha256": "0" * 64,
        "layer_kinds": ["full_attention"] * 5 + ["sliding_attention"],
        "hidden": 64,
        "n_layers": 7,
        "vocab": 321,
        "kv_heads": 4,
        "head_dim": 16,
    }
    for field, value in changes.items():
        with pytest.raises(BadInput) as refused:
            fill.maps.check({**mine, field: value})
        said[field] = str(refused.value)
    assert (
        f"tokenizer sha256 is {mine['tokenizer_sha256']} in the maps and {'0' * 64} in the model"
        in said.pop("tokenizer_sha256")
    )
    assert "kind of layer 5 is full_attention in the maps and sliding_attention in the model" in said.pop(
        "layer_kinds"
    )
    for field, text in said.items():
        assert f"{field} is {mine[field]} in the maps and {changes[field]} in the model" in text
    other = tiny_loaded("mistral-sliding")
    with pytest.raises(BadInput, match="family is llama in the maps and mistral in the model"):
        fill.check(other.port, other.tokenizer)


def test_the_commands_in_a_process_of_their_own(server: Server, fitted: Path, tmp_path: Path) -> None:
    """HF_ENDPOINT and HF_TOKEN as a user sets them; one JSON object; `repo@sha` printed."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    env |= {"HF_ENDPOINT": server.endpoint, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "home")}
    env["HF_HUB_DISABLE_XET"] = "1"

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ridgefit.cli.app", *map(str, arguments)]
        return subprocess.run(command, env=env, capture_output=True, text=True, cwd=tmp_path, check=False)

    pushed = run("push", fitted, "me/maps", "--base-model", BASE, "--tag", "v1")
    assert pushed.returncode == 0, pushed.stderr
    sha = server.repos["me/maps"].branches["main"]
    assert f"me/maps@{sha} is tagged v1" in pushed.stdout
    pulled = run("pull", "me/maps@v1", "--split", "4", "--out", "got", "--json")
    assert pulled.returncode == 0, pulled.stderr
    assert json.loads(pulled.stdout)["splits"] == [4]
    assert load_maps(tmp_path / "got", 4).layers == range(4, 6)
    looked = run("inspect", "me/maps")
    assert looked.returncode == 0, looked.stderr
    assert f"me/maps@{sha}" in looked.stdout
    missing = run("pull", "me/nothing")
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1), missing.stderr
    assert missing.stderr.startswith("ridgefit: Hub repository me/nothing: the repository does not exist")


def test_a_dry_run_of_the_command(fitted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["push", str(fitted), "me/maps", "--base-model", BASE, "--license", "mit", "--dry-run"]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sha"] is None
    assert {file["path"] for file in found["files"]} >= {
        "config.json",
        "SHA256SUMS",
        "s3/proj.L3.safetensors",
    }
    assert main(arguments) == 0
    assert "nothing was sent" in capsys.readouterr().out


@pytest.fixture(scope="module")
def benched(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Callable[..., Path], fitted: Path) -> Path:
    """Times of these maps on their own model, as `bench prefill --json` prints them."""
    options = BenchPrefillSettings(
        model=str(tiny_folder("llama")), maps=fitted, tokens=(40,), arms=("ridge",), repeats=1, warmup=0
    )
    path = tmp_path_factory.mktemp("benched") / "bench.json"
    path.write_text(bench_prefill(options).model_dump_json())
    return path


def test_a_card_states_times_with_their_machine(
    server: Server, hub: Hub, fitted: Path, benched: Path, tmp_path: Path
) -> None:
    publish(settings(fitted, license="mit", bench=benched, out=tmp_path / "out"), hub)
    card = (tmp_path / "out" / "README.md").read_text()
    speed = card.partition("## Speed")[2].partition("## Limits")[0]
    found = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert found["machine"]["cpu"] in speed
    assert "transformers' own forward" in speed
    for timing in found["timings"][1:]:
        row = f"| {timing['split']} | 16 | 0 | 40 | "
        assert row in speed
        assert f" | {timing['speedup']:.2f} | {timing['limit']:.2f} |" in speed
    assert "and is not stated here" not in card
    assert "bench.json" in server.repos["me/maps"].main()
    assert "bench.json" in (tmp_path / "out" / "SHA256SUMS").read_text()


def test_times_of_something_else_are_refused(fitted: Path, benched: Path, tmp_path: Path) -> None:
    whole = json.loads(benched.read_text())
    changes: dict[str, tuple[dict[str, Any], str]] = {
        "maps": ({"maps": {"s3.safetensors": "0" * 64}}, "of other maps: s3.safetensors"),
        "random": ({"maps": None}, "random weights or maps"),
        "model": (
            {"base": {**whole["base"], "config_sha256": "0" * 64}},
            "of another model: its config_sha256",
        ),
        "arms": ({"timings": whole["timings"][:1]}, "times no ridge arm"),
        "rows": (
            {"timings": [timing | {"rows": "random 10 %"} for timing in whole["timings"]]},
            "times no ridge arm without further rows",
        ),
        "file": ({"timings": 3}, "not a result of bench prefill"),
    }
    for name, (change, words) in changes.items():
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({**whole, **change}))
        with pytest.raises(BadInput, match=words):
            publish(settings(fitted, license="mit", bench=path, dry_run=True), Hub())
