"""Source files and format-1 folders: bytes, published sizes and layouts, round trips, refusals."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from ridgefit.errors import BadInput
from ridgefit.maps import (
    Credit,
    Fingerprint,
    Format1Settings,
    LayerMap,
    MapSet,
    TensorSpec,
    header_bytes,
    load_maps,
    quantize,
    quantize_int8,
    write_format1,
    write_source,
    write_tensors,
)

PRINT = Fingerprint(
    family="llama",
    name="org/tiny",
    revision="0" * 40,
    dims={"n_layers": 12, "hidden": 16, "vocab": 100},
    layer_kinds=("full_attention",) * 12,
    dtype="float32",
    tokenizer_sha256="ab" * 32,
)


def maps_of(layers: range, out: int = 16, width: int = 128, **settings: Any) -> MapSet:
    generator = torch.Generator().manual_seed(layers.start)
    return MapSet.of(
        {
            layer: LayerMap(
                torch.randn(out, width, generator=generator), torch.randn(out, generator=generator)
            )
            for layer in layers
        },
        **settings,
    )


def equal(left: MapSet, right: MapSet) -> bool:
    return left.layers == right.layers and all(
        torch.equal(a, b)
        for layer in left.layers
        for a, b in zip(left.layer(layer), right.layer(layer), strict=True)
    )


def snapshot(folder: Path) -> dict[str, str]:
    return {
        str(item.relative_to(folder)): hashlib.sha256(item.read_bytes()).hexdigest()
        for item in sorted(folder.rglob("*"))
        if item.is_file()
    }


# --- source files ---


def test_source_file_round_trip_and_bytes(tmp_path: Path) -> None:
    maps = maps_of(range(8, 12), fingerprint=PRINT)
    path = tmp_path / "s8.safetensors"
    metadata = {"lambda": "0.03", "train_rows": "1000", "fit": "centred ridge, unpenalised bias"}
    sha256 = write_source(path, maps, metadata)
    assert sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    tensors = load_file(path)
    assert set(tensors) == {f"layer.{layer}" for layer in range(8, 12)}
    for layer in range(8, 12):
        tensor = tensors[f"layer.{layer}"]
        assert tensor.dtype == torch.bfloat16
        assert tensor.shape == (16, 129)
        assert torch.equal(tensor[:, :-1], maps.layer(layer).weight)
        assert torch.equal(tensor[:, -1], maps.layer(layer).bias)
    with safe_open(path, "pt") as file:
        found = file.metadata()
    assert {key: found[key] for key in metadata} == metadata
    assert found["split"] == "8"
    raw = path.read_bytes()
    header = json.loads(raw[8 : 8 + struct.unpack("<Q", raw[:8])[0]])
    assert list(header)[:4] == ["__metadata__", "layer.10", "layer.11", "layer.8"]
    back = load_maps(path)
    assert equal(back, maps)
    assert (back.split, back.layers, back.source) == (8, range(8, 12), "source")
    assert (back.in_width, back.out_width, back.hidden) == (128, 16, 16)
    assert back.fingerprint == PRINT
    assert back.features == ("state",)


def test_a_published_source_file_loads(tmp_path: Path) -> None:
    """Written by the library, metadata of another fit, a final map of the wider stream beside the layers."""
    generator = torch.Generator().manual_seed(0)
    tensors = {f"layer.{layer}": torch.randn(8, 33, generator=generator).bfloat16() for layer in range(9, 12)}
    tensors["final"] = torch.randn(32, 33, generator=generator).bfloat16()
    path = tmp_path / "x.safetensors"
    save_file(tensors, path, {"split": "9", "lambda": "0.03", "checkpoint": "somewhere", "share": "0.5"})
    maps = load_maps(path, split=9)
    assert maps.layers == range(9, 12)
    assert (maps.out_width, maps.in_width) == (8, 32)
    assert torch.equal(maps.layer(10).bias, tensors["layer.10"][:, 32])
    assert maps.final is not None
    assert torch.equal(maps.final().weight, tensors["final"][:, :32])
    assert maps.fingerprint is None
    assert maps.info["share"] == "0.5"


SOURCE_LIES: dict[str, tuple[dict[str, torch.Tensor], dict[str, str], str]] = {
    "gap": ({"layer.3": torch.zeros(2, 3), "layer.5": torch.zeros(2, 3)}, {}, "lacks the map of layer 4"),
    "none": ({"final": torch.zeros(2, 3)}, {}, "no map of any layer"),
    "other": ({"layer.3": torch.zeros(2, 3), "lm_head": torch.zeros(2)}, {}, "holds the tensor 'lm_head'"),
    "padded": ({"layer.03": torch.zeros(2, 3)}, {}, "holds the tensor 'layer.03'"),
    "shapes": ({"layer.3": torch.zeros(2, 3), "layer.4": torch.zeros(3, 3)}, {}, "share one shape"),
    "vector": ({"layer.3": torch.zeros(2)}, {}, "not a BF16 map"),
    "no input": ({"layer.3": torch.zeros(2, 1)}, {}, "no column but its bias"),
    "split": ({"layer.3": torch.zeros(2, 3)}, {"split": "2"}, "states split '2' and its lowest layer is 3"),
    "feature": ({"layer.3": torch.zeros(2, 3)}, {"features": "state:1,next:1"}, "feature 'next' version 1"),
    "version": ({"layer.3": torch.zeros(2, 3)}, {"features": "state:2"}, "feature 'state' version 2"),
    "fingerprint": ({"layer.3": torch.zeros(2, 3)}, {"fingerprint": "{}"}, "fingerprint"),
}


@pytest.mark.parametrize("case", SOURCE_LIES)
def test_source_lies_are_refused(tmp_path: Path, case: str) -> None:
    tensors, metadata, words = SOURCE_LIES[case]
    path = tmp_path / "lie.safetensors"
    save_file({name: tensor.bfloat16() for name, tensor in tensors.items()}, path, metadata)
    with pytest.raises(BadInput, match=words) as caught:
        load_maps(path)
    assert "lie.safetensors" in str(caught.value)


def test_source_dtype_and_values_are_judged(tmp_path: Path) -> None:
    path = tmp_path / "lie.safetensors"
    save_file({"layer.3": torch.zeros(2, 3)}, path)
    with pytest.raises(BadInput, match="is not a BF16 map"):
        load_maps(path)
    save_file({"layer.3": torch.tensor([[1.0, float("nan"), 0]]).bfloat16()}, path)
    maps = load_maps(path)
    with pytest.raises(BadInput, match=r"layer 3 in .*lie.safetensors holds values that are not finite"):
        maps.layer(3)
    with pytest.raises(BadInput, match="no map of layer 4, only of 3 to 3"):
        maps.layer(4)
    with pytest.raises(BadInput, match="holds split 3, not 5"):
        load_maps(path, split=5)


def test_maps_in_memory_are_judged() -> None:
    one = LayerMap(torch.zeros(2, 3), torch.zeros(2))
    with pytest.raises(BadInput, match="lacks the map of layer 4"):
        MapSet.of({3: one, 5: one})
    with pytest.raises(BadInput, match="do not share one shape"):
        MapSet.of({3: one, 4: LayerMap(torch.zeros(2, 4), torch.zeros(2))})
    with pytest.raises(BadInput, match="do not share one shape"):
        MapSet.of({3: LayerMap(torch.zeros(2, 3), torch.zeros(3))})


# --- the published sizes ---

CREDIT_BYTES = 99  # name + authors + license + doi; only 98, 99 and 100 agree with all three published sizes
PLANES = [
    TensorSpec("proj.47.codes", torch.int8, (2560, 10240)),
    TensorSpec("proj.47.scale", torch.bfloat16, (2560, 80)),
    TensorSpec("proj.47.bias", torch.bfloat16, (2560,)),
]
SCORES = [TensorSpec(name, torch.float32, (248320,)) for name in ("score", "score_none", "score_all")]
STATES = [
    TensorSpec(f"st.{layer}", torch.float32, (48, 128, 128)) for layer in range(24, 48) if layer % 4 != 3
]


def credit_of(size: int) -> Credit:
    fixed = Credit(name="", authors=("a", "b"), license="Apache-2.0", doi="10.5281/zenodo.23179168")
    used = sum(len(fixed.header[key]) for key in ("name", "authors", "license", "doi"))
    return fixed.model_copy(update={"name": "n" * (size - used)})


@pytest.mark.parametrize(("specs", "size"), [(PLANES, 26_629_560), (STATES, 56_624_736), (SCORES, 2_980_272)])
def test_three_published_sizes_follow_from_one_credit_block(specs: list[TensorSpec], size: int) -> None:
    body = sum(spec.nbytes for spec in specs)
    assert len(header_bytes(specs, credit_of(CREDIT_BYTES).header)) + body == size
    wrong = credit_of(CREDIT_BYTES + 8).header
    assert len(header_bytes(specs, wrong)) + body == size + 8
    unmarked = {key: text for key, text in wrong.items() if key != "format"}
    assert len(header_bytes(specs, unmarked)) + body != size


def bf16_bits(values: np.ndarray) -> np.ndarray:
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widened(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def test_quantising_the_published_source_shape(tmp_path: Path) -> None:
    """`layer.47` [2560, 10241]: sizes, header, and codes and scales against numpy, from file to file."""
    generator = torch.Generator().manual_seed(4)
    stored = (torch.randn(2560, 10241, generator=generator) * 0.02).bfloat16()
    source = tmp_path / "source.safetensors"
    save_file({"layer.47": stored}, source, {"split": "47"})
    report = quantize(source, tmp_path / "out", settings=Format1Settings(credit=credit_of(CREDIT_BYTES)))
    path = tmp_path / "out" / "proj8.L47.safetensors"
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    assert len(raw) == 26_629_560
    assert len(raw) - 8 - length == 26_629_120
    assert length % 8 == 0
    header = json.loads(raw[8 : 8 + length])
    assert list(header) == ["__metadata__", "proj.47.bias", "proj.47.scale", "proj.47.codes"]
    assert list(header["__metadata__"]) == ["format", "name", "authors", "license", "doi"]
    assert header["__metadata__"]["format"] == "ridgefill-projector-1"
    body = raw[8 + length :]
    bits = stored.view(torch.int16).numpy().view(np.uint16)
    weight = widened(np.ascontiguousarray(bits[:, :-1])).reshape(2560, 80, 128)
    scale = bf16_bits(np.abs(weight).max(2) / np.float32(127))
    step = widened(scale)[:, :, None]
    codes = np.clip(np.rint(weight / step), -127, 127)
    assert body[:5120] == bits[:, -1].tobytes()
    assert body[5120 : 5120 + 409_600] == scale.tobytes()
    assert body[5120 + 409_600 :] == codes.astype(np.int8).tobytes()
    worst = float((np.abs(weight.astype(np.float64) - codes * step.astype(np.float64)) / step).max())
    assert report.largest_error_steps == worst <= 0.5
    assert report.splits[47].files == {path.name: hashlib.sha256(raw).hexdigest()}


# --- format-1 folders ---


@pytest.mark.parametrize("int8", [False, True])
def test_format1_round_trip(tmp_path: Path, int8: bool) -> None:
    maps = maps_of(range(8, 12), fingerprint=PRINT)
    report = write_format1(tmp_path / "out", maps, int8=int8)
    stem = "proj8" if int8 else "proj"
    names = [f"{stem}.L{layer}.safetensors" for layer in (10, 11, 8, 9)]
    assert sorted(item.name for item in (tmp_path / "out").iterdir()) == [*names, "ridgefill.json"]
    assert list(report.files) == names
    back = load_maps(tmp_path / "out")
    assert (back.source, back.layers) == ("format1-int8" if int8 else "format1-bf16", range(8, 12))
    if not int8:
        assert equal(back, maps)
        assert back.planes is None
        assert report.steps == {}
        return
    assert back.planes is not None
    for layer in maps.layers:
        weight, bias = maps.layer(layer)
        codes, scale = quantize_int8(weight)
        for found, wanted in zip(back.planes(layer), (codes, scale, bias), strict=True):
            assert torch.equal(found, wanted)
        step = scale.float().repeat_interleave(128, 1)
        assert torch.equal(back.layer(layer).weight, (codes * step).bfloat16())
        assert 0.3 < report.steps[layer] <= 0.5


def test_manifest_fields_and_their_order(tmp_path: Path) -> None:
    maps = maps_of(range(8, 12), fingerprint=PRINT)
    credit = Credit(name="N", authors=("A", "B"), license="mit", doi="10.1/2", homepage="h")
    write_format1(tmp_path / "out", maps, int8=True, settings=Format1Settings(credit=credit, adapter="eng"))
    text = (tmp_path / "out" / "ridgefill.json").read_text()
    manifest = json.loads(text)
    assert text == json.dumps(manifest, indent=1) + "\n"
    assert list(manifest) == [
        *("format", "name", "authors", "license", "doi", "homepage", "plugin_min_version", "adapter"),
        *("adapter_abi", "model", "split", "stream", "stream_width", "block_in_width", "layers", "tail"),
        *("projector", "fit", "files"),
    ]
    assert manifest["format"] == 1
    assert (manifest["authors"], manifest["adapter"], manifest["split"]) == (["A", "B"], "eng", 8)
    assert manifest["layers"] == {str(layer): "full_attn" for layer in range(8, 12)}
    assert list(manifest["model"]) == ["arch_id", "name", "meta", "vocab_sha256", "encodings", "anchors"]
    assert all(isinstance(value, str) for value in manifest["model"]["meta"].values())
    assert manifest["projector"] == {
        "dtype": "i8",
        "layout": "i8_row128",
        "encoding": "i8*bf16[1x128]",
        "files": {str(layer): f"proj8.L{layer}.safetensors" for layer in range(8, 12)},
    }
    assert list(manifest["files"]) == sorted(manifest["files"])
    for name, sha256 in manifest["files"].items():
        raw = (tmp_path / "out" / name).read_bytes()
        assert sha256 == hashlib.sha256(raw).hexdigest()
        header = json.loads(raw[8 : 8 + struct.unpack("<Q", raw[:8])[0]])
        assert header["__metadata__"]["authors"] == "A, B"


def published(folder: Path, layers: range, out: int, width: int, *, int8: bool, skip: str = "") -> None:
    """A folder with what the two published ones hold beside their maps, written by the library."""
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(1)
    files: dict[str, dict[str, torch.Tensor]] = {}
    for layer in layers:
        weight = torch.randn(out, width, generator=generator).bfloat16()
        bias = torch.randn(out, generator=generator).bfloat16()
        planes = {f"proj.{layer}.weight": weight}
        if int8:
            codes, scale = quantize_int8(weight)
            planes = {f"proj.{layer}.codes": codes, f"proj.{layer}.scale": scale}
        name = f"{'proj8' if int8 else 'proj'}.L{layer}.safetensors"
        files[name] = planes | {f"proj.{layer}.bias": bias}
    files["correction.safetensors"] = {f"st.{layer}": torch.randn(4, 8, 8) for layer in layers}
    files["rowsel.safetensors"] = {key: torch.zeros(50) for key in ("score", "score_none", "score_all")}
    hashes = {}
    for name, tensors in files.items():
        if name != skip:
            save_file(tensors, folder / name, {"format": "ridgefill-projector-1"})
            hashes[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    (folder / "chat_template.jinja").write_text("{{ x }}")
    hashes["chat_template.jinja"] = hashlib.sha256(b"{{ x }}").hexdigest()
    for name in ("README.md", "LICENSE", "NOTICE", "SHA256SUMS"):
        (folder / name).write_text("words")
    manifest = {
        "format": 1,
        "name": "Projector",
        "authors": ["One", "Two"],
        "license": "apache-2.0",
        "doi": "10.5281/zenodo.23179168",
        "homepage": "",
        "plugin_min_version": "0.3.0",
        "adapter": "qwen4exp",
        "adapter_abi": 1,
        "model": {
            "arch_id": "qwen4exp",
            "name": "Some model",
            "meta": {"n_layers": str(layers.stop), "n_embd": str(out), "model_type": "qwen"},
            "vocab_sha256": "0" * 64,
            "encodings": {"blk.1.x": "q8"},
            "anchors": {"blk.1.norm": "1" * 64},
        },
        "split": layers.start,
        "stream": "hc",
        "stream_width": width,
        "block_in_width": out,
        "layers": {str(layer): "recurrent" for layer in layers},
        "tail": {"default": 2048, "min": 512, "table": [1024, 2048]},
        "correction": {"kind": "gdn_terminal_state", "layers": list(layers)},
        "rowsel": {"classes": "cap,mixed,piece"},
        "projector": {
            "dtype": "i8" if int8 else "bf16",
            "layout": "i8_row128" if int8 else "plain_nk",
            **({"encoding": "i8*bf16[1x128]"} if int8 else {}),
            "files": {str(layer): f"{'proj8' if int8 else 'proj'}.L{layer}.safetensors" for layer in layers},
        },
        "marker": {"spec": "m"},
        "fit": {"engine": "e", "proj_sha256": "2" * 64},
        "files": dict(sorted(hashes.items())),
    }
    (folder / "ridgefill.json").write_text(json.dumps(manifest, indent=1) + "\n")


SHAPES = {"Flash-Next": (range(24, 48), 20, 512), "27B": (range(16, 64), 128, 128)}


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_published_folders_load(tmp_path: Path, name: str, int8: bool) -> None:
    layers, out, width = SHAPES[name]
    published(tmp_path / "p", layers, out, width, int8=int8)
    maps = load_maps(tmp_path / "p", split=layers.start)
    assert (maps.layers, maps.out_width, maps.in_width) == (layers, out, width)
    assert maps.extras == ("chat_template.jinja", "correction.safetensors", "rowsel.safetensors")
    assert maps.fingerprint is not None
    assert maps.fingerprint.dims == {"n_layers": layers.stop}
    assert maps.layer(layers.stop - 1).weight.shape == (out, width)


def test_int8_of_a_published_bf16_folder_keeps_the_rest(tmp_path: Path) -> None:
    published(tmp_path / "bf16", range(4, 8), 20, 256, int8=False)
    published(tmp_path / "i8", range(4, 8), 20, 256, int8=True)
    quantize(tmp_path / "bf16", tmp_path / "out")
    old = json.loads((tmp_path / "bf16" / "ridgefill.json").read_text())
    new = json.loads((tmp_path / "out" / "ridgefill.json").read_text())
    assert list(new) == list(old)
    changed = {key for key in old if old[key] != new[key]}
    assert changed == {"projector", "files"}
    manifest = (tmp_path / "bf16" / "ridgefill.json").read_bytes()
    assert new["projector"]["source"] == {
        "folder": "bf16",
        "manifest_sha256": hashlib.sha256(manifest).hexdigest(),
    }
    for name in ("correction.safetensors", "rowsel.safetensors", "chat_template.jinja"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "bf16" / name).read_bytes()
    assert not (tmp_path / "out" / "README.md").exists()
    assert "README.md" not in new["files"]
    assert equal(load_maps(tmp_path / "out"), load_maps(tmp_path / "i8"))
    with pytest.raises(BadInput, match="already holds int8 maps"):
        quantize(tmp_path / "out", tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_recrediting_says_what_it_was_rebuilt_from(tmp_path: Path) -> None:
    published(tmp_path / "p", range(4, 6), 20, 128, int8=False)
    settings = Format1Settings(credit=Credit(name="mine"))
    write_format1(tmp_path / "out", load_maps(tmp_path / "p"), int8=False, settings=settings)
    manifest = json.loads((tmp_path / "out" / "ridgefill.json").read_text())
    assert manifest["name"] == "mine"
    assert manifest["rebuilt_from"]["folder"] == "p"
    assert list(manifest)[-1] == "rebuilt_from"


def test_a_final_map_travels_in_bf16(tmp_path: Path) -> None:
    final = LayerMap(torch.randn(128, 128).bfloat16(), torch.randn(128).bfloat16())
    maps = replace(maps_of(range(4, 6)), final=lambda: final)
    write_source(tmp_path / "s.safetensors", maps)
    quantize(tmp_path / "s.safetensors", tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "ridgefill.json").read_text())
    assert manifest["final"] == {"file": "final.safetensors", "dtype": "bf16"}
    back = load_maps(tmp_path / "out")
    assert back.final is not None
    assert all(torch.equal(a, b) for a, b in zip(back.final(), final, strict=True))
    assert back.extras == ()


def spoil_hash(folder: Path) -> None:
    path = folder / "proj8.L5.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


def spoil_shape(folder: Path) -> None:
    rewrite(
        folder,
        "proj8.L5.safetensors",
        {
            "proj.5.codes": torch.zeros(20, 128, dtype=torch.int8),
            "proj.5.scale": torch.ones(20, 2).bfloat16(),
            "proj.5.bias": torch.zeros(20).bfloat16(),
        },
    )


def spoil_other_width(folder: Path) -> None:
    planes = {"proj.5.codes": torch.zeros(20, 128, dtype=torch.int8)}
    planes |= {"proj.5.scale": torch.ones(20, 1).bfloat16(), "proj.5.bias": torch.zeros(20).bfloat16()}
    rewrite(folder, "proj8.L5.safetensors", planes)


def spoil_values(folder: Path) -> None:
    planes = {"proj.5.codes": torch.zeros(20, 256, dtype=torch.int8)}
    planes |= {
        "proj.5.scale": torch.full((20, 2), torch.inf).bfloat16(),
        "proj.5.bias": torch.zeros(20).bfloat16(),
    }
    rewrite(folder, "proj8.L5.safetensors", planes)


def spoil_twice(folder: Path) -> None:
    rewrite(folder, "correction.safetensors", {"proj.5.bias": torch.zeros(20)})


def rewrite(folder: Path, name: str, tensors: dict[str, torch.Tensor]) -> None:
    save_file(tensors, folder / name)
    edit(
        folder, lambda m: m["files"].update({name: hashlib.sha256((folder / name).read_bytes()).hexdigest()})
    )


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "ridgefill.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


FORMAT1_LIES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing file": (lambda f: (f / "proj8.L5.safetensors").unlink(), "proj8.L5.safetensors is missing"),
    "missing extra": (lambda f: (f / "rowsel.safetensors").unlink(), "rowsel.safetensors is missing"),
    "corrupt body": (spoil_hash, "proj8.L5.safetensors is not the file its manifest names"),
    "truncated": (
        lambda f: (f / "proj8.L6.safetensors").write_bytes((f / "proj8.L6.safetensors").read_bytes()[:-9]),
        "proj8.L6.safetensors is truncated",
    ),
    "scale shape": (spoil_shape, r"proj8.L5.safetensors does not hold layer 5 as described"),
    "width": (spoil_other_width, "that of layer 5 is"),
    "values": (spoil_values, "proj8.L5.safetensors holds values that are not finite"),
    "twice": (spoil_twice, "holds the tensor 'proj.5.bias' twice"),
    "format 2": (lambda f: edit(f, lambda m: m.update(format=2)), "is of format 2"),
    "format true": (lambda f: edit(f, lambda m: m.update(format=True)), "is of format True"),
    "no projector": (lambda f: edit(f, lambda m: m.pop("projector")), "lacks the table 'projector'"),
    "no files": (lambda f: edit(f, lambda m: m.pop("files")), "lacks the table 'files'"),
    "dtype": (lambda f: edit(f, lambda m: m["projector"].update(dtype="i4")), "dtype 'i4'"),
    "layout": (lambda f: edit(f, lambda m: m["projector"].update(layout="tiled")), "lays out i8 maps"),
    "encoding": (lambda f: edit(f, lambda m: m["projector"].update(encoding="x")), "lays out i8 maps"),
    "split": (lambda f: edit(f, lambda m: m.update(split=5)), "states split 5 and its lowest layer is 4"),
    "gap": (lambda f: edit(f, lambda m: m["projector"]["files"].pop("5")), "lacks the map of layer 5"),
    "layer name": (
        lambda f: edit(f, lambda m: m["projector"]["files"].update({"x": "y"})),
        "names the layer",
    ),
    "escape": (
        lambda f: edit(f, lambda m: m["projector"]["files"].update({"5": "../proj8.L5.safetensors"})),
        "not a bare file name",
    ),
    "absolute": (
        lambda f: edit(f, lambda m: m["files"].update({"/etc/passwd": "0" * 64})),
        "not a bare file",
    ),
    "dots": (lambda f: edit(f, lambda m: m["files"].update({"..": "0" * 64})), "not a bare file name"),
    "unlisted": (
        lambda f: edit(f, lambda m: m["files"].pop("proj8.L5.safetensors")),
        "gives no sha256 of proj8.L5.safetensors",
    ),
    "no sha": (
        lambda f: edit(f, lambda m: m["files"].update({"rowsel.safetensors": "x"})),
        "no sha256 of rowsel",
    ),
    "width stated": (lambda f: edit(f, lambda m: m.update(stream_width=128)), "states .out, in. .20, 128."),
    "feature": (lambda f: edit(f, lambda m: m.update(features={"next": 1})), "feature 'next'"),
    "not json": (lambda f: (f / "ridgefill.json").write_text("{"), "not valid JSON"),
    "list": (lambda f: (f / "ridgefill.json").write_text("[]"), "not a JSON object"),
}


@pytest.mark.parametrize("case", FORMAT1_LIES)
def test_format1_lies_are_refused_by_name(tmp_path: Path, case: str) -> None:
    published(tmp_path / "p", range(4, 8), 20, 256, int8=True)
    spoil, words = FORMAT1_LIES[case]
    spoil(tmp_path / "p")
    with pytest.raises(BadInput, match=words) as caught:
        maps = load_maps(tmp_path / "p")
        for layer in maps.layers:
            maps.layer(layer)
    assert "\n" not in str(caught.value)


def test_widths_that_groups_do_not_fill_are_refused(tmp_path: Path) -> None:
    write_source(tmp_path / "s.safetensors", maps_of(range(4, 6), width=576))
    with pytest.raises(BadInput, match="576 is not a multiple of 128"):
        quantize(tmp_path / "s.safetensors", tmp_path / "out")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["s.safetensors"]
    write_format1(tmp_path / "bf16", load_maps(tmp_path / "s.safetensors"), int8=False)
    assert load_maps(tmp_path / "bf16").in_width == 576


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    good = maps_of(range(4, 8))

    def read(layer: int) -> LayerMap:
        return (
            LayerMap(torch.full((16, 128), float("nan")), torch.zeros(16))
            if layer == 6
            else good.layer(layer)
        )

    for write in (
        lambda maps: write_source(tmp_path / "s.safetensors", maps),
        lambda maps: write_format1(tmp_path / "out", maps, int8=True),
    ):
        with pytest.raises(BadInput, match="layer 6 holds values that are not finite"):
            write(replace(good, read=read))
    assert not list(tmp_path.iterdir())
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    with pytest.raises(BadInput, match="already exists and is not empty"):
        write_format1(tmp_path / "out", good, int8=True)


def test_only_one_layer_is_in_memory(tmp_path: Path) -> None:
    """Layers are read when written, in written order, and never twice."""
    good = maps_of(range(8, 12))
    seen: list[int] = []

    def read(layer: int) -> LayerMap:
        seen.append(layer)
        return good.layer(layer)

    write_source(tmp_path / "s.safetensors", replace(good, read=read))
    assert seen == [10, 11, 8, 9]
    seen.clear()
    write_format1(tmp_path / "out", replace(good, read=read), int8=True)
    assert seen == [8, 9, 10, 11]


def test_tensor_files_hold_map_dtypes_only(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"do not hold torch.float64"):
        write_tensors(
            tmp_path / "x", [TensorSpec("a", torch.float64, (1,))], lambda _: torch.zeros(1).double(), {}
        )
    assert not list(tmp_path.iterdir())
