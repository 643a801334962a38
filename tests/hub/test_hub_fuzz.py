"""Two thousand broken repositories: each is refused by name, soon, and nothing outside its folder changes."""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ridgefit.errors import BadInput
from ridgefit.hub import check_repository, local_maps, pull
from ridgefit.hub.calls import Hub
from ridgefit.maps import load_maps

COUNT = 2000
PATHS = (
    "../x",
    "s3/../../x",
    "/etc/passwd",
    "s3\\x",
    "a/b/c",
    "s3/",
    ".hidden",
    "s3/x.py",
    "model.bin",
    "s3/x.pkl",
    "ö",
)
Mutation = Callable[[Path, random.Random], str]


def files(folder: Path, suffix: str = "") -> list[Path]:
    """Hashed files, in order."""
    return sorted(
        item
        for item in folder.rglob("*")
        if item.is_file() and item.name not in ("README.md", "SHA256SUMS") and item.name.endswith(suffix)
    )


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def forge(folder: Path) -> None:
    """Make every hash right again, from the files up to SHA256SUMS, as a forger would."""
    for name in ("s3", "s4"):
        path = folder / name / "ridgefill.json"
        try:
            table = json.loads(path.read_text())
            for file in table["files"]:
                if "/" not in file and (path.parent / file).is_file():
                    table["files"][file] = sha(path.parent / file)
            path.write_text(json.dumps(table))
            top = json.loads((folder / "ridgefit.json").read_text())
            top["splits"][name[1:]]["sha256"] = sha(path)
            (folder / "ridgefit.json").write_text(json.dumps(top))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
    lines = [f"{sha(path)}  {path.relative_to(folder).as_posix()}\n" for path in files(folder)]
    (folder / "SHA256SUMS").write_text("".join(lines))


def flip(folder: Path, rng: random.Random) -> str:
    path = rng.choice(files(folder))
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return path.name


def cut(folder: Path, rng: random.Random) -> str:
    path = rng.choice([*files(folder), folder / "SHA256SUMS"])
    path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size)])
    return ""


def grow(folder: Path, rng: random.Random) -> str:
    path = rng.choice(files(folder))
    path.write_bytes(path.read_bytes() + rng.randbytes(rng.randrange(1, 64)))
    return path.name


def remove(folder: Path, rng: random.Random) -> str:
    path = rng.choice([*files(folder), folder / "SHA256SUMS"])
    path.unlink()
    return path.name


def swap(folder: Path, rng: random.Random) -> str:
    one, two = rng.sample(files(folder, ".safetensors"), 2)
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    if one.name != two.name and rng.random() < 0.5:
        forge(folder)  # one layer's maps of two splits are alike in everything but their hashes
    return ".safetensors"


def forged_hash(folder: Path, rng: random.Random) -> str:
    path = folder / "SHA256SUMS"
    lines = path.read_text().splitlines()
    at = rng.randrange(len(lines))
    place = rng.randrange(64)
    other = rng.choice([digit for digit in "0123456789abcdef" if digit != lines[at][place]])
    lines[at] = lines[at][:place] + other + lines[at][place + 1 :]
    path.write_text("\n".join(lines) + "\n")
    return lines[at].split("/")[-1].split("  ")[-1]


def listed_path(folder: Path, rng: random.Random) -> str:
    path = rng.choice(PATHS)
    with (folder / "SHA256SUMS").open("a") as stream:
        stream.write(f"{'0' * 64}  {path}\n")
    return "SHA256SUMS"


def listed_twice(folder: Path, rng: random.Random) -> str:
    path = folder / "SHA256SUMS"
    line = rng.choice(path.read_text().splitlines())
    twin = line if rng.random() < 0.5 else line[:66] + line[66:].upper().replace(".JSON", ".json")
    twin = twin.replace(".SAFETENSORS", ".safetensors")
    path.write_text(path.read_text() + (twin if twin != line else line) + "\n")
    return "SHA256SUMS"


def inner_path(folder: Path, rng: random.Random) -> str:
    path = folder / rng.choice(["s3", "s4"]) / "ridgefill.json"
    table = json.loads(path.read_text())
    name = rng.choice([p for p in PATHS if p != "model.bin"])
    layer = rng.choice(sorted(table["projector"]["files"]))
    table["files"][name] = table["files"].pop(table["projector"]["files"][layer])
    table["projector"]["files"][layer] = name
    path.write_text(json.dumps(table))
    forge(folder)
    return "ridgefill.json"


def link(folder: Path, rng: random.Random) -> str:
    path = rng.choice(files(folder))
    target = folder.parent / "outside" / "copy"
    target.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(target if rng.random() < 0.5 else "/etc/hostname")
    return path.name


def stray(folder: Path, rng: random.Random) -> str:
    name = rng.choice(
        ["setup.py", "s3/extra.safetensors", "weights.bin", "s7/config.json", "s3/deep/x.json", "x.pkl"]
    )
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"{}")
    if rng.random() < 0.5:
        forge(folder)
    return ""


