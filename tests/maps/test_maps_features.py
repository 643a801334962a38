"""Files of maps that read more than the split state: round trips in every layout, and refusals by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ridgefit.errors import BadInput
from ridgefit.files import sha256_file
from ridgefit.maps import (
    Fingerprint,
    LayerMap,
    MapSet,
    SplitMaps,
    inspect,
    load_maps,
    quantize,
    verify_files,
    write_format1,
    write_maps,
    write_source,
)

HIDDEN, REST, RANK = 128, 192, 128
LAYERS = range(3, 7)
NAMES = ("state", "previous-1", "mlp")  # not in alphabetical order, which JSON files are written in
PRINT = Fingerprint(family="llama", name="org/tiny", dims={"n_layers": 7, "hidden": HIDDEN})


def feature_maps(*, rank: int | None = RANK, narrow: tuple[int, ...] = (3, 6), **settings: Any) -> MapSet:
    generator = torch.Generator().manual_seed(0)
    more = REST if rank is None else rank
    maps = {
        layer: LayerMap(
            torch.randn(HIDDEN, HIDDEN if layer in narrow else HIDDEN + more, generator=generator),
            torch.randn(HIDDEN, generator=generator),
        )
        for layer in LAYERS
    }
    bottleneck = None if rank is None else torch.randn(REST, rank, generator=generator)
    return MapSet.of(maps, bottleneck=bottleneck, features=NAMES, fingerprint=PRINT, **settings)


def same(left: MapSet, right: MapSet) -> bool:
    shapes = [(m.features, m.in_width, m.out_width, m.state_only, m.bottleneck) for m in (left, right)]
    through = [m.bottleneck_weight() for m in (left, right)]
    return (
        shapes[0] == shapes[1]
        and (through[0] is through[1] is None or torch.equal(through[0], through[1]))
        and all(
            torch.equal(a, b)
            for layer in left.layers
            for a, b in zip(left.layer(layer), right.layer(layer), strict=True)
        )
    )


@pytest.mark.parametrize("rank", [None, RANK])
@pytest.mark.parametrize("narrow", [(), (3, 6)])
def test_round_trip_in_every_layout(tmp_path: Path, rank: int | None, narrow: tuple[int, ...]) -> None:
    maps = feature_maps(rank=rank, narrow=narrow)
    write_source(tmp_path / "s.safetensors", maps)
    write_format1(tmp_path / "bf16", maps, int8=False)
    write_maps(tmp_path / "maps", [SplitMaps(maps, rows=10)], fingerprint=PRINT)
    for path in ("s.safetensors", "bf16", "maps"):
        assert same(load_maps(tmp_path / path), maps), path
        checks = verify_files(tmp_path / path)
        assert all(check.ok for check in checks)
        assert any("reading state + previous-1 + mlp" in check.detail for check in checks)
    described = inspect(tmp_path / "maps")["splits"][3]
    assert described["features"] == list(NAMES)
    assert described.get("bottleneck") == (None if rank is None else [REST, RANK])
    assert described.get("state_only", []) == list(narrow)


def test_the_source_files_tensors_are_what_they_say(tmp_path: Path) -> None:
    maps = feature_maps()
    write_source(tmp_path / "s.safetensors", maps)
    held = load_file(tmp_path / "s.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in held.items()} == {
        "bottleneck": (REST, RANK),
        "layer.3": (HIDDEN, HIDDEN + 1),
        "layer.4": (HIDDEN, HIDDEN + RANK + 1),
        "layer.5": (HIDDEN, HIDDEN + RANK + 1),
        "layer.6": (HIDDEN, HIDDEN + 1),
    }
    assert all(tensor.dtype == torch.bfloat16 for tensor in held.values())
    assert torch.equal(held["layer.4"][:, -1], maps.layer(4).bias)


def test_int8_keeps_the_bottleneck_and_each_layers_width(tmp_path: Path) -> None:
    maps = feature_maps()
    write_maps(tmp_path / "maps", [SplitMaps(maps)], fingerprint=PRINT)
    report = quantize(tmp_path / "maps", tmp_path / "maps8")
    assert report.largest_error_steps <= 0.5 + 1e-3
    found = load_maps(tmp_path / "maps8")
    assert (found.features, found.state_only, found.in_width) == (NAMES, (3, 6), HIDDEN + RANK)
    assert torch.equal(found.bottleneck_weight(), maps.bottleneck_weight())
    for layer in LAYERS:
        assert found.planes(layer).codes.shape == (HIDDEN, maps.width(layer))
        torch.testing.assert_close(
            found.layer(layer).weight.float(), maps.layer(layer).weight.float(), rtol=0, atol=0.03
        )


@pytest.mark.parametrize(("rank", "columns"), [(32, 160), (None, 320)])
def test_int8_groups_that_a_rank_does_not_fill(tmp_path: Path, rank: int | None, columns: int) -> None:
    write_maps(tmp_path / "maps", [SplitMaps(feature_maps(rank=rank))], fingerprint=PRINT)
    with pytest.raises(BadInput, match=f"layer 4 .*{columns} is not a multiple of 128") as caught:
        quantize(tmp_path / "maps", tmp_path / "maps8")
    assert ("rank" in str(caught.value)) == (rank is not None)
    assert not (tmp_path / "maps8").exists()


def rewrite(
    path: Path, change: Callable[[dict[str, torch.Tensor]], object], features: str | None = None
) -> None:
    tensors = load_file(path)
    change(tensors)
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    save_file(tensors, path, {"split": "3", "features": features or "state:1,previous-1:1,mlp:1"})


SOURCE_LIES: dict[str, tuple[Callable[[dict[str, torch.Tensor]], object], str | None, str]] = {
    "unknown": (lambda t: None, "state:1,next-row:1", "feature 'next-row' version 1, which this ridgefit"),
    "no number": (lambda t: None, "state:1,previous:1", "feature 'previous' version 1, which this"),
    "version": (lambda t: None, "state:1,mlp:2", "feature 'mlp' version 2, this ridgefit knows version 1"),
    "order": (lambda t: None, "mlp:1,state:1", "do not begin with state"),
    "twice": (lambda t: None, "state:1,mlp:1,mlp:1", "names a feature twice"),
    "malformed": (lambda t: None, "state 1", "does not list its features"),
    "plain": (
        lambda t: t.update({"layer.4": t["layer.3"], "layer.5": t["layer.3"]}),
        "state:1",
        "holds a bottleneck, and its maps read the state alone",
    ),
    "rank": (
        lambda t: t.update(bottleneck=t["bottleneck"][:, :64].contiguous()),
        None,
        "a map in .* has 256 columns, the state and a bottleneck of rank 64 have 192",
    ),
    "all narrow": (
        lambda t: [t.pop("bottleneck"), t.update({f"layer.{n}": t["layer.3"] for n in (4, 5)})],
        None,
        "name the features state, previous-1, mlp and have 128 columns",
    ),
    "three widths": (
        lambda t: t.update({"layer.4": t["layer.4"][:, :200].contiguous()}),
        None,
        "do not share one shape",
    ),
    "neither": (
        lambda t: [t.update({f"layer.{n}": t["layer.3"][:, :100].contiguous()}) for n in (3, 6)],
        None,
        "have 99 columns, neither the 128 of the state nor all 256",
    ),
    "wide bottleneck": (
        lambda t: t.update(bottleneck=t["bottleneck"].T.contiguous()),
        None,
        r"bottleneck in .* has shape \(128, 192\)",
    ),
    "fp32 bottleneck": (
        lambda t: t.update(bottleneck=t["bottleneck"].float()),
        None,
        "tensor 'bottleneck' of .* is not a BF16 matrix",
    ),
    "not finite": (
        lambda t: t["bottleneck"].fill_(float("inf")),
        None,
        "bottleneck in .* holds values that are not finite",
    ),
}


@pytest.mark.parametrize("case", SOURCE_LIES)
def test_source_lies_are_refused(tmp_path: Path, case: str) -> None:
    path = tmp_path / "s.safetensors"
    write_source(path, feature_maps())
    change, features, words = SOURCE_LIES[case]
    rewrite(path, change, features)
    with pytest.raises(BadInput, match=words) as caught:
        load_maps(path).bottleneck_weight()
    assert "\n" not in str(caught.value)
    assert not all(check.ok for check in verify_files(path))


MANIFEST_LIES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"features": {"state": 1, "next-row": 1}}, "feature 'next-row' version 1, which this"),
    "version": ({"features": {"state": 1, "previous-1": 2}}, "'previous-1' version 2, this ridgefit knows"),
    "others": ({"features": {"state": 1, "previous-2": 1, "mlp": 1}}, r"describes \(features\)"),
    "rank": ({"bottleneck": [REST, 64]}, r"describes \(bottleneck\)"),
    "layers": ({"state_only": [3]}, r"describes \(state_only\)"),
    "width": ({"in_width": 128}, r"describes \(in_width\)"),
}


@pytest.mark.parametrize("case", MANIFEST_LIES)
def test_manifest_lies_are_refused(tmp_path: Path, case: str) -> None:
    write_maps(tmp_path / "maps", [SplitMaps(feature_maps())], fingerprint=PRINT)
    path = tmp_path / "maps" / "ridgefit.json"
    table = json.loads(path.read_text())
    changes, words = MANIFEST_LIES[case]
    table["splits"]["3"].update(changes)
    path.write_text(json.dumps(table))
    with pytest.raises(BadInput, match=words):
        load_maps(tmp_path / "maps")


def test_a_spoilt_bottleneck_file_is_refused(tmp_path: Path) -> None:
    write_format1(tmp_path / "f", feature_maps(), int8=True)
    file, manifest = tmp_path / "f" / "bottleneck.safetensors", tmp_path / "f" / "ridgefill.json"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + b"\x01")
    with pytest.raises(BadInput, match=r"bottleneck.safetensors is not the file its manifest names"):
        load_maps(tmp_path / "f").bottleneck_weight()
    save_file({"other": torch.zeros(4, 2).bfloat16()}, file)
    table = json.loads(manifest.read_text())
    table["files"]["bottleneck.safetensors"] = sha256_file(file)
    manifest.write_text(json.dumps(table))
    with pytest.raises(BadInput, match="does not hold a bottleneck in BF16"):
        load_maps(tmp_path / "f")
    file.unlink()
    with pytest.raises(BadInput, match=r"bottleneck.safetensors is missing"):
        load_maps(tmp_path / "f")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bottleneck": torch.zeros(4, 8)}, r"has shape \(4, 8\)"),
        ({"features": ("state",), "bottleneck": torch.zeros(8, 2)}, "read the state alone"),
        ({"bottleneck": torch.zeros(64, 32)}, "rank 32 have 160"),
    ],
)
def test_maps_in_memory_are_judged_alike(change: dict[str, Any], words: str) -> None:
    item = LayerMap(torch.zeros(HIDDEN, HIDDEN + 16), torch.zeros(HIDDEN))
    with pytest.raises(BadInput, match=words):
        MapSet.of({3: item, 4: item}, **{"features": ("state", "previous-1"), **change})
