"""Repositories of maps that read more than the split state: built, judged, looked at; controls refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hub_server import Server

from ridgefit.errors import BadInput
from ridgefit.files import sha256_file
from ridgefit.hub import Hub, Target, check_repository, look, pull, push
from ridgefit.hub.build import Base, build_repository
from ridgefit.hub.card import About
from ridgefit.hub.licence import Licence
from ridgefit.maps import Defaults, Fingerprint, LayerMap, MapSet, SplitMaps, inspect, load_maps, write_maps

BASE, COMMIT, REPO = "org/tiny", "0123456789abcdef0123456789abcdef01234567", "me/maps"
HIDDEN, RANK = 16, 3
NAMES = ("state", "previous-2", "lower-1")
PRINT = Fingerprint(
    family="llama",
    name=BASE,
    revision=COMMIT,
    dims={"n_layers": 6, "hidden": HIDDEN, "vocab": 320},
    layer_kinds=("full_attention",) * 6,
    dtype="float32",
    config_sha256="cd" * 32,
    tokenizer_sha256="ab" * 32,
)


def written(folder: Path, names: tuple[str, ...] = NAMES) -> Path:
    generator = torch.Generator().manual_seed(0)

    def item(layer: int) -> LayerMap:
        width = HIDDEN if layer == 5 else HIDDEN + RANK
        return LayerMap(torch.randn(HIDDEN, width, generator=generator), torch.zeros(HIDDEN))

    maps = MapSet.of(
        {layer: item(layer) for layer in (3, 4, 5)},
        features=names,
        bottleneck=torch.randn(HIDDEN * (len(names) - 1), RANK, generator=generator),
        defaults=Defaults(tail=256),
    )
    write_maps(folder, [SplitMaps(maps, alphas=(0.03,) * 3, rows=99)], fingerprint=PRINT)
    return folder


def built(maps: Path, out: Path) -> Path:
    build_repository(maps, out, Base(BASE, COMMIT, "fit"), About(REPO, Licence("apache-2.0")))
    return out


def test_a_repository_says_what_its_maps_read(server: Server, hub: Hub, tmp_path: Path) -> None:
    folder = built(written(tmp_path / "maps"), tmp_path / "repo")
    config = check_repository(folder)
    assert config.splits[3].bottleneck == (2 * HIDDEN, RANK)
    assert config.splits[3].state_only == (5,)
    assert (
        "| state + previous-2 + lower-1 through rank 3, 1 layer the state alone |"
        in (folder / "README.md").read_text()
    )
    push(folder, Target(REPO), hub)
    found, local = look(REPO, hub)["splits"][3], inspect(folder)["splits"][3]
    for key in ("features", "bottleneck", "state_only", "shape", "bytes"):
        assert found[key] == local[key], key
    assert found["features"] == list(NAMES)
    pulled = pull(REPO, out=tmp_path / "pulled", hub=hub)
    assert pulled
    one, other = load_maps(tmp_path / "maps"), load_maps(tmp_path / "pulled", 3)
    assert (one.features, one.state_only, one.in_width) == (other.features, other.state_only, other.in_width)
    through = [maps.bottleneck_weight() for maps in (one, other)]
    assert through[0] is not None
    assert through[1] is not None
    assert torch.equal(through[0], through[1])
    assert all(torch.equal(one.layer(n).weight, other.layer(n).weight) for n in one.layers)


@pytest.mark.parametrize("control", ["control-next-1", "control-random"])
def test_controls_are_not_published(control: str, tmp_path: Path) -> None:
    maps = written(tmp_path / "maps", ("state", "previous-1", control))
    with pytest.raises(BadInput, match=f"control feature {control}, which is for ablations only"):
        built(maps, tmp_path / "repo")
    assert not (tmp_path / "repo").exists()


def test_a_repository_that_states_other_features_is_refused(tmp_path: Path) -> None:
    folder = built(written(tmp_path / "maps"), tmp_path / "repo")
    path = folder / "config.json"
    table = json.loads(path.read_text())
    table["splits"]["3"]["bottleneck"] = [2 * HIDDEN, RANK + 1]
    path.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")
    sums = folder / "SHA256SUMS"
    lines = [line for line in sums.read_text().splitlines() if not line.endswith("  config.json")]
    lines.append(f"{sha256_file(path)}  config.json")
    sums.write_text("\n".join(sorted(lines, key=lambda line: line[66:])) + "\n")
    with pytest.raises(BadInput, match="states bottleneck"):
        check_repository(folder)