def values(folder: Path, rng: random.Random) -> str:
    path = rng.choice(files(folder, ".safetensors"))
    data = bytearray(path.read_bytes())
    body = 8 + int.from_bytes(data[:8], "little")
    at = body + 2 * rng.randrange((len(data) - body) // 2)
    data[at : at + 2] = rng.choice([b"\xc0\x7f", b"\x80\x7f", b"\x80\xff"])  # NaN, +inf, -inf in bf16
    path.write_bytes(data)
    forge(folder)
    return "not finite"


def header(folder: Path, rng: random.Random) -> str:
    """A header that lies, with every hash right."""
    path = rng.choice(files(folder, ".safetensors"))
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    table, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    name = rng.choice([key for key in table if key != "__metadata__"])
    entry = table[name]
    lie = rng.randrange(11)
    text = None
    if lie == 0:
        entry["shape"] = [1 << 40, 1 << 40]
    elif lie == 1:
        entry["shape"] = [-1, *entry["shape"][1:]]
    elif lie == 2:
        entry["data_offsets"] = [0, len(body) + rng.randrange(1, 1 << 30)]
    elif lie == 3:
        entry["data_offsets"] = [entry["data_offsets"][0] + 2, entry["data_offsets"][1] + 2]
    elif lie == 4:
        entry["dtype"] = rng.choice(["F64", "U8", "BOOL", "F8_E4M3", "", 7, None])
    elif lie == 5:
        table["../" + name] = table.pop(name)
    elif lie == 6:
        entry["shape"] = list(reversed(entry["shape"])) if len(entry["shape"]) > 2 else [1] * 30
    elif lie == 7:
        text = json.dumps(table)[:-1] + f', "{name}": {json.dumps(entry)}' + "}"
    elif lie == 8:
        text = "[" * rng.randrange(100, 100_000)
    elif lie == 9:
        path.write_bytes((1 << rng.choice([24, 40, 63])).to_bytes(8, "little") + data[8:])
        forge(folder)
        return path.name
    else:
        table["__metadata__"] = {"a": 1}
    raw = (text or json.dumps(table)).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + body)
    forge(folder)
    return path.name


def dims(folder: Path, rng: random.Random) -> str:
    """config.json or ridgefit.json states other sizes than the maps have, with every hash right."""
    name = rng.choice(["config.json", "ridgefit.json"])
    path = folder / name
    table = json.loads(path.read_text())
    record = table["splits"][rng.choice(["3", "4"])]
    field = rng.choice(["in_width", "out_width", "layers", "features"])
    wrong: dict[str, list[Any]] = {
        "in_width": [0, -1, 17, 1 << 60, "16", 16.5, None],
        "out_width": [0, 15, 1 << 60, "x"],
        "layers": [[0, 6], [5, 3], [3, 1 << 40], [3], "3"],
        "features": [{"state": 2}, {"other": 1}, [], None],
    }
    known = [value for value in wrong[field] if value != "16" or name == "config.json"]  # read as 16 there
    record[field] = rng.choice(known)
    if name == "config.json" and field == "features":
        table["format"] = rng.choice(["ridgefit-repository-2", None, 1])
    path.write_text(json.dumps(table))
    forge(folder)
    return ".json"


def origin(folder: Path, rng: random.Random) -> str:
    """The two manifests name different models, or one that nobody could check."""
    path = folder / rng.choice(["config.json", "ridgefit.json"])
    table = json.loads(path.read_text())
    where = table if path.name == "config.json" else table["fingerprint"]
    field = rng.choice(["dims", "layer_kinds", "tokenizer_sha256", "family", "config_sha256"])
    where[field] = {
        "dims": {**where["dims"], rng.choice(["hidden", "n_layers", "vocab"]): rng.randrange(20, 40)},
        "layer_kinds": ["full_attention"] * 5,
        "tokenizer_sha256": "0" * 64,
        "family": "other",
        "config_sha256": None,
    }[field]
    if path.name == "ridgefit.json" and rng.random() < 0.2:
        table["fingerprint"] = None
    path.write_text(json.dumps(table))
    forge(folder)
    return ".json"


def syntax(folder: Path, rng: random.Random) -> str:
    path = rng.choice(files(folder, ".json"))
    text = path.read_text()
    path.write_text(
        rng.choice(
            [
                '{"a":' * 70 + "1" + "}" * 70,
                "[" * rng.choice([65, 5_000, 500_000]),
                text.rstrip()[:-1] + ', "format": 1, "format": 2}',
                text.replace(":", ': NaN, "x":', 1),
                text.replace(":", ': 1e999, "x":', 1),
                "[]",
                "",
                '"text"',
                text + "x",
            ]
        )
    )
    if rng.random() < 0.1:
        path.write_bytes(b"\xff\xfe" + text.encode())
    forge(folder)
    return path.name


MUTATIONS: tuple[Mutation, ...] = (
    *(flip, cut, grow, remove, swap, forged_hash, listed_path, listed_twice, inner_path),
    *(link, stray, values, header, dims, origin, syntax),
)


