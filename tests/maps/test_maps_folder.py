"""MAPS folders, fingerprints, quantize, verify and inspect; two builds are the same bytes."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ridgefit.errors import BadInput
from ridgefit.maps import (
    Defaults,
    Fingerprint,
    LayerMap,
    MapSet,
    SplitMaps,
    inspect,
    load_maps,
    quantize,
    read_maps_manifest,
    verify_files,
    write_maps,
    write_source,
)

IDENTITY: dict[str, Any] = {
    "family": "llama",
    "name": "org/tiny",
    "revision": "0" * 40,
    "n_layers": 12,
    "hidden": 16,
    "vocab": 100,
    "kv_heads": 2,
    "head_dim": 8,
    "qk_norm": False,
    "layer_kinds": ["full_attention"] * 11 + ["sliding_attention"],
    "window": 32,
    "dtype": "float32",
    "config_sha256": "cd" * 32,
    "tokenizer_sha256": "ab" * 32,
}


def maps_of(layers: range, width: int = 128) -> MapSet:
    generator = torch.Generator().manual_seed(layers.start)
    return MapSet.of(
        {
            layer: LayerMap(torch.randn(16, width, generator=generator), torch.randn(16, generator=generator))
            for layer in layers
        },
        defaults=Defaults(tail=256, sink_rows=4),
    )


def build(out: Path, width: int = 128) -> None:
    splits = (
        SplitMaps(
            maps_of(range(split, 12), width),
            alphas=(0.03,) * (12 - split),
            rows=1000,
            scores={"grid": [{"alpha": 0.03, "mean": 0.9}]},
        )
        for split in (9, 6)
    )
    write_maps(
        out,
        splits,
        fingerprint=Fingerprint.of(IDENTITY),
        provenance={"manifest_sha256": "ef" * 32, "versions": {"torch": "2", "numpy": "2"}},
    )


def snapshot(folder: Path) -> dict[str, str]:
    return {
        str(item.relative_to(folder)): hashlib.sha256(item.read_bytes()).hexdigest()
        for item in sorted(folder.rglob("*"))
        if item.is_file()
    }


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "ridgefit.json"
    table = json.loads(path.read_text())
    for key, value in changes.items():
        target = table
        *parents, last = key.split("__")
        for parent in parents:
            target = target[parent]
        target[last] = value
    path.write_text(json.dumps(table))


def test_round_trip(tmp_path: Path) -> None:
    build(tmp_path / "maps")
    assert sorted(snapshot(tmp_path / "maps")) == ["ridgefit.json", "s6.safetensors", "s9.safetensors"]
    manifest = read_maps_manifest(tmp_path / "maps")
    assert list(manifest.splits) == [6, 9]
    assert manifest.fingerprint == Fingerprint.of(IDENTITY)
    assert manifest.provenance["manifest_sha256"] == "ef" * 32
    record = manifest.splits[9]
    assert record.sha256 == snapshot(tmp_path / "maps")["s9.safetensors"]
    assert (record.alphas, record.rows, record.features) == ((0.03,) * 3, 1000, {"state": 1})
    for split in (6, 9):
        maps, wanted = load_maps(tmp_path / "maps", split), maps_of(range(split, 12))
        assert maps.layers == range(split, 12)
        assert maps.defaults == Defaults(tail=256, sink_rows=4)
        assert maps.fingerprint == manifest.fingerprint
        for layer in maps.layers:
            for found, want in zip(maps.layer(layer), wanted.layer(layer), strict=True):
                assert torch.equal(found, want)


def test_a_file_of_the_folder_travels_alone(tmp_path: Path) -> None:
    """The header carries the published keys and the fingerprint, so the file is still bound to its model."""
    build(tmp_path / "maps")
    (tmp_path / "maps" / "s9.safetensors").rename(tmp_path / "alone.safetensors")
    maps = load_maps(tmp_path / "alone.safetensors")
    assert maps.fingerprint == Fingerprint.of(IDENTITY)
    assert {key: maps.info[key] for key in ("split", "lambda", "train_rows", "checkpoint")} == {
        "split": "9",
        "lambda": "0.03",
        "train_rows": "1000",
        "checkpoint": "org/tiny@" + "0" * 40,
    }
    with pytest.raises(BadInput, match="hidden is 16 in the maps and 32 in the model"):
        maps.check(IDENTITY | {"hidden": 32})


def test_two_builds_are_the_same_bytes(tmp_path: Path) -> None:
    """Also in another process with another hash seed."""
    for name in ("one", "two"):
        build(tmp_path / name)
        quantize(tmp_path / name, tmp_path / f"{name}8")
    assert snapshot(tmp_path / "one") == snapshot(tmp_path / "two")
    assert snapshot(tmp_path / "one8") == snapshot(tmp_path / "two8")
    script = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from pathlib import Path\nimport test_maps_folder as t\nfrom ridgefit.maps import quantize\n"
        "t.build(Path('three')); quantize('three', Path('three8'))"
    )
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONHASHSEED": "12345", "PYTHONPATH": str(root)}
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, check=True)
    assert snapshot(tmp_path / "one") == snapshot(tmp_path / "three")
    assert snapshot(tmp_path / "one8") == snapshot(tmp_path / "three8")


def test_quantize_a_folder(tmp_path: Path) -> None:
    build(tmp_path / "maps")
    calls: list[tuple[int, int]] = []
    report = quantize(
        tmp_path / "maps", tmp_path / "maps8", progress=lambda done, total: calls.append((done, total))
    )
    assert calls == [(n, 6) for n in range(1, 7)] + [(n, 3) for n in range(1, 4)]
    assert 0.3 < report.largest_error_steps <= 0.5
    manifest = read_maps_manifest(tmp_path / "maps8")
    assert manifest.splits[6].layout == "format1-int8"
    assert manifest.splits[6].largest_error_steps == max(report.splits[6].steps.values())
    assert manifest.provenance["quantized_from"] == snapshot(tmp_path / "maps")["ridgefit.json"]
    maps, bf16 = load_maps(tmp_path / "maps8", 9), load_maps(tmp_path / "maps", 9)
    assert maps.fingerprint == bf16.fingerprint
    assert maps.defaults == bf16.defaults
    assert (maps.source, maps.path) == ("format1-int8", tmp_path / "maps8" / "s9")
    missed = (maps.layer(10).weight.float() - bf16.layer(10).weight.float()).abs().max()
    assert 0 < missed < 0.03
    assert load_maps(tmp_path / "maps8" / "s9").layers == range(9, 12)
    with pytest.raises(BadInput, match="is int8 already"):
        quantize(tmp_path / "maps8", tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_narrow_maps_are_not_quantised(tmp_path: Path) -> None:
    build(tmp_path / "maps", width=192)
    with pytest.raises(BadInput, match="192 is not a multiple of 128"):
        quantize(tmp_path / "maps", tmp_path / "maps8")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["maps"]


def test_which_split(tmp_path: Path) -> None:
    build(tmp_path / "maps")
    with pytest.raises(BadInput, match=r"several splits \(6, 9\): name one of them as the split"):
        load_maps(tmp_path / "maps")
    with pytest.raises(BadInput, match="no split 7, only 6, 9"):
        load_maps(tmp_path / "maps", 7)
    write_maps(tmp_path / "one", [SplitMaps(maps_of(range(9, 12)))])
    assert load_maps(tmp_path / "one").split == 9
    with pytest.raises(BadInput, match="split 9 was solved twice"):
        write_maps(tmp_path / "two", [SplitMaps(maps_of(range(9, 12)))] * 2)
    assert not (tmp_path / "two").exists()


def test_what_is_not_maps(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        load_maps(tmp_path / "absent")
    with pytest.raises(BadInput, match=r"holds neither ridgefit.json nor ridgefill.json"):
        load_maps(tmp_path)
    write_source(tmp_path / "a.safetensors", maps_of(range(9, 12)))
    with pytest.raises(BadInput, match=r"for example .*a.safetensors"):
        load_maps(tmp_path)
    write_maps(tmp_path / "run" / "maps", [SplitMaps(maps_of(range(9, 12)))])
    with pytest.raises(BadInput, match=r"for example .*run/maps"):
        load_maps(tmp_path / "run")
    (tmp_path / "capture.json").write_text("{}")
    with pytest.raises(BadInput, match="is a capture and holds no maps"):
        load_maps(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "ridgefit-maps-2"}, "'ridgefit-maps-2', this ridgefit reads 'ridgefit-maps-1': upgrade"),
        ({"format": 1}, "is of format '1'"),
        ({"surprise": 1}, "surprise: Extra inputs"),
        ({"splits": {}}, "splits: "),
        ({"splits__9__file": "../s9.safetensors"}, "not the name of a split's file"),
        ({"splits__9__file": "/etc/s9.safetensors"}, "not the name of a split's file"),
        ({"splits__9__file": "s6.safetensors"}, "is not the file|holds other maps"),
        ({"splits__9__file": "s8.safetensors"}, "cannot read .*s8.safetensors"),
        ({"splits__9__features": {"state": 1, "previous": 1}}, "feature 'previous' version 1"),
        ({"splits__9__features": {"state": 2}}, "feature 'state' version 2"),
        ({"splits__9__layers": [8, 12]}, "describes split 9 with layers"),
        ({"splits__9__layers": [9, 13]}, "holds other maps than"),
        ({"splits__9__in_width": 64}, "holds other maps than"),
        ({"splits__9__sha256": "0" * 64}, "s9.safetensors is not the file its manifest names"),
        ({"splits__9__sha256": "x"}, "sha256"),
        ({"fingerprint__layer_kinds": 3}, "fingerprint.layer_kinds"),
    ],
)
def test_manifest_lies_are_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    build(tmp_path / "maps")
    edit(tmp_path / "maps", **changes)
    with pytest.raises(BadInput, match=words) as caught:
        load_maps(tmp_path / "maps", 9).layer(9)
    assert "\n" not in str(caught.value)


ODD: tuple[Any, ...] = (None, True, -1, 1.5, 10**30, "x", "9" * 5000, [], ["x"], {}, {"x": 1}, {"1": []})


def leaves(table: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(table, dict | list):
        for key in table if isinstance(table, dict) else range(len(table)):
            yield from leaves(table[key], (*path, key))


@pytest.mark.parametrize("name", ["ridgefit.json", "s9/ridgefill.json"])
def test_odd_values_anywhere_in_a_manifest(tmp_path: Path, name: str) -> None:
    """Every field replaced by every kind of value: the maps open as before, or one sentence says why not."""
    write_maps(
        tmp_path / "maps",
        [SplitMaps(maps_of(range(9, 11)))],
        fingerprint=Fingerprint.of(IDENTITY),
        provenance={},
    )
    quantize(tmp_path / "maps", tmp_path / "maps8")
    path = tmp_path / "maps8" / name
    folder = tmp_path / "maps8" / ("s9" if "/" in name else "")
    table = json.loads(path.read_text())
    refused = 0
    for where in leaves(table):
        for odd in ODD:
            changed = json.loads(json.dumps(table))
            target = changed
            for key in where[:-1]:
                target = target[key]
            target[where[-1]] = odd
            path.write_text(json.dumps(changed))
            try:
                maps = load_maps(folder)
                assert maps.layers == range(9, 11)
                assert maps.in_width == 128
            except BadInput:
                refused += 1
    assert refused > 100


# --- fingerprints ---


def test_fingerprint_of_an_identity() -> None:
    found = Fingerprint.of(IDENTITY)
    assert found.dims == {
        "n_layers": 12,
        "hidden": 16,
        "vocab": 100,
        "kv_heads": 2,
        "head_dim": 8,
        "window": 32,
    }
    assert found.check(IDENTITY) == []
    assert Fingerprint.of(IDENTITY | {"name": "/data/models/tiny/"}).name == "tiny"
    with pytest.raises(BadInput, match=r"identity is incomplete \(family"):
        Fingerprint.of({"name": "x"})


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("family", "mistral", "family is llama in the maps and mistral in the model"),
        ("hidden", 32, "hidden is 16 in the maps and 32 in the model"),
        ("n_layers", 13, "n_layers is 12 in the maps and 13 in the model"),
        ("kv_heads", 4, "kv_heads is 2 in the maps and 4 in the model"),
        ("head_dim", 4, "head_dim is 8 in the maps and 4 in the model"),
        ("vocab", 101, "vocab is 100 in the maps and 101 in the model"),
        ("window", 64, "window is 32 in the maps and 64 in the model"),
        (
            "layer_kinds",
            ["full_attention"] * 12,
            "kind of layer 11 is sliding_attention .* full_att",
        ),
        ("layer_kinds", ["full_attention"] * 3, "number of layers is 12 in the maps and 3 in the model"),
        ("tokenizer_sha256", "12" * 32, "tokenizer sha256 is (ab){32} in the maps and (12){32} in the model"),
    ],
)
def test_fingerprint_refuses(field: str, value: object, words: str) -> None:
    with pytest.raises(BadInput, match=words) as caught:
        Fingerprint.of(IDENTITY).check(IDENTITY | {field: value})
    assert caught.value.exit_status == 2


@pytest.mark.parametrize(
    ("field", "value", "line"),
    [
        ("name", "org/other", "maps were fitted on name org/tiny, this model has org/other"),
        ("dtype", "bfloat16", "maps were fitted on dtype float32, this model has bfloat16"),
        ("revision", "1" * 40, f"maps were fitted on revision {'0' * 40}, this model has {'1' * 40}"),
        ("tokenizer_sha256", None, "the tokenizer was not checked: its hash is not known on both sides"),
    ],
)
def test_fingerprint_warns(field: str, value: object, line: str) -> None:
    assert Fingerprint.of(IDENTITY).check(IDENTITY | {field: value}) == [line]


def test_maps_without_a_fingerprint_check_their_shapes() -> None:
    maps = maps_of(range(9, 12))
    assert "name no base model" in maps.check(IDENTITY)[0]
    with pytest.raises(BadInput, match="n_layers is 12 in the maps and 13 in the model"):
        maps.check(IDENTITY | {"n_layers": 13})
    with pytest.raises(BadInput, match="hidden is 16 in the maps and 8 in the model"):
        maps.check(IDENTITY | {"hidden": 8})


# --- verify and inspect ---


def test_verify_files(tmp_path: Path) -> None:
    build(tmp_path / "maps")
    quantize(tmp_path / "maps", tmp_path / "maps8")
    for path in ("maps", "maps8", "maps8/s9", "maps/s9.safetensors"):
        found = verify_files(tmp_path / path)
        assert found
        assert all(item.ok for item in found), [item for item in found if not item.ok]
    assert {item.subject for item in verify_files(tmp_path / "maps8")} >= {
        "ridgefit.json",
        "s9/ridgefill.json",
        "s9/proj8.L10.safetensors",
    }


def test_verify_finds_every_kind_of_damage(tmp_path: Path) -> None:
    build(tmp_path / "maps")
    quantize(tmp_path / "maps", tmp_path / "maps8")

    def failed(path: str) -> set[str]:
        return {item.subject for item in verify_files(tmp_path / path) if not item.ok}

    for path in ("maps/s9.safetensors", "maps8/s9/proj8.L10.safetensors"):
        file = tmp_path / path
        whole = file.read_bytes()
        folder, _, name = path.partition("/")
        for damaged in (whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1]), b""):
            file.write_bytes(damaged)
            assert name in failed(folder)
        file.unlink()
        assert name in failed(folder)
        file.write_bytes(whole)
        assert not failed(folder)
    (tmp_path / "maps8" / "s9" / "README.md").write_text("a card may change")
    assert not failed("maps8")
    edit(tmp_path / "maps", format="other")
    assert failed("maps") == {"ridgefit.json"}
    (tmp_path / "maps8" / "s9" / "ridgefill.json").write_text("{}")
    assert "s9/ridgefill.json" in failed("maps8")
    assert failed("maps8/s9") == {"ridgefill.json", "s9"}


def test_inspect_reads_no_bodies(tmp_path: Path) -> None:
    build(tmp_path / "maps")
    quantize(tmp_path / "maps", tmp_path / "maps8")
    path = tmp_path / "maps" / "s9.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-2:] = b"\xff\xff"  # not a number, and another hash: only reading the body would tell
    path.write_bytes(raw)
    for name, layout in (("maps", "source"), ("maps8", "format1-int8")):
        found = inspect(tmp_path / name)
        json.dumps(found)
        assert found["layout"] == "maps"
        assert found["fingerprint"]["name"] == "org/tiny"
        split = found["splits"][9]
        assert (split["layout"], split["layers"], split["shape"]) == (layout, [9, 12], [16, 128])
        assert split["alphas"] == [0.03] * 3
        assert split["scores"] == {"grid": [{"alpha": 0.03, "mean": 0.9}]}
    alone = inspect(path)
    assert alone["layout"] == "source"
    assert alone["splits"][9]["bytes"] == path.stat().st_size
    assert alone["splits"][9]["header_bytes"] + 3 * 16 * 129 * 2 == path.stat().st_size
    assert inspect(tmp_path / "maps8" / "s9")["splits"][9]["credit"]["name"] == "ridgefit maps"
