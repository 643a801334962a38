"""A capture on disk: what is in its folder, and how a finished one is read."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ridgefit.capture.reader import BODY, LEAD
from ridgefit.corpus import TokenStore
from ridgefit.errors import BadInput
from ridgefit.files import read_json, sha256_file, write_json
from ridgefit.moments import BundleFile, Moments, Node, merge_bundles, merges, settled

RECORD_FILE = "capture.json"
TOKENS_FOLDER = "tokens"
NODES_FOLDER = "nodes"
CHECKPOINT_FOLDER = "checkpoint"
_NODE = re.compile(r"node-(\d)-(\d)\.safetensors")
_AGAIN = "capture again into a new folder"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SplitRecord(_Frozen):
    """One split's sums: file name, its sha256, and rows by kind ("body", "lead")."""

    file: str = Field(pattern=r"^moments\.s\d+\.safetensors$")
    sha256: str
    rows: dict[str, int]


class CaptureRecord(_Frozen):
    """`capture.json`.

    Attributes:
        format: version of the folder's layout.
        state: "running", "shard" (its leaves are done, to be merged) or "complete".
        identity: what the bits depend on.
        about: model name and revision, versions and machine: for people, never compared.
        shard: "i/n", or None for a whole capture.
        leaves: first leaf and one past the last.
        windows: windows of these leaves.
        tokens: tokens of these leaves.
        moments: per split, when complete.
    """

    format: Literal["ridgefit-capture-1"] = "ridgefit-capture-1"
    state: Literal["running", "shard", "complete"]
    identity: dict[str, Any]
    about: dict[str, Any]
    shard: str | None
    leaves: tuple[int, int]
    windows: int
    tokens: int
    moments: dict[str, SplitRecord] = Field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> CaptureRecord:
        """Read a folder's record.

        Raises:
            BadInput: there is none, or it is not one of this version.
        """
        path = folder / RECORD_FILE
        if not folder.exists():
            raise BadInput(f"capture folder {folder} does not exist", "name one of `ridgefit capture`")
        if not path.is_file():
            raise BadInput(
                f"{folder} is not a capture: it has no {RECORD_FILE}", "run `ridgefit capture` first"
            )
        try:
            return cls.model_validate(read_json(path))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise BadInput(f"{path} is not a capture's record ({where}: {first['msg']})", _AGAIN) from error

    def write(self, folder: Path) -> None:
        """Write it in one step."""
        write_json(folder / RECORD_FILE, self.model_dump(mode="json"))


class CaptureFolder:
    """A finished capture: its identity, its text and its sums.

    Attributes:
        path: the folder.
        record: what `capture.json` says.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.record = CaptureRecord.read(path)
        if self.record.state == "running":
            raise BadInput(f"the capture in {path} is not finished", "run it again with --resume")
        if self.record.state == "shard":
            raise BadInput(
                f"{path} holds shard {self.record.shard} of a capture",
                "merge all shards with `ridgefit merge` first",
            )

    @property
    def identity(self) -> dict[str, Any]:
        """What the sums' bits depend on: model, text, splits, precision, versions."""
        return self.record.identity

    @property
    def splits(self) -> tuple[int, ...]:
        """Captured splits, ascending."""
        return tuple(sorted(int(split) for split in self.record.moments))

    @property
    def features(self) -> tuple[str, ...]:
        """Names of what the maps read, in order."""
        return tuple(name for name, _ in self.identity["features"])

    @property
    def lead(self) -> int:
        """First positions of each window whose sums are kept apart."""
        return int(self.identity["lead"])

    def store(self) -> TokenStore:
        """The text, fit and held-out windows alike."""
        store = TokenStore.load(self.path / TOKENS_FOLDER)
        if store.manifest.sha256 != self.identity["text"]:
            raise BadInput(f"{self.path / TOKENS_FOLDER} is not the text of this capture", _AGAIN)
        return store

    def moments(self, split: int) -> dict[str, Moments]:
        """Sums of one split by kind of rows, "body" and, if kept apart, "lead". Each call reads the file.

        Raises:
            BadInput: the split was not captured, or its file is missing or changed.
        """
        record = self.record.moments.get(str(split))
        if record is None:
            held = ", ".join(str(number) for number in self.splits)
            raise BadInput(f"{self.path} holds no split {split}", f"it holds {held}; capture the split again")
        path = self.path / record.file
        file = BundleFile(path)
        if sha256_file(path) != record.sha256:
            raise BadInput(f"{path} is not the file that {RECORD_FILE} names (its sha256 differs)", _AGAIN)
        return {kind: file.moments(kind) for kind in file.shapes}

    def require_lead(self) -> None:
        """Refuse to leave out first positions whose sums were not kept apart.

        Raises:
            BadInput: they were not.
        """
        if not self.lead:
            raise BadInput(
                f"{self.path} was captured with lead 0, the first positions cannot be left out",
                "capture again with --lead 4",
            )

    def rows(self, split: int, *, drop_lead: bool = False) -> Moments:
        """Sums to solve: of all rows, or without the first positions of each window.

        Raises:
            BadInput: see `moments`; or the lead is to be dropped and was not kept apart.
        """
        if drop_lead:
            self.require_lead()
        parts = self.moments(split)
        return Moments.combine(parts[BODY], parts.get(LEAD), drop_lead=drop_lead)