def test_every_broken_repository_is_refused(repository: Path, tmp_path: Path) -> None:
    base = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else tmp_path  # noqa: S108
    place = base / f"ridgefit-fuzz-{os.getpid()}"
    outside = place / "outside"
    outside.mkdir(parents=True)
    (outside / "secret").write_text("secret")
    folder = place / "repository"
    rng = random.Random(20260)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    slowest = 0.0
    kinds: dict[str, int] = {}
    try:
        for number in range(COUNT):
            shutil.copytree(repository, folder)
            mutate = MUTATIONS[number % len(MUTATIONS)]
            named = mutate(folder, rng)
            state = sorted((str(item), item.lstat().st_mtime_ns) for item in place.rglob("*"))
            started = time.perf_counter()
            with pytest.raises(BadInput) as refused:
                check_repository(folder)
                pytest.fail(f"{number}: {mutate.__name__} {named} was not seen")
            slowest = max(slowest, time.perf_counter() - started)
            text = str(refused.value)
            assert named in text, f"{number}: {mutate.__name__} {named}: {text}"
            assert "\n" not in text
            assert len(text) < 600
            assert sorted((str(item), item.lstat().st_mtime_ns) for item in place.rglob("*")) == state
            kinds[mutate.__name__] = kinds.get(mutate.__name__, 0) + 1
            shutil.rmtree(folder)
        assert (outside / "secret").read_text() == "secret"
    finally:
        shutil.rmtree(place)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert slowest < 1.0
    assert grown < 200 * 1024, f"{grown} KiB"
    assert len(kinds) == len(MUTATIONS)
    assert sum(kinds.values()) == COUNT


def test_the_unbroken_one_passes_and_forging_keeps_it_whole(repository: Path, tmp_path: Path) -> None:
    """Otherwise the test above would pass for a checker that refuses everything."""
    folder = tmp_path / "r"
    shutil.copytree(repository, folder)
    check_repository(folder)
    forge(folder)
    check_repository(folder)


@pytest.mark.parametrize("path", ["s3/../../x.json", "s3/x.py", "S3/ridgefill.json", "pytorch_model.bin"])
def test_a_repository_on_the_hub_with_a_bad_name(server: Any, hub: Hub, repository: Path, path: str) -> None:
    from ridgefit.hub import Target, look, push

    push(repository, Target("me/maps"), hub)
    repo = server.repos["me/maps"]
    repo.branches["main"] = repo.add({**repo.main(), path: (b"x", False)})
    server.sent.clear()
    for ask in (pull, look):
        with pytest.raises(BadInput, match="me/maps names"):
            ask("me/maps", hub=hub)
    assert server.sent == {}, "refused before any file was read"


def test_a_repository_of_something_else(server: Any, hub: Hub) -> None:
    from hub_server import Repo

    from ridgefit.hub import look

    repo = Repo()
    repo.branches["main"] = repo.add({"config.json": (b"{}", False), "model.gguf": (b"x", True)})
    server.repos["me/other"] = repo
    for ask in (pull, look):
        with pytest.raises(BadInput, match="me/other is no map repository of ridgefit: it has no SHA256SUMS"):
            ask("me/other", hub=hub)


def test_a_forged_repository_on_the_hub(server: Any, hub: Hub, repository: Path, tmp_path: Path) -> None:
    """Every hash right, a NaN among the weights: pull judges values, load when the layer is read."""
    from ridgefit.hub import Target, push

    push(repository, Target("me/maps"), hub)
    folder = tmp_path / "r"
    shutil.copytree(repository, folder)
    values(folder, random.Random(1))
    repo = server.repos["me/maps"]
    tree = {p: f for p, f in repo.main().items() if p.startswith(".git")}
    for item in folder.rglob("*"):
        if item.is_file():
            name = item.relative_to(folder).as_posix()
            tree[name] = (item.read_bytes(), name.endswith(".safetensors"))
    repo.branches["main"] = repo.add(tree)
    with pytest.raises(BadInput, match="not finite"):
        pull("me/maps", out=tmp_path / "out", hub=hub)
    assert not (tmp_path / "out").exists()
    maps = local_maps("me/maps", None, hub)
    with pytest.raises(BadInput, match="not finite"):
        for split in (3, 4):
            found = load_maps(maps, split)
            for layer in found.layers:
                found.layer(layer)


def test_a_size_that_the_maps_do_not_need(server: Any, hub: Hub, repository: Path) -> None:
    from ridgefit.hub import Target, push

    push(repository, Target("me/maps"), hub)
    config = json.loads((repository / "config.json").read_text())
    server.sent.clear()
    repo = server.repos["me/maps"]
    big = type("Big", (bytes,), {"__len__": lambda self: 1 << 40})

    tree = dict(repo.main())
    data, lfs = tree["s3/proj.L3.safetensors"]
    tree["s3/proj.L3.safetensors"] = (big(data), lfs)
    repo.commits["f" * 40] = tree
    repo.branches["main"] = "f" * 40
    with pytest.raises(BadInput, match=r"split 3 of me/maps takes 10995\d+ bytes, its maps need 1632"):
        pull("me/maps", hub=hub)
    assert config["splits"]["3"]["out_width"] == 16
    assert not any(path.endswith(".safetensors") for path in server.sent)
