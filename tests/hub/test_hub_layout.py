"""Repositories as they are written: which files, which bytes, which card."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from ridgefit.errors import BadInput
from ridgefit.hub.build import Base, base_of, build_repository, data_sets, without_places
from ridgefit.hub.card import About
from ridgefit.hub.check import check_repository
from ridgefit.hub.layout import read_sums
from ridgefit.hub.licence import Licence, licence_of
from ridgefit.hub.reference import RepoRef, names_repository
from ridgefit.maps import (
    Fingerprint,
    LayerMap,
    MapSet,
    SplitMaps,
    load_maps,
    quantize,
    read_maps_manifest,
    verify_files,
    write_maps,
)

COMMIT = "0123456789abcdef0123456789abcdef01234567"
Build = Callable[..., Path]


def snapshot(folder: Path) -> dict[str, str]:
    return {
        item.relative_to(folder).as_posix(): hashlib.sha256(item.read_bytes()).hexdigest()
        for item in sorted(folder.rglob("*"))
        if item.is_file()
    }


def front_matter(folder: Path) -> dict[str, Any]:
    return yaml.safe_load((folder / "README.md").read_text().split("---\n")[1])


def test_one_file_per_layer_and_every_hash_but_the_cards(repository: Path) -> None:
    found = snapshot(repository)
    assert sorted(found) == [
        "README.md",
        "SHA256SUMS",
        "config.json",
        "provenance.json",
        "ridgefit.json",
        *(f"s3/proj.L{layer}.safetensors" for layer in (3, 4, 5)),
        "s3/ridgefill.json",
        *(f"s4/proj.L{layer}.safetensors" for layer in (4, 5)),
        "s4/ridgefill.json",
    ]
    listed = read_sums(repository / "SHA256SUMS")
    assert listed == {path: sha for path, sha in found.items() if path not in ("README.md", "SHA256SUMS")}
    checked = subprocess.run(
        ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=repository, capture_output=True
    )
    assert checked.returncode == 0, checked.stderr
    config = json.loads((repository / "config.json").read_text())
    assert (config["base_model"], config["base_model_revision"]) == ("org/tiny", COMMIT)
    assert config["splits"]["3"] == {
        "folder": "s3",
        "layers": [3, 6],
        "in_width": 16,
        "out_width": 16,
        "features": {"state": 1},
        "dtype": "bfloat16",
        "tail": 256,
        "sink_rows": 4,
    }
    provenance = json.loads((repository / "provenance.json").read_text())
    assert provenance["documents"][0]["sha256"] == "11" * 32
    assert provenance["splits"]["3"]["scores"] == {"grid": [{"alpha": 0.03, "mean": 0.9}]}
    assert "/data/someone" not in (repository / "provenance.json").read_text()


def test_the_weights_are_those_of_the_maps(repository: Path, tiny_maps: Path) -> None:
    for split in (3, 4):
        found, wanted = load_maps(repository, split), load_maps(tiny_maps, split)
        assert (found.layers, found.defaults, found.fingerprint) == (
            wanted.layers,
            wanted.defaults,
            wanted.fingerprint,
        )
        for layer in wanted.layers:
            assert all(map(torch.equal, found.layer(layer), wanted.layer(layer)))
    assert all(line.ok for line in verify_files(repository))


def test_int8_maps_keep_their_bytes(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    layers = {
        n: LayerMap(torch.randn(16, 128, generator=generator), torch.randn(16, generator=generator))
        for n in (4, 5)
    }
    write_maps(tmp_path / "m", [SplitMaps(MapSet.of(layers))], fingerprint=Fingerprint.of(IDENTITY))
    quantize(tmp_path / "m", tmp_path / "m8")
    build_repository(
        tmp_path / "m8", tmp_path / "r", Base("org/tiny", COMMIT, "fit"), About("me/maps", Licence("mit"))
    )
    before, after = snapshot(tmp_path / "m8"), snapshot(tmp_path / "r")
    assert {p: s for p, s in after.items() if p.startswith("s4/")} == {
        p: s for p, s in before.items() if p.startswith("s4/")
    }
    assert json.loads((tmp_path / "r" / "config.json").read_text())["splits"]["4"]["dtype"] == "int8"


IDENTITY: dict[str, Any] = {
    "family": "llama",
    "name": "org/tiny",
    "revision": COMMIT,
    "n_layers": 6,
    "hidden": 16,
    "vocab": 320,
    "kv_heads": 2,
    "head_dim": 8,
    "layer_kinds": ["full_attention"] * 6,
    "dtype": "float32",
    "tokenizer_sha256": "ab" * 32,
}
REBUILD = """
import hashlib, sys
from pathlib import Path
from ridgefit.hub.build import Base, build_repository
from ridgefit.hub.card import About
from ridgefit.hub.licence import Licence
maps, out = map(Path, sys.argv[1:])
build_repository(maps, out, Base("org/tiny", "0123456789abcdef0123456789abcdef01234567", "fit"),
    About("me/maps", Licence("apache-2.0"), datasets=("org/words",)))
