"""Arguments that look like paths and lead nowhere: told so, and never looked for on the Hub."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
import pytest

from ridgefit.cli.app import main
from ridgefit.files import names_a_path

GONE = (
    "./gone",
    "./work/gone",
    "../gone",
    "/gone/model",
    "~/gone",
    "work/deep/gone",
    "work/gone.safetensors",
    "work/gone/",
)
LINES = {
    "MODEL": (
        "doctor {}",
        "plan {}",
        "capture {} --split 3 --data bundled:calibration --out out",
        "generate {} --prompt x --arm exact",
        "eval {} --arms exact --tasks needle --out out",
        "bench prefill --model {}",
        "calibrate recall {} --data bundled:calibration --out out",
        "calibrate refresh {} --data bundled:calibration --out out",
        "train draft {} --target bundled:llama --data bundled:calibration --out out",
    ),
    "draft": (
        "generate bundled:llama --prompt x --draft {}",
        "calibrate refresh bundled:llama --draft {} --data bundled:calibration --out out",
        "train draft bundled:draft --target {} --data bundled:calibration --out out",
        "eval bundled:llama --tasks acceptance,data=bundled:development,draft={} --out out",
    ),
    "maps": (
        "inspect {}",
        "verify {}",
        "quantize {} --out out",
        "push {} org/name",
        "generate bundled:llama --prompt x --maps {} --tail 8",
        "eval bundled:llama --maps {} --arms ridge --tasks needle --out out",
        "eval bundled:llama --arms ridge,maps={} --tasks needle --out out",
        "bench prefill --model bundled:llama --maps {}",
    ),
    "policy": (
        "generate bundled:kimi_linear --prompt x --policy {}",
        "eval bundled:kimi_linear --policy {} --out out",
    ),
    "controller": (
        "generate bundled:llama --prompt x --draft self --draft-policy rift-ada --controller {}",
        "eval bundled:llama --out out "
        "--tasks acceptance,data=bundled:development,policies=rift-ada,controller={}",
    ),
    "folder": ("solve {} --out out", "merge {} --out out", "report {}"),
}


@pytest.fixture(autouse=True)
def no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, and a Hub that must not be asked."""

    def ask(*_: object, **__: object) -> None:
        raise AssertionError("the Hub was asked")

    for name in ("snapshot_download", "hf_hub_download"):
        monkeypatch.setattr(huggingface_hub, name, ask)
    for name in ("model_info", "repo_info", "list_repo_tree", "list_repo_commits", "create_repo"):
        monkeypatch.setattr(huggingface_hub.HfApi, name, ask)
    home = tmp_path / "home" / "here"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(home)
    return home


@pytest.mark.parametrize("line", [line for lines in LINES.values() for line in lines])
def test_a_path_that_leads_nowhere(line: str, no_hub: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # The first of a draft's two models is loaded before the second is looked for: one is enough of those.
    for gone in GONE[:1] if "bundled:llama" in line or "bundled:draft" in line else GONE:
        status = main([*line.format(gone).split(), "--quiet"])
        said = capsys.readouterr()
        assert (status, said.out) == (2, ""), said.err
        lines = [text for text in said.err.splitlines() if text.startswith("ridgefit: ")]
        assert len(lines) == 1, said.err
        assert "gone" in lines[0]
        assert "does not exist" in lines[0] or "holds no finished evaluation" in lines[0], lines
        assert "the Hub " not in lines[0], lines
        assert list(no_hub.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "is_path"),
    [
        *((text, True) for text in GONE),
        ("gone", True),
        (".", True),
        ("work/gone.JSON", True),
        ("work/gone.gguf", True),
        ("org/name", False),
        ("org/name-1.5B", False),
        ("org/name@main", False),
        ("org/name@refs/pr/1", False),
    ],
)
def test_what_names_a_path(text: str, is_path: bool) -> None:
    assert names_a_path(text) is is_path
