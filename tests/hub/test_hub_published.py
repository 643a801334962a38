"""Maps that others published, by name: source files and format-1 folders without ridgefit's own manifest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hub_server import Repo, Server, Tree

from ridgefit.errors import BadInput
from ridgefit.hub import Hub, local_maps, look, pull
from ridgefit.maps import LayerMap, MapSet, load_maps, verify_files
from ridgefit.maps.format1_write import write_format1
from ridgefit.maps.source import write_source

REPO = "lab/maps"


def maps_of(layers: range, width: int = 16) -> MapSet:
    generator = torch.Generator().manual_seed(layers.start)
    return MapSet.of(
        {
            layer: LayerMap(torch.randn(16, width, generator=generator), torch.randn(16, generator=generator))
            for layer in layers
        }
    )


def put(server: Server, tree: Tree) -> Repo:
    repo = server.repos[REPO] = Repo()
    repo.branches["main"] = repo.add(tree)
    return repo


@pytest.fixture
def sources(server: Server, tmp_path: Path) -> Repo:
    """Two splits as source files beside a GGUF file and a card, as the reference study publishes them."""
    tree: Tree = {"README.md": (b"# maps", False), "m-s3-q8_0.gguf": (b"GGUF", True)}
    for split in (3, 4):
        write_source(tmp_path / "file", maps_of(range(split, 6)), {"lambda": "0.03"})
        tree[f"safetensors/m-sweep-s{split}.safetensors"] = ((tmp_path / "file").read_bytes(), True)
    return put(server, tree)


@pytest.fixture
def folder(server: Server, tmp_path: Path) -> Repo:
    """One split as a format-1 folder a level down, with hashes for people and a GGUF beside it."""
    write_format1(tmp_path / "f", maps_of(range(3, 6), width=128), int8=False)
    tree: Tree = {
        f"maps-i8/{item.name}": (item.read_bytes(), item.suffix == ".safetensors")
        for item in (tmp_path / "f").iterdir()
    }
    return put(server, {**tree, "SHA256SUMS": (b"by hand", False), "m-S3.gguf": (b"GGUF", True)})


def same(path: Path, layers: range, width: int = 16) -> bool:
    maps, wanted = load_maps(path), maps_of(layers, width)
    return maps.layers == layers and all(
        all(map(torch.equal, maps.layer(layer), wanted.layer(layer))) for layer in layers
    )


def test_the_source_file_of_the_split_asked_for(server: Server, hub: Hub, sources: Repo) -> None:
    assert same(local_maps(REPO, 4, hub), range(4, 6))
    fetched = [line for line in server.log if "/resolve/" in line and "s3" in line]
    assert all("GET" in line or "HEAD" in line for line in fetched)
    cached = {item.name for item in (hub.cache or Path()).rglob("*.safetensors")}
    assert cached == {"m-sweep-s4.safetensors"}, "of the other split only the header was read"


def test_several_splits_need_a_choice(hub: Hub, sources: Repo) -> None:
    with pytest.raises(BadInput, match="lab/maps holds the splits 3, 4: choose one with --split"):
        local_maps(REPO, None, hub)
    assert not list((hub.cache or Path()).rglob("*.safetensors")), "refused before the download"
    with pytest.raises(BadInput, match="lab/maps holds no split 9, only 3, 4"):
        local_maps(REPO, 9, hub)


def test_pull_fetches_all_of_them(hub: Hub, sources: Repo, tmp_path: Path) -> None:
    found = pull(REPO, out=tmp_path / "out", hub=hub)
    assert (found.splits, found.files, found.sha) == ((3, 4), 2, sources.branches["main"])
    for split in (3, 4):
        path = tmp_path / "out" / "safetensors" / f"m-sweep-s{split}.safetensors"
        assert path.read_bytes() == sources.main()[f"safetensors/m-sweep-s{split}.safetensors"][0]


def test_a_format1_folder_a_level_down(hub: Hub, folder: Repo, tmp_path: Path) -> None:
    assert same(local_maps(REPO, None, hub), range(3, 6), 128)
    pull(REPO, out=tmp_path / "out", hub=hub)
    assert {item.name for item in (tmp_path / "out").iterdir()} == {"maps-i8"}
    assert same(tmp_path / "out" / "maps-i8", range(3, 6), 128)


@pytest.mark.parametrize("layout", ["sources", "folder"])
def test_offline(
    server: Server, hub: Hub, layout: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    request.getfixturevalue(layout)
    online = pull(REPO, splits=[3], hub=hub)
    server.log.clear()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert load_maps(local_maps(REPO, 3, hub)).layers == range(3, 6)
    assert pull(REPO, splits=[3], hub=hub) == online
    assert server.log == []
    with pytest.raises(BadInput, match="HF_HUB_OFFLINE is set"):
        local_maps("lab/other", 3, hub)


def test_look_reads_headers_alone(server: Server, hub: Hub, sources: Repo) -> None:
    found = look(REPO, hub)
    assert found["layout"] == "published"
    assert found["fingerprint"] is None
    assert {split: (record["layers"], record["shape"]) for split, record in found["splits"].items()} == {
        3: ([3, 6], [16, 16]),
        4: ([4, 6], [16, 16]),
    }
    assert not list((hub.cache or Path()).rglob("*.safetensors"))


def test_look_at_a_format1_folder(hub: Hub, folder: Repo) -> None:
    record = look(REPO, hub)["splits"][3]
    assert (record["layout"], record["path"], record["shape"]) == ("format1", "maps-i8", [16, 128])


def test_refusals(server: Server, hub: Hub, sources: Repo) -> None:
    tree = sources.main()
    one = tree["safetensors/m-sweep-s3.safetensors"]
    cases: list[tuple[Tree, str]] = [
        ({"a/b/c/x.safetensors": one}, "names the file 'a/b/c/x.safetensors', where no maps are looked for"),
        ({**tree, "again.safetensors": one}, "holds split 3 twice, in again.safetensors and safetensors/"),
        ({"m.safetensors": (b"x" * 99, True)}, "m.safetensors"),
        ({"m.gguf": (b"GGUF", True)}, "is no map repository of ridgefit"),
        ({"f/ridgefill.json": (b"{}", False)}, "format None"),
        ({f"{n}.safetensors": one for n in range(65)}, "65 candidates for maps, too many"),
    ]
    for files, sentence in cases:
        put(server, files)
        for ask in (lambda: local_maps(REPO, 3, hub), lambda: pull(REPO, hub=hub), lambda: look(REPO, hub)):
            with pytest.raises(BadInput, match=sentence.replace("(", r"\(")):
                ask()


def test_other_bytes_than_the_manifest_names(server: Server, hub: Hub, folder: Repo) -> None:
    tree = dict(folder.main())
    manifest = json.loads(tree["maps-i8/ridgefill.json"][0])
    name = next(iter(manifest["files"]))
    put(server, {**tree, f"maps-i8/{name}": (b"y" * len(tree[f"maps-i8/{name}"][0]), True)})
    with pytest.raises(BadInput, match="is not the file that its manifest names"):
        local_maps(REPO, None, hub)
    put(server, {path: file for path, file in tree.items() if path != f"maps-i8/{name}"})
    with pytest.raises(BadInput, match=f"lacks maps-i8/{name}, which its manifest lists"):
        local_maps(REPO, None, hub)


def test_bytes_that_change_on_the_way(server: Server, hub: Hub, sources: Repo) -> None:
    server.spoiled = {"safetensors/m-sweep-s3.safetensors": 100}
    with pytest.raises(BadInput, match="arrives with other bytes than the Hub names"):
        local_maps(REPO, 3, hub)


def test_verify_of_a_pull_of_one_split(server: Server, hub: Hub, repository: Path, tmp_path: Path) -> None:
    from ridgefit.hub import Target, push

    push(repository, Target("me/maps"), hub)
    pull("me/maps", splits=[4], out=tmp_path / "out", hub=hub)
    assert all(line.ok for line in verify_files(tmp_path / "out", 4))
    failed = [line for line in verify_files(tmp_path / "out") if not line.ok]
    assert [(line.subject, line.check) for line in failed] == [("s3", "present")]
    with pytest.raises(BadInput, match="holds no split 5, only 3, 4"):
        verify_files(tmp_path / "out", 5)


@pytest.mark.parametrize("layout", ["source", "format1"])
def test_a_bare_file_of_maps_that_read_more_says_so(
    layout: str, server: Server, hub: Hub, tmp_path: Path
) -> None:
    unit = LayerMap(torch.eye(16, 16 + 4), torch.zeros(16))
    maps = MapSet.of({4: unit, 5: unit}, features=("state", "previous-1"), bottleneck=torch.ones(16, 4))
    if layout == "source":
        write_source(tmp_path / "file", maps)
        put(server, {"safetensors/m-s4.safetensors": ((tmp_path / "file").read_bytes(), True)})
    else:
        write_format1(tmp_path / "f", maps, int8=False)
        put(
            server,
            {
                f"maps/{i.name}": (i.read_bytes(), i.suffix == ".safetensors")
                for i in (tmp_path / "f").iterdir()
            },
        )
    assert look(REPO, hub)["splits"][4]["features"] == ["state", "previous-1"]
    found = load_maps(local_maps(REPO, None, hub))
    through = found.bottleneck_weight()
    assert found.features == ("state", "previous-1")
    assert through is not None
    assert torch.equal(through, torch.ones(16, 4).bfloat16())
