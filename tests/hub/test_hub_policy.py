"""Recall policies as repositories: built, pushed, pulled, and damaged in every file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hub_server import Server

from ridgefit.errors import BadInput
from ridgefit.files import sha256_file
from ridgefit.hub import Hub, check_repository, local_maps, look, pull
from ridgefit.maps import Fingerprint
from ridgefit.maps.recall import LayerThresholds, PolicyManifest, RecallPolicy, RecallSettings
from ridgefit.pipeline.publish import publish
from ridgefit.recipe import PushSettings

COMMIT = "0123456789abcdef0123456789abcdef01234567"
IDENTITY: dict[str, Any] = {
    "family": "kimi_linear",
    "name": "org/tiny",
    "revision": COMMIT,
    "n_layers": 4,
    "hidden": 32,
    "vocab": 128,
    "kv_heads": 1,
    "head_dim": 32,
    "layer_kinds": ["other", "latent_attention"] * 2,
    "dtype": "float32",
    "config_sha256": "cd" * 32,
    "tokenizer_sha256": "ab" * 32,
}


def policy(folder: Path, **settings: Any) -> Path:
    layers = {
        index: LayerThresholds(z=1.25, held_out=96, held_out_hard=70, recall=0.9371, archive=112)
        for index in (1, 3)
    }
    RecallPolicy(
        PolicyManifest(
            settings=RecallSettings(**{"ratio": 16.0, "rank": 8, **settings}),
            fingerprint=Fingerprint.of(IDENTITY),
            layers=layers,
            provenance={"documents": {"/data/me/a.jsonl": "ef" * 32}, "versions": {"ridgefit": "0.1.0"}},
        ),
        {index: torch.eye(8, 24) for index in layers},
    ).save(folder)
    return folder


def test_a_policy_travels(server: Server, hub: Hub, tmp_path: Path) -> None:
    """What is pulled is what was pushed, by hash and by value, and the card states what it holds."""
    made = policy(tmp_path / "policy")
    settings = PushSettings(maps=made, repo="me/policy", license="apache-2.0", out=tmp_path / "repository")
    report = publish(settings, hub)
    assert report.sha
    looked = look("me/policy", hub)
    assert looked["repository"]["kind"] == "recall-policy"
    assert looked["policy"] == RecallPolicy.load(made).manifest.model_dump(mode="json")
    assert looked["fingerprint"]["tokenizer_sha256"] == IDENTITY["tokenizer_sha256"]
    card = (tmp_path / "repository" / "README.md").read_text()
    for said in ("base_model: org/tiny", "1/16", "93.7 %", "1.25", "vestigekv"):
        assert said in card
    config = check_repository(tmp_path / "repository")
    assert (config.kind, config.splits) == ("recall-policy", {})
    fetched = pull("me/policy", out=tmp_path / "got", hub=hub)
    assert fetched.splits == ()
    got, wanted = RecallPolicy.load(tmp_path / "got"), RecallPolicy.load(made)
    assert got.manifest == wanted.manifest
    assert all(torch.equal(got.bases[i], wanted.bases[i]) for i in wanted.bases)
    by_name = RecallPolicy.load(local_maps("me/policy", hub=hub))
    assert by_name.manifest == wanted.manifest
    again = publish(PushSettings(maps=tmp_path / "repository", repo="me/policy"), hub)
    assert all(file.change == "same" for file in again.files)


@pytest.mark.parametrize("name", ["policy.json", "policy.safetensors", "config.json", "provenance.json"])
def test_a_changed_byte_is_found(name: str, server: Server, hub: Hub, tmp_path: Path) -> None:
    settings = PushSettings(
        maps=policy(tmp_path / "policy"),
        repo="me/policy",
        license="apache-2.0",
        out=tmp_path / "r",
        dry_run=True,
    )
    publish(settings, hub)
    path = tmp_path / "r" / name
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(BadInput, match="is not the file that SHA256SUMS names"):
        check_repository(tmp_path / "r")


def test_policies_that_must_not_be_published(server: Server, hub: Hub, tmp_path: Path) -> None:
    control = policy(tmp_path / "control", control=True)
    with pytest.raises(BadInput, match="control arm"):
        publish(PushSettings(maps=control, repo="me/p", license="apache-2.0", dry_run=True), hub)
    made = policy(tmp_path / "policy")
    (tmp_path / "ev").mkdir()
    other = {"format": 1, "identity": {"policies": {"x": {}}}, "gates": [], "dense_loss": None, "arms": []}
    (tmp_path / "ev" / "recall.json").write_text(json.dumps(other))
    with pytest.raises(BadInput, match="of other policies"):
        publish(PushSettings(maps=made, repo="me/p", evaluation=tmp_path / "ev", dry_run=True), hub)
    text = (made / "policy.json").read_text().replace('"name": "org/tiny"', '"name": "local"')
    (made / "policy.json").write_text(text)
    with pytest.raises(BadInput, match="--base-model"):
        publish(PushSettings(maps=made, repo="me/p", license="apache-2.0", dry_run=True), hub)


def test_a_repository_must_say_whose_policy_it_holds(server: Server, hub: Hub, tmp_path: Path) -> None:
    """A config that states another tokenizer is refused even where every hash is right."""
    settings = PushSettings(
        maps=policy(tmp_path / "policy"),
        repo="me/policy",
        license="apache-2.0",
        out=tmp_path / "r",
        dry_run=True,
    )
    publish(settings, hub)
    config = tmp_path / "r" / "config.json"
    before = sha256_file(config)
    config.write_text(config.read_text().replace("ab" * 32, "ba" * 32))
    sums = tmp_path / "r" / "SHA256SUMS"
    sums.write_text(sums.read_text().replace(before, sha256_file(config)))
    with pytest.raises(BadInput, match="tokenizer_sha256"):
        check_repository(tmp_path / "r")
