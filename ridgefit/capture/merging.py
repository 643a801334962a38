"""Shards made anywhere, merged into the capture that one machine would have made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ridgefit.capture.folder import (
    TOKENS_FOLDER,
    CaptureRecord,
    clear,
    collapse,
    finish,
    nodes_in,
)
from ridgefit.capture.identity import require_same
from ridgefit.corpus import TokenStore
from ridgefit.errors import BadInput
from ridgefit.files import new_folder, require_space, require_unused
from ridgefit.maps import FREQUENCIES, Frequencies
from ridgefit.moments import LEAVES, Node


def merge_shards(folders: Sequence[Path], out: Path) -> CaptureRecord:
    """Merge finished shards; the order of `folders` changes nothing.

    Args:
        folders: one per shard, together covering the whole capture once.
        out: an empty or new folder; the shards are left as they are.

    Raises:
        BadInput: a folder is no finished shard, shards differ in anything that the bits depend on, a part is
            missing or there twice, or `out` holds something.
    """
    if not folders:
        raise BadInput("no shards to merge", "name the shards' folders")
    records = {folder: _shard_record(folder) for folder in folders}
    first, *others = folders
    for folder in others:
        require_same(
            records[first].identity,
            records[folder].identity,
            f"the shard in {first} (compared with {folder})",
            "capture all shards with the same model, text, settings and versions",
        )
    nodes = _nodes(folders, records)
    require_unused(out)
    size = sum(path.stat().st_size for path in nodes.values())
    require_space(out, 2 * size, "the merged capture")
    with new_folder(out) as partial:
        TokenStore.load(first / TOKENS_FOLDER).save(partial / TOKENS_FOLDER)
        if (first / FREQUENCIES).is_file():  # captures of before have none
            Frequencies.read(first / FREQUENCIES).write(partial / FREQUENCIES)
        moments = finish(collapse(nodes, partial), partial, tuple(records[first].identity["split"]))
        ordered = sorted(records.values(), key=lambda record: record.leaves)
        record = CaptureRecord(
            state="complete",
            identity=records[first].identity,
            about={
                "model": records[first].about["model"],
                "shards": [{"shard": part.shard, **part.about} for part in ordered],
            },
            shard=None,
            leaves=(0, LEAVES),
            windows=sum(part.windows for part in ordered),
            tokens=sum(part.tokens for part in ordered),
            moments=moments,
        )
        record.write(partial)
        clear(partial)
    return record


def _shard_record(folder: Path) -> CaptureRecord:
    record = CaptureRecord.read(folder)
    if record.state == "running":
        raise BadInput(f"the shard in {folder} is not finished", "run it again with --resume")
    if record.state == "complete":
        raise BadInput(f"{folder} is a whole capture, not a shard", "use it as it is")
    return record


def _nodes(folders: Sequence[Path], records: dict[Path, CaptureRecord]) -> dict[Node, Path]:
    """All shards' nodes; together they cover every leaf once."""
    owner: dict[int, Path] = {}
    nodes: dict[Node, Path] = {}
    for folder in folders:
        held = nodes_in(folder)
        for node, path in held.items():
            for number in range(node.start, node.stop):
                if number in owner:
                    raise BadInput(
                        f"{owner[number]} and {folder} hold the same part of the capture",
                        "name each shard once",
                    )
                owner[number] = folder
            nodes[node] = path
        lacking = set(range(*records[folder].leaves)) - {n for n, holder in owner.items() if holder == folder}
        if lacking:
            raise BadInput(f"{folder} lacks sums that its record says it has", "capture that shard again")
    missing = sorted(set(range(LEAVES)) - set(owner))
    if missing:
        names = ", ".join(record.shard or "?" for record in records.values())
        raise BadInput(f"shards {names} are not the whole capture", "name all of its shards")
    return nodes