"""


@pytest.mark.parametrize("seed", ["0", "1", "4242"])
def test_the_same_bytes_under_any_hash_seed(
    tmp_path: Path, tiny_maps: Path, repository: Path, seed: str
) -> None:
    """Other process, other hash seed, other folder, other order of files on disk: the same repository."""
    source = tmp_path / f"elsewhere-{seed}"
    source.mkdir()
    for item in sorted(tiny_maps.iterdir(), reverse=seed == "1"):
        shutil.copy(item, source)
    subprocess.run(
        [sys.executable, "-c", REBUILD, source, tmp_path / "out"],
        env={**os.environ, "PYTHONHASHSEED": seed, "TZ": "Asia/Tokyo", "LC_ALL": "C"},
        check=True,
    )
    assert snapshot(tmp_path / "out") == snapshot(repository)


def test_the_card(repository: Path) -> None:
    from huggingface_hub import ModelCard

    text = (repository / "README.md").read_text()
    assert front_matter(repository) == {
        "base_model": "org/tiny",
        "base_model_relation": "adapter",
        "library_name": "ridgefit",
        "license": "apache-2.0",
        "pipeline_tag": "text-generation",
        "datasets": ["org/words"],
        "tags": ["ridgefit", "ridgefill", "kv-cache", "prefill", "safetensors"],
    }
    data = ModelCard(text).data
    assert (data.base_model, data.license, data.library_name) == ("org/tiny", "apache-2.0", "ridgefit")
    code = re.search(r"```python\n(.*?)```", text, re.S)
    assert code is not None
    assert len(code[1].strip().splitlines()) == 3
    compile(code[1], "card", "exec")
    assert 'RidgeFill.load("me/maps", split=3)' in code[1]
    assert "No evaluation was published with these maps: nothing is claimed about their quality." in text


def test_the_data_sets_are_read_from_the_provenance(tiny_maps: Path) -> None:
    assert data_sets(read_maps_manifest(tiny_maps), tiny_maps) == ("org/words",)


@pytest.mark.parametrize(
    ("base", "stated", "card", "wanted"),
    [
        ("org/m", None, {"license": "apache-2.0"}, {"license": "apache-2.0"}),
        ("org/m", "mit", {"license": "apache-2.0"}, {"license": "mit"}),
        ("meta-llama/Llama-3.1-8B-Instruct", None, None, {"license": "llama3.1"}),
        ("meta-llama/Meta-Llama-3-8B", None, None, {"license": "llama3"}),
        ("org/tuned", None, {"license": "llama3.2"}, {"license": "llama3.2"}),
        ("google/gemma-3-4b-it", None, None, {"license": "gemma"}),
        (
            "org/m",
            None,
            {"license": "other", "license_name": "qwen", "license_link": "LICENSE"},
            {
                "license": "other",
                "license_name": "qwen",
                "license_link": "https://huggingface.co/org/m/blob/main/LICENSE",
            },
        ),
    ],
)
def test_the_licence_is_the_base_models(
    base: str, stated: str | None, card: dict[str, str] | None, wanted: dict[str, str]
) -> None:
    found = licence_of(base, stated, card)
    assert found.metadata == wanted
    assert bool(found.notice) == wanted["license"].startswith(("llama", "gemma"))


def test_a_licence_is_not_made_up_nor_replaced() -> None:
    with pytest.raises(BadInput, match="the licence of the base model org/m is not known: name it"):
        licence_of("org/m", None, {})
    with pytest.raises(BadInput, match=r"inherit its licence llama3\.1, not mit"):
        licence_of("meta-llama/Llama-3.1-8B", "mit", None)
    with pytest.raises(BadInput, match="inherit its licence gemma, not apache-2"):
        licence_of("org/tuned", "apache-2.0", {"license": "gemma"})
    with pytest.raises(BadInput, match="is 'other' and its card gives no name"):
        licence_of("org/m", None, {"license": "other"})


def test_llama_maps_say_so(tmp_path: Path, build: Build) -> None:
    folder = build(tmp_path / "r", licence=licence_of("meta-llama/Llama-3.1-8B", None, None))
    assert "Built with Llama." in (folder / "README.md").read_text()
    assert "Llama 3.1 Community License" in (folder / "NOTICE").read_text()
    assert "NOTICE" in read_sums(folder / "SHA256SUMS")
    assert front_matter(folder)["license"] == "llama3.1"


def test_the_base_model_is_named_by_commit(tmp_path: Path) -> None:
    known = Fingerprint.of(IDENTITY)
    assert base_of(known, None, "m") == Base("org/tiny", COMMIT, "fit")
    local = known.model_copy(update={"name": "tiny", "revision": None})
    assert base_of(local, f"org/tiny@{COMMIT}", "m") == Base("org/tiny", COMMIT, "publisher")
    with pytest.raises(BadInput, match="fitted on 'tiny' and records no Hub name with a commit: state it"):
        base_of(local, None, "m")
    with pytest.raises(BadInput, match="is not org/name@<40 hex digits>"):
        base_of(local, "org/tiny@main", "m")
    with pytest.raises(BadInput, match=r"was fitted on org/tiny@0123456789.*, not on org/other@"):
        base_of(known, f"org/other@{COMMIT}", "m")
    with pytest.raises(BadInput, match="carries no fingerprint of its base model"):
        base_of(None, f"org/tiny@{COMMIT}", "m")


def test_places_of_a_machine_are_cut() -> None:
    assert without_places({"a": ["/data/me/data.jsonl", "org/name", "1/2", "../x/y.txt"], "b": 1}) == {
        "a": ["data.jsonl", "org/name", "1/2", "y.txt"],
        "b": 1,
    }


@pytest.mark.parametrize(
    ("written", "parsed"),
    [
        ("org/name", RepoRef("org/name")),
        ("org/na.me-1@v1", RepoRef("org/na.me-1", "v1")),
        ("org/name@refs/pr/3", RepoRef("org/name", "refs/pr/3")),
    ],
)
def test_names(written: str, parsed: RepoRef) -> None:
    assert RepoRef.parse(written) == parsed
    assert str(parsed) == written
    assert names_repository(written)


@pytest.mark.parametrize(
    "written", ["name", "a/b/c", "../b", "a/..", "a/b@", "a/b@../../x", "/a/b", "a/b@-x", ""]
)
def test_other_names_are_refused(written: str) -> None:
    with pytest.raises(BadInput, match="does not name a Hub repository"):
        RepoRef.parse(written)


def test_a_card_may_be_edited(tmp_path: Path, build: Build) -> None:
    folder = build(tmp_path / "r")
    (folder / "README.md").write_text("rewritten by hand")
    (folder / ".gitattributes").write_text("*.safetensors filter=lfs\n")
    assert check_repository(folder).kind == "maps"
