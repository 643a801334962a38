"""Model and text to moments: one pass, resumable at any instant, the same bits however it was spread."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgefit.capture.checks import check_room, check_settings, gone_on, leaves_of
from ridgefit.capture.folder import (
    TOKENS_FOLDER,
    CaptureRecord,
    clear,
    collapse,
    finish,
    nodes_in,
)
from ridgefit.capture.identity import identity_of
from ridgefit.capture.leaves import RESUME, leaf_tokens, leaf_windows, leaves_left, tokens_done
from ridgefit.capture.signals import StopRequest
from ridgefit.capture.workers import WorkerOrder, leaf_work, run_workers
from ridgefit.corpus import TokenStore
from ridgefit.errors import Interrupted
from ridgefit.files import folder_lock
from ridgefit.maps import FREQUENCIES, Frequencies
from ridgefit.models import LoadedModel
from ridgefit.moments import LEAVES, product_for
from ridgefit.recipe import CaptureSettings
from ridgefit.versions import library_versions, machine

Progress = Callable[[int, int, str], None]
"""Called after each batch with (tokens done, tokens in all, rate in words)."""


@dataclass(frozen=True)
class CaptureResult:
    """What a capture left behind.

    Attributes:
        folder: the capture.
        record: its `capture.json`.
        tokens: tokens read by this run (less than the corpus if it resumed).
        seconds: wall time of this run.
    """

    folder: Path
    record: CaptureRecord
    tokens: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Rate of this run."""
        return self.tokens / self.seconds if self.seconds else 0.0


def capture(
    loaded: LoadedModel,
    store: TokenStore,
    settings: CaptureSettings,
    out: Path,
    *,
    progress: Progress | None = None,
) -> CaptureResult:
    """Stream the fit windows through the model into sums (RidgeFill, sections 2.2 and 9).

    The model is not changed: hooks see the inputs of the late layers and leave with the pass. No activation
    is written anywhere. The result depends on `identity_of` alone: any number of workers and shards, and any
    number of kills and resumes, give the same bytes.

    Args:
        loaded: the model.
        store: the text; its held-out windows are not read.
        settings: splits, features, precision, checkpoints, workers, shard, resume.
        out: output folder.
        progress: called after each batch.

    Raises:
        BadInput: a setting cannot be met, memory or disk would run out, `out` holds another capture or one
            that was not asked to be resumed, or a row is not finite.
        CheckFailed: a late layer did not run exactly once in a pass.
        Interrupted: SIGTERM or SIGINT; everything done is saved.
    """
    started = time.monotonic()
    leaves = leaves_of(settings.shard)
    check_settings(loaded, store, settings)
    product = product_for(settings.precision, loaded.port.device)
    identity = identity_of(loaded, store, settings, product)
    with folder_lock(out), StopRequest() as stop:
        done = gone_on(out, identity, settings)
        if done is not None:
            return CaptureResult(out, done, 0, time.monotonic() - started)
        check_room(loaded, store, settings, product, out)
        _sweep(out)
        record = _record(loaded, store, settings, identity)
        store.save(out / TOKENS_FOLDER)
        _frequencies(loaded, store).write(out / FREQUENCIES)
        record.write(out)
        held = tokens_done(out, store.manifest, leaves, settings.batch)
        meter = _Meter(record.tokens, held, progress)
        todo = leaves_left(out, leaves)
        if settings.workers > 1 and todo:
            order = WorkerOrder.of(loaded, out, settings, product, identity)
            run_workers(order, todo, stop=stop, advance=meter.advance, finished=lambda: _collapse(out))
        elif todo:
            work = leaf_work(loaded, store, settings, product, out)
            for number in todo:
                if stop:
                    break
                work.run(number, stop=lambda: bool(stop), advance=meter.advance)
                _collapse(out)
        if leaves_left(out, leaves):
            raise Interrupted(f"the capture in {out} was stopped and saved", RESUME)
        record = _finished(out, record, settings)
    return CaptureResult(out, record, meter.read, time.monotonic() - started)


def _collapse(out: Path) -> None:
    collapse(nodes_in(out), out)


def _finished(out: Path, record: CaptureRecord, settings: CaptureSettings) -> CaptureRecord:
    _collapse(out)
    if len(range(*record.leaves)) < LEAVES:
        record = record.model_copy(update={"state": "shard"})
        record.write(out)
        return record
    moments = finish(nodes_in(out), out, tuple(sorted(settings.split)))
    record = record.model_copy(update={"state": "complete", "moments": moments})
    record.write(out)
    clear(out)
    return record


def _frequencies(loaded: LoadedModel, store: TokenStore) -> Frequencies:
    """How often each token stands in the documents: says, at inference, which tokens are rare."""
    manifest = store.manifest
    documents = (store.document(number) for number in range(len(manifest.documents)))
    return Frequencies.counted(documents, loaded.port.vocab, manifest.tokenizer_sha256)


def _record(
    loaded: LoadedModel, store: TokenStore, settings: CaptureSettings, identity: dict[str, Any]
) -> CaptureRecord:
    leaves = leaves_of(settings.shard)
    model = loaded.identity()
    return CaptureRecord(
        state="running",
        identity=identity,
        about={
            "model": {"name": model["name"], "revision": model["revision"]},
            "versions": library_versions(),
            "machine": machine(),
        },
        shard=settings.shard,
        leaves=(leaves.start, leaves.stop),
        windows=sum(len(leaf_windows(store.manifest, number)) for number in leaves),
        tokens=sum(leaf_tokens(store.manifest, number) for number in leaves),
    )


def _sweep(out: Path) -> None:
    """Remove what a killed writer left; the folder's lock is held, so nobody is writing."""
    for path in out.rglob(".*.partial"):
        path.unlink(missing_ok=True)


class _Meter:
    """Counts tokens and tells the rate of this run."""

    def __init__(self, total: int, held: int, progress: Progress | None) -> None:
        self.read = 0
        self._total, self._held, self._progress = total, held, progress
        self._started = time.monotonic()

    def advance(self, tokens: int) -> None:
        """Count a batch."""
        self.read += tokens
        if self._progress is not None:
            seconds = max(time.monotonic() - self._started, 1e-9)
            rate = f"{self.read / seconds:,.0f} tokens/s"
            self._progress(self._held + self.read, self._total, rate)
