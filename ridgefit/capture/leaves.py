"""One leaf of the work: windows into sums, checkpoints on the way, a node file at the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ridgefit.capture.folder import CHECKPOINT_FOLDER, node_path, nodes_in
from ridgefit.capture.reader import Reader
from ridgefit.corpus import Manifest
from ridgefit.errors import BadInput, Interrupted
from ridgefit.moments import BundleFile, leaf, leaf_range, write_bundle

WINDOWS_BETWEEN = 16
# Sums of a large model are gigabytes: unless told otherwise, at most this share of the time goes into saving.
_SHARE = 1 / 20
RESUME = "run the same command with --resume"


@dataclass(frozen=True)
class LeafWork:
    """What it takes to work on any leaf of a capture.

    Attributes:
        reader: model, text and sums.
        folder: the capture.
        batch: windows per forward pass.
        every: windows between checkpoints; None for `WINDOWS_BETWEEN`, stretched where saving takes long.
    """

    reader: Reader
    folder: Path
    batch: int
    every: int | None

    def run(self, number: int, *, stop: Callable[[], bool], advance: Callable[[int], None]) -> None:
        """Finish a leaf, from its checkpoint if it has one.

        Args:
            number: the leaf.
            stop: asked after each batch.
            advance: told the tokens of each batch.

        Raises:
            Interrupted: `stop` said so; the sums so far are saved.
        """
        reader, manifest = self.reader, self.reader.store.manifest
        batches = batches_of(manifest, number, self.batch)
        done = self._restore(number, len(batches))
        interval = max((self.every or WINDOWS_BETWEEN) // self.batch, 1)
        saved, rest = time.monotonic(), 0.0
        for at in range(done, len(batches)):
            reader.add(batches[at])
            advance(sum(manifest.window_tokens(window) for window in batches[at]))
            due = (at + 1) % interval == 0 and time.monotonic() - saved >= rest
            if at + 1 < len(batches) and (stop() or due):
                started = time.monotonic()
                self._save(number, at + 1)
                saved = time.monotonic()
                rest = 0.0 if self.every else (saved - started) / _SHARE
                if stop():
                    raise Interrupted(f"the capture in {self.folder} was stopped and saved", RESUME)
        for moments in reader.moments().values():
            moments.symmetrise_()
        write_bundle(node_path(self.folder, leaf(number)), reader.moments(), {})
        partial_path(self.folder, number).unlink(missing_ok=True)

    def _save(self, number: int, batches: int) -> None:
        path = partial_path(self.folder, number)
        write_bundle(path, self.reader.moments(), {"leaf": number, "batches": batches})

    def _restore(self, number: int, batches: int) -> int:
        self.reader.reset()
        path = partial_path(self.folder, number)
        if not path.is_file():
            return 0
        file = BundleFile(path)
        done = file.extra.get("batches")
        if file.extra.get("leaf") != number or not isinstance(done, int) or not 0 < done <= batches:
            raise BadInput(f"{path} is not a checkpoint of leaf {number}", "delete it to redo that leaf")
        self.reader.restore({key: file.moments(key) for key in file.shapes})
        return done


def leaf_windows(manifest: Manifest, number: int) -> list[int]:
    """Fit windows of a leaf."""
    fit = manifest.fit_windows
    return [fit[at] for at in leaf_range(number, len(fit))]


def batches_of(manifest: Manifest, number: int, batch: int) -> list[list[int]]:
    """Fit windows of a leaf, `batch` at a time."""
    windows = leaf_windows(manifest, number)
    return [windows[at : at + batch] for at in range(0, len(windows), batch)]


def partial_path(folder: Path, number: int) -> Path:
    """Checkpoint of a leaf."""
    return folder / CHECKPOINT_FOLDER / f"leaf-{number}.safetensors"


def leaf_tokens(manifest: Manifest, number: int) -> int:
    """Tokens of a leaf's windows."""
    return sum(manifest.window_tokens(window) for window in leaf_windows(manifest, number))


def leaves_left(folder: Path, leaves: range) -> list[int]:
    """Leaves that no finished node covers."""
    covered = {number for node in nodes_in(folder) for number in range(node.start, node.stop)}
    return [number for number in leaves if number not in covered]


def tokens_done(folder: Path, manifest: Manifest, leaves: range, batch: int) -> int:
    """Tokens of finished leaves and of checkpoints."""
    left = leaves_left(folder, leaves)
    done = sum(leaf_tokens(manifest, number) for number in leaves if number not in left)
    for number in left:
        path = partial_path(folder, number)
        if path.is_file():
            batches = batches_of(manifest, number, batch)[: BundleFile(path).extra.get("batches", 0)]
            done += sum(manifest.window_tokens(window) for part in batches for window in part)
    return done
