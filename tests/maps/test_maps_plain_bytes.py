"""Files of plain maps keep their bytes: what was published before must be what is written today.

The hashes were taken from the code before maps could read more than the split state.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from ridgefit.hub.build import Base, build_repository
from ridgefit.hub.card import About
from ridgefit.hub.licence import Licence
from ridgefit.maps import (
    Defaults,
    Fingerprint,
    LayerMap,
    MapSet,
    SplitMaps,
    quantize,
    write_format1,
    write_maps,
    write_source,
)

PRINT = Fingerprint(
    family="llama",
    name="org/tiny",
    revision="0123456789" * 4,
    dims={"n_layers": 5, "hidden": 128, "vocab": 100},
    layer_kinds=("full_attention",) * 5,
    dtype="float32",
    config_sha256="cd" * 32,
    tokenizer_sha256="ab" * 32,
)
GOLDEN = {
    "alone.safetensors": "d38368c6c9a7523b80fc689009ff27deacf822a4fc6cd799c6c5311e5b9e33bd",
    "bf16/proj.L3.safetensors": "9b33b5eabe116b1105c0c639e4596b6e954ffd8bf80dcf0db939237aa815adad",
    "bf16/proj.L4.safetensors": "bd8ff307f5a73d409ee4870099b3b19e48876c041f2f8055caa20706def47026",
    "bf16/ridgefill.json": "1a2b947801657d3ae32fa523fcc4ee62f15733a50246853150ad15b3f21dd02b",
    "hub-maps/SHA256SUMS": "931b75f29b9e658e7f01f16dcd1d69608c5a5ad6ff8cc6db3f3726e923fd96e1",
    "hub-maps/config.json": "4953e9ee0c48adbedabeac10f2213e02ff9c5eb54b4cf3b5169b1ff4e6f69e42",
    "hub-maps/provenance.json": "45fe0ba7fdd7004e9511f426a4cddb739e364716d9149921b50003762f77627d",
    "hub-maps/ridgefit.json": "71a484395f9c07c985a89f0a27ee73f7ba7b484b9f1144bfa9ae91c99af52b12",
    "hub-maps/s3/proj.L3.safetensors": "e0f104f0c74ef555c688dc59a7e116d61bc8552424aeba74c086009b506c8096",
    "hub-maps/s3/proj.L4.safetensors": "54a21a6f37a2b856e1df63abbbd611b552e2d67cc842c3a14f1410cb0ee7c1f0",
    "hub-maps/s3/ridgefill.json": "58ab9b33e3ce1c82bace2158010189ba206d4924e8635678be09efb099d29adb",
    "hub-maps8/SHA256SUMS": "6d82952d5b17fa0b24d0ab1ccc9b6be093b04744230b65301c92666a448570b6",
    "hub-maps8/config.json": "69d2512022c1f84adea5146b26bcfe8c46951c95e5b21ba0e0d6dcfa9e6ff713",
    "hub-maps8/provenance.json": "103cc448a72cd8c8bf545cf9bcc322db9d857d4dffd29b0efd4399fc765f29b1",
    "hub-maps8/ridgefit.json": "9986e8a4a17e2c88d8ab484e785f92246c90bfa94d0b6d0ecf9d2175577d0315",
    "hub-maps8/s3/proj8.L3.safetensors": "9c2d2c7f6986073f86f1c37649ef7508d4dc3422a439e00107420dffacb025b5",
    "hub-maps8/s3/proj8.L4.safetensors": "089f514bf2c4f8ffedb1d2df89554c8f6ec8b2c812cead2cd2f241cb218521fd",
    "hub-maps8/s3/ridgefill.json": "97e5d3b62c32681291367f9be08818f9ca725a00696ecb45451129a7e3b1fe65",
    "int8/proj8.L3.safetensors": "9c2d2c7f6986073f86f1c37649ef7508d4dc3422a439e00107420dffacb025b5",
    "int8/proj8.L4.safetensors": "089f514bf2c4f8ffedb1d2df89554c8f6ec8b2c812cead2cd2f241cb218521fd",
    "int8/ridgefill.json": "b26168ee04efb49cf5f0b293fd330c46e7182855ee25d3ee71732430c108a211",
    "maps/ridgefit.json": "5aa859f6f985291c5fb0af64eccc9dabeaef694c826a2a730da91c74cf07242c",
    "maps/s3.safetensors": "6d30feceb3306fa29f49a2743918151537ecb7dc0f57b6f29766ba4462f297cf",
    "maps8/ridgefit.json": "79a8c71dadc4d85955761d2471a0eb4f9fd17dfd3c58b7f93443cbda54ec0420",
    "maps8/s3/proj8.L3.safetensors": "9c2d2c7f6986073f86f1c37649ef7508d4dc3422a439e00107420dffacb025b5",
    "maps8/s3/proj8.L4.safetensors": "089f514bf2c4f8ffedb1d2df89554c8f6ec8b2c812cead2cd2f241cb218521fd",
    "maps8/s3/ridgefill.json": "97e5d3b62c32681291367f9be08818f9ca725a00696ecb45451129a7e3b1fe65",
}


def plain_maps() -> MapSet:
    """Weights by integer arithmetic alone, so that no library's random numbers are in the hashes."""

    def grid(rows: int, columns: int, seed: int) -> torch.Tensor:
        at = torch.arange(rows * columns, dtype=torch.int64).view(rows, columns)
        return ((at * 7919 + seed * 104729) % 2003 - 1001).double().div(997).bfloat16()

    return MapSet.of(
        {layer: LayerMap(grid(128, 128, layer), grid(1, 128, layer + 50)[0]) for layer in (3, 4)},
        fingerprint=PRINT,
        defaults=Defaults(tail=256, sink_rows=4),
    )


def hashes(folder: Path) -> dict[str, str]:
    return {
        item.relative_to(folder).as_posix(): hashlib.sha256(item.read_bytes()).hexdigest()
        for item in sorted(folder.rglob("*"))
        if item.is_file() and item.name not in (".lock", "README.md")  # the card is prose
    }


def test_plain_maps_keep_their_bytes(tmp_path: Path) -> None:
    maps = plain_maps()
    write_source(tmp_path / "alone.safetensors", maps, {"lambda": "0.03"})
    write_format1(tmp_path / "bf16", maps, int8=False)
    write_format1(tmp_path / "int8", maps, int8=True)
    split = SplitMaps(maps, alphas=(0.03, 0.1), rows=1000, scores={"grid": [{"alpha": 0.03, "mean": 0.9}]})
    folder = tmp_path / "maps"
    write_maps(folder, [split], fingerprint=PRINT, provenance={"versions": {"torch": "2"}})
    quantize(folder, tmp_path / "maps8")
    about = About("me/maps", Licence("apache-2.0"))
    for name in ("maps", "maps8"):
        build_repository(
            tmp_path / name, tmp_path / f"hub-{name}", Base(PRINT.name, PRINT.revision or "", "fit"), about
        )
    assert hashes(tmp_path) == GOLDEN
