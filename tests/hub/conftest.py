"""A small maps folder of a model named on the Hub, and the repository made of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hub_server import TOKEN, Server

from ridgefit.hub import Hub
from ridgefit.hub.build import Base, build_repository
from ridgefit.hub.card import About
from ridgefit.hub.licence import Licence
from ridgefit.maps import Defaults, Fingerprint, LayerMap, MapSet, SplitMaps, write_maps

BASE = "org/tiny"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
IDENTITY: dict[str, Any] = {
    "family": "llama",
    "name": BASE,
    "revision": COMMIT,
    "n_layers": 6,
    "hidden": 16,
    "vocab": 320,
    "kv_heads": 2,
    "head_dim": 8,
    "layer_kinds": ["full_attention"] * 5 + ["sliding_attention"],
    "window": 32,
    "dtype": "float32",
    "config_sha256": "cd" * 32,
    "tokenizer_sha256": "ab" * 32,
}


def maps_of(layers: range, width: int = 16) -> MapSet:
    generator = torch.Generator().manual_seed(layers.start)
    return MapSet.of(
        {
            layer: LayerMap(torch.randn(16, width, generator=generator), torch.randn(16, generator=generator))
            for layer in layers
        },
        defaults=Defaults(tail=256, sink_rows=4),
    )


def write_tiny_maps(out: Path, **changes: Any) -> Path:
    """A maps folder with splits 3 and 4, as solve would write it."""
    splits = (
        SplitMaps(
            maps_of(range(split, 6)),
            alphas=(0.03,) * (6 - split),
            rows=1000,
            scores={"grid": [{"alpha": 0.03, "mean": 0.9}]},
        )
        for split in (4, 3)
    )
    write_maps(
        out,
        splits,
        fingerprint=Fingerprint.of({**IDENTITY, **changes}),
        provenance={
            "documents": [
                {"sha256": "11" * 32, "tokens": 12, "fold": "fit", "domain": "/data/someone/x.txt"}
            ],
            "capture": {"identity": {"data": ["hub:org/words@" + "9" * 40 + ":default:train"]}},
            "versions": {"torch": "2", "ridgefit": "0"},
        },
    )
    return out


def about(repo: str = "me/maps", **settings: Any) -> About:
    return About(repo, settings.pop("licence", Licence("apache-2.0")), **settings)


def snapshot(folder: Path) -> dict[str, str]:
    return {
        item.relative_to(folder).as_posix(): hashlib.sha256(item.read_bytes()).hexdigest()
        for item in sorted(folder.rglob("*"))
        if item.is_file()
    }


@pytest.fixture(scope="session")
def tiny_maps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_maps(tmp_path_factory.mktemp("hub") / "maps")


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory, tiny_maps: Path) -> Path:
    """A built repository; read only."""
    folder = tmp_path_factory.mktemp("hub") / "repository"
    build_repository(tiny_maps, folder, Base(BASE, COMMIT, "fit"), about(datasets=("org/words",)))
    return folder


@pytest.fixture
def build(tiny_maps: Path) -> Callable[..., Path]:
    """`build(out, **about)` -> a repository that may be changed."""

    def go(out: Path, **settings: Any) -> Path:
        build_repository(tiny_maps, out, Base(BASE, COMMIT, "fit"), about(**settings))
        return out

    return go


@pytest.fixture(scope="session")
def hub_process() -> Iterator[Server]:
    server = Server()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def server(hub_process: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """An empty local Hub; the client's transport is plain HTTP, since nothing here speaks Xet."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    hub_process.reset()
    return hub_process


@pytest.fixture
def hub(server: Server, tmp_path: Path) -> Hub:
    return Hub(server.endpoint, TOKEN, tmp_path / "hub-cache")
