"""Refresh controllers as repositories: built, pushed, pulled, damaged, and refused where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hub_server import Server

from ridgefit.errors import BadInput
from ridgefit.files import sha256_file
from ridgefit.hub import Hub, check_repository, local_maps, pull
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
    ):
        assert said in card
    assert check_repository(out).kind == "refresh-controller"
    pull("me/ada", out=tmp_path / "got", hub=hub)
    assert load_controller(tmp_path / "got") == load_controller(made)
    assert load_controller(local_maps("me/ada", hub=hub)) == load_controller(made)
    again = publish(PushSettings(maps=out, repo="me/ada"), hub)
    assert all(file.change == "same" for file in again.files)


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