def load_capture(folder: Path) -> CaptureFolder:
    """Open a finished capture.

    Raises:
        BadInput: it is not a capture, is not finished, or is one shard of one.
    """
    return CaptureFolder(folder)


def node_path(folder: Path, node: Node) -> Path:
    """File of a node's sums."""
    return folder / NODES_FOLDER / f"node-{node.start}-{node.stop}.safetensors"


def nodes_in(folder: Path) -> dict[Node, Path]:
    """Sums of finished leaves, merged where siblings met; parts of merged nodes are left out."""
    found = _all_nodes(folder)
    return {node: found[node] for node in sorted(settled(found))}


def _all_nodes(folder: Path) -> dict[Node, Path]:
    return {
        Node(int(match[1]), int(match[2])): path
        for path in sorted((folder / NODES_FOLDER).glob("node-*.safetensors"))
        if (match := _NODE.fullmatch(path.name))
    }


def collapse(nodes: dict[Node, Path], folder: Path) -> dict[Node, Path]:
    """Merge siblings, all but the last pair, whose sum `finish` writes; then delete their parts in `folder`.

    A crash at any instant leaves both parts, or their sum with or without parts: never less. Leaves that
    workers finish meanwhile are not touched.
    """
    held = dict(nodes)
    for left, right in merges(nodes, whole=False):
        parts = [held.pop(left), held.pop(right)]
        target = node_path(folder, left.parent)
        merge_bundles(target, BundleFile(parts[0]), BundleFile(parts[1]), {})
        held[left.parent] = target
    for node, path in _all_nodes(folder).items():
        if any(whole.covers(node) for whole in held):
            path.unlink()
    return held


def finish(nodes: Mapping[Node, Path], folder: Path, splits: tuple[int, ...]) -> dict[str, SplitRecord]:
    """Write each split's sums from the top of the tree: its two halves, or the root alone."""
    parts = [BundleFile(path) for _, path in sorted(nodes.items())]
    records = {}
    for split in splits:
        prefix = f"s{split}."
        keys = {key.removeprefix(prefix): key for key in parts[0].shapes if key.startswith(prefix)}
        path = folder / f"moments.s{split}.safetensors"
        digest = merge_bundles(
            path, parts[0], parts[1] if len(parts) > 1 else None, {"split": split}, keys=keys
        )
        rows = {name: shape.n for name, shape in BundleFile(path).shapes.items()}
        records[str(split)] = SplitRecord(file=path.name, sha256=digest, rows=rows)
    return records


def clear(folder: Path) -> None:
    """Remove what only an unfinished capture needs."""
    for name in (CHECKPOINT_FOLDER, NODES_FOLDER):
        shutil.rmtree(folder / name, ignore_errors=True)
