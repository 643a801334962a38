"""Refresh controllers as repositories: built, pushed, pulled, damaged, and refused where there is none."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hub_server import Server

from ridgefit.cli.app import main
from ridgefit.errors import BadInput
from ridgefit.files import sha256_file
from ridgefit.hub import Hub, check_repository, local_maps, look, pull
from ridgefit.maps.refresh import GateRule, NoRule, RefreshController, load_controller, save_controller
from ridgefit.pipeline.publish import publish
from ridgefit.recipe import PushSettings

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TARGET: dict[str, Any] = {
    "family": "llama", "name": "org/tiny", "revision": COMMIT, "layers": 2, "vocab": 320, "dtype": "float32",
    "config_sha256": "cd" * 32, "tokenizer_sha256": "ab" * 32, "weights_sample_sha256": "ef" * 32,
}  # fmt: skip
ROW = {
    "al": 3.25, "other": 3.3, "difference": -0.05, "low": -0.09, "high": 0.01, "bound": -0.08,
    "refreshes": 7.5, "other_refreshes": 15.0, "ratio": 2.0, "ratio_low": 1.5, "ratio_high": 2.5,
    "documents": 9,
}  # fmt: skip


def controller(folder: Path, **changes: Any) -> Path:
    found = RefreshController(
        **{
            "rule": GateRule(below={"acc_mean": 2.5}, above={"drift": 0.125}), "interval": 16, "min_gap": 32,
            "max_gap": 256, "horizon": 64, "drafted": 5, "temperature": 0.0, "target": TARGET,
            "cache": {"budget": 128, "keep_ratio": None, "every": 64, "recent_share": 0.5},
            "draft": {**TARGET, "name": "org/small", "weights_sample_sha256": "aa" * 32},
            "fit": ("1" * 64,), "select": ("2" * 64,), "test": ("3" * 64,), "versions": {"ridgefit": "0.1.0"},
            "scores": {"test": {"verdict": "matched", "ada": ROW, "controls": {"never": ROW}}},
            **changes,
        }
    )  # fmt: skip
    save_controller(found, folder)
    return folder


def test_a_controller_travels(server: Server, hub: Hub, tmp_path: Path) -> None:
    made = controller(tmp_path / "made")
    out = tmp_path / "repository"
    report = publish(PushSettings(maps=made, repo="me/ada", license="apache-2.0", out=out), hub)
    assert report.sha
    card = (out / "README.md").read_text()
    for said in (
        "base_model: org/tiny",
        "org/small",
        "acc_mean below 2.5 or drift above 0.125",
        "matched",
        "7.5",
        "2.00 [1.50, 2.50]",
        "--budget 128 --recent-share 0.5 --drafted 5 --temperature 0.0",
        "greedy decoding",
    ):
        assert said in card
    assert check_repository(out).kind == "refresh-controller"
    pull("me/ada", out=tmp_path / "got", hub=hub)
    assert load_controller(tmp_path / "got") == load_controller(made)
    assert load_controller(local_maps("me/ada", hub=hub)) == load_controller(made)
    again = publish(PushSettings(maps=out, repo="me/ada"), hub)
    assert all(file.change == "same" for file in again.files)


def test_a_controller_is_looked_at(
    server: Server,
    hub: Hub,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = controller(tmp_path / "made", texts={"prompt": [96], "new_tokens": 48, "instruction": None})
    publish(PushSettings(maps=made, repo="me/ada", license="apache-2.0", out=tmp_path / "r"), hub)
    found = look("me/ada", hub)
    assert found["repository"]["kind"] == "refresh-controller"
    assert found["controller"] == load_controller(made).model_dump(mode="json")
    assert found["frozen_sha256"] == load_controller(made).frozen_sha256
    monkeypatch.setattr("ridgefit.hub.look", lambda ref: look(ref, hub))
    assert main(["inspect", "me/ada"]) == 0
    shown = capsys.readouterr().out
    for said in (f"me/ada@{found['repository']['sha']}", "base on the Hub", "acc_mean below 2.5", "matched"):
        assert said in shown
    for folder in (made, tmp_path / "r"):
        assert main(["inspect", str(folder)]) == 0
        shown = capsys.readouterr().out
        for said in (
            "org/small",
            "acc_mean below 2.5 or drift above 0.125",
            "128, 0.5 of it for the newest",
            "prompts of 96 tokens, 48 new",
            "-0.050 [-0.090, +0.010]",
            "2.00 [1.50, 2.50]",
            "test: matched",
        ):
            assert said in shown
        assert main(["inspect", str(folder), "--json"]) == 0
        assert RefreshController.model_validate_json(capsys.readouterr().out) == load_controller(made)


def test_a_controller_is_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def verified(**changes: Any) -> dict[str, str]:
        """Check -> what was found, of the checks that fail."""
        made = controller(tmp_path / "made", **changes)
        status = main(["verify", str(made), "--json"])
        report = json.loads(capsys.readouterr().out)
        assert report["ok"] == (status == 0)
        return {line["check"]: line["detail"] for line in report["lines"] if not line["ok"]}

    scores = {"test": {"verdict": "matched"}}
    frozen = load_controller(controller(tmp_path / "made", scores=scores)).frozen_sha256
    tested = {**scores, "frozen_sha256": frozen}
    assert verified(scores=tested) == {}
    assert list(verified(scores=scores)) == ["frozen before its test"]
    assert list(verified(scores=tested, interval=99)) == ["frozen before its test"]
    both = verified(scores=scores, select=("1" * 64,))
    assert both["documents to fit, select and test"] == "1 in more than one"
    unknown = GateRule(below={"mood": 1.0}, above={})
    assert "reads a signal 'mood'" in verified(scores=tested, rule=unknown)["file"]
    file = controller(tmp_path / "made", scores=tested) / "controller.json"
    file.write_text(file.read_text().replace('"min_gap": 32', '"min_gap": 33'))
    assert main(["verify", str(tmp_path / "made")]) == 1
    assert "was changed after it was frozen" in " ".join(capsys.readouterr().out.split())
    assert main(["verify", str(tmp_path / "made"), "--tail", "3"]) == 2
    assert "--tail would do nothing for a refresh controller" in capsys.readouterr().err


def test_files_that_do_not_say_their_texts_keep_their_hash(tmp_path: Path) -> None:
    """The hash of a file written before the field was there, from its own content."""
    made = load_controller(controller(tmp_path / "made"))
    content = json.loads((tmp_path / "made" / "controller.json").read_text())["controller"]
    old = {name: value for name, value in content.items() if name not in ("test", "scores", "texts")}
    text = json.dumps(old, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert made.frozen_sha256 == hashlib.sha256(text.encode()).hexdigest()


def test_damage_and_contradictions_are_found(server: Server, hub: Hub, tmp_path: Path) -> None:
    out = tmp_path / "r"
    publish(
        PushSettings(
            maps=controller(tmp_path / "made"), repo="me/ada", license="apache-2.0", out=out, dry_run=True
        ),
        hub,
    )
    config, sums = out / "config.json", out / "SHA256SUMS"
    before, plain = sha256_file(config), config.read_text()
    config.write_text(plain.replace("ab" * 32, "ba" * 32))
    with pytest.raises(BadInput, match="is not the file that SHA256SUMS names"):
        check_repository(out)
    sums.write_text(sums.read_text().replace(before, sha256_file(config)))
    with pytest.raises(BadInput, match="tokenizer_sha256"):
        check_repository(out)


def test_what_must_not_be_published(server: Server, hub: Hub, tmp_path: Path) -> None:
    none = controller(tmp_path / "none", rule=NoRule(every=64))
    with pytest.raises(BadInput, match="found no controller"):
        publish(PushSettings(maps=none, repo="me/ada", license="apache-2.0", dry_run=True), hub)
    with pytest.raises(BadInput, match="carries its own test"):
        publish(PushSettings(maps=none, repo="me/ada", evaluation=tmp_path, dry_run=True), hub)
    local = controller(tmp_path / "local", target={**TARGET, "name": "folder", "revision": None})
    with pytest.raises(BadInput, match="--base-model"):
        publish(PushSettings(maps=local, repo="me/ada", license="apache-2.0", dry_run=True), hub)
