"""Moments on disk: the same bytes for the same sums, merged from file to file with the bits of memory."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ridgefit.errors import BadInput
from ridgefit.files import sha256_file
from ridgefit.moments import (
    LEAVES,
    ROOT,
    BundleFile,
    Moments,
    Node,
    leaf,
    leaf_range,
    merge,
    merge_bundles,
    merges,
    settled,
    shard_leaves,
    write_bundle,
)


def some(seed: int, n: int = 7, width: int = 6, layers: int = 3, hidden: int = 5) -> Moments:
    generator = torch.Generator().manual_seed(seed)
    empty = Moments.zeros(width, layers, hidden)
    filled = (torch.randn(t.shape, generator=generator, dtype=torch.float64) for _, t in empty.tensors())
    return Moments(n, *filled)


def equal(a: Moments, b: Moments) -> bool:
    pairs = zip(a.tensors(), b.tensors(), strict=True)
    return a.n == b.n and all(torch.equal(x, y) for (_, x), (_, y) in pairs)


def test_a_bundle_comes_back_and_has_the_same_bytes_each_time(tmp_path: Path) -> None:
    bundle = {"s1.body": some(0), "s1.lead": some(1, n=0)}
    first = write_bundle(tmp_path / "a.safetensors", bundle, {"leaf": 3})
    second = write_bundle(tmp_path / "b.safetensors", bundle, {"leaf": 3})
    assert first == second == sha256_file(tmp_path / "a.safetensors")
    read = BundleFile(tmp_path / "a.safetensors")
    assert read.extra == {"leaf": 3}
    assert list(read.shapes) == list(bundle)
    assert all(equal(read.moments(key), bundle[key]) for key in bundle)
    assert read.small("s1.body").sxy.is_meta
    assert torch.equal(read.block("s1.body", "sxy", 2), bundle["s1.body"].sxy[2])


def test_the_safetensors_library_reads_it(tmp_path: Path) -> None:
    bundle = {"body": some(0)}
    write_bundle(tmp_path / "a.safetensors", bundle, {})
    loaded = load_file(tmp_path / "a.safetensors")
    assert {f"body.{name}" for name, _ in bundle["body"].tensors()} == set(loaded)
    assert all(torch.equal(loaded[f"body.{name}"], tensor) for name, tensor in bundle["body"].tensors())


def test_files_merge_with_the_bits_of_memory(tmp_path: Path) -> None:
    one, two = ({"s1.body": some(k, n=k + 3), "s2.body": some(k + 5, n=k)} for k in (0, 1))
    files = []
    for number, bundle in enumerate((one, two)):
        write_bundle(tmp_path / f"{number}.safetensors", bundle, {})
        files.append(BundleFile(tmp_path / f"{number}.safetensors"))
    merge_bundles(tmp_path / "all.safetensors", files[0], files[1], {"made": "here"})
    read = BundleFile(tmp_path / "all.safetensors")
    assert all(equal(read.moments(key), merge(one[key], two[key])) for key in one)

    merge_bundles(tmp_path / "one.safetensors", files[0], files[1], {}, keys={"body": "s2.body"})
    assert equal(
        BundleFile(tmp_path / "one.safetensors").moments("body"), merge(one["s2.body"], two["s2.body"])
    )
    merge_bundles(tmp_path / "copy.safetensors", files[0], None, {})
    copied = BundleFile(tmp_path / "copy.safetensors")
    assert equal(copied.moments("s1.body"), one["s1.body"])


def test_files_of_other_shapes_do_not_merge(tmp_path: Path) -> None:
    write_bundle(tmp_path / "a.safetensors", {"body": some(0)}, {})
    write_bundle(tmp_path / "b.safetensors", {"body": some(0, width=7)}, {})
    with pytest.raises(BadInput, match="same shape"):
        merge_bundles(
            tmp_path / "c.safetensors",
            BundleFile(tmp_path / "a.safetensors"),
            BundleFile(tmp_path / "b.safetensors"),
            {},
        )
    assert not (tmp_path / "c.safetensors").exists()


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_bundle(path, {"body": some(0)}, {"leaf": 1})
    whole = path.read_bytes()
    header = int.from_bytes(whole[:8], "little")
    table = json.loads(whole[8 : 8 + header])
    table["body.sxx"]["shape"] = [3, 12]
    changed = json.dumps(table, separators=(",", ":")).encode().ljust(header)
    cases = {
        "empty": b"",
        "cut in the header": whole[: header // 2],
        "cut in the body": whole[:-8],
        "longer": whole + b"\0" * 8,
        "another shape": whole[:8] + changed + whole[8 + header :],
        "huge header": (1 << 40).to_bytes(8, "little") + whole[8:],
        "not json": whole[:8] + b"{" * header + whole[8 + header :],
        "another format": whole.replace(b"ridgefit-moments-1", b"ridgefit-moments-9"),
    }
    for name, data in cases.items():
        path.write_bytes(data)
        with pytest.raises(BadInput) as caught:
            BundleFile(path)
        assert "a.safetensors" in caught.value.what, name
    with pytest.raises(BadInput):
        BundleFile(tmp_path / "missing.safetensors")


def test_leaves_cover_every_window_once() -> None:
    for windows in (0, 1, 7, 8, 9, 100, 1001):
        ranges = [leaf_range(number, windows) for number in range(LEAVES)]
        assert [w for part in ranges for w in part] == list(range(windows))
        assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


def test_shards_cover_every_leaf_once() -> None:
    for count in range(1, LEAVES + 1):
        leaves = [number for index in range(count) for number in shard_leaves(index, count)]
        assert leaves == list(range(LEAVES))


def merged_in(order: list[int], cuts: int) -> Moments:
    """Merge leaves that arrive in some order, in groups that merge at home first."""
    held: dict[Node, Moments] = {}
    size = -(-len(order) // cuts)
    for at in range(0, len(order), size):
        held.update({leaf(number): some(number, n=number) for number in order[at : at + size]})
        for left, right in merges(held):
            held[left.parent] = merge(held.pop(left), held.pop(right))
    assert list(held) == [ROOT]
    return held[ROOT]


def test_the_tree_gives_the_same_bits_for_every_order_of_arrival() -> None:
    generator = random.Random(0)
    reference = merged_in(list(range(LEAVES)), 1)
    for cuts in (1, 2, 4, 8):
        order = list(range(LEAVES))
        generator.shuffle(order)
        assert equal(merged_in(order, cuts), reference)


def test_sums_in_another_order_would_differ() -> None:
    """The fixed tree is needed: one after another does not give these bits."""
    chain = some(0, n=0)
    for number in range(1, LEAVES):
        chain = merge(chain, some(number, n=number))
    assert not equal(chain, merged_in(list(range(LEAVES)), 1))


def test_what_a_crash_leaves_is_dropped() -> None:
    assert settled([Node(0, 2), leaf(0), leaf(1), leaf(2)]) == {Node(0, 2), leaf(2)}
    assert list(merges([leaf(0), leaf(2), Node(4, 6)])) == []
    assert list(merges([Node(0, 4), Node(4, 8)], whole=False)) == []
    pairs = list(merges(map(leaf, range(LEAVES))))
    assert len(pairs) == LEAVES - 1
    assert all(left.stop == right.start for left, right in pairs)
    assert all(a != b for a, b in itertools.combinations(pairs, 2))
