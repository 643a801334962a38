"""Leaves spread over processes of one machine: each loads the model once and takes whole leaves.

A worker talks to its parent over one pipe and dies with it: when the pipe closes, however that came about,
the process ends. All results go through files that are whole or absent, so nothing is lost but the batch at
hand, and nothing is twice.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, cast

import torch

from ridgefit.capture.folder import TOKENS_FOLDER
from ridgefit.capture.identity import identity_of, require_same
from ridgefit.capture.leaves import LeafWork
from ridgefit.capture.reader import Reader
from ridgefit.capture.signals import StopRequest
from ridgefit.corpus import TokenStore
from ridgefit.errors import BadInput, CheckFailed, Interrupted, RidgefitError
from ridgefit.features import FeatureList
from ridgefit.models import LoadedModel, load_model
from ridgefit.moments import Product
from ridgefit.recipe import CaptureSettings

_ERRORS: dict[str, type[RidgefitError]] = {kind.__name__: kind for kind in (BadInput, CheckFailed)}


@dataclass(frozen=True)
class WorkerOrder:
    """Everything a worker needs to do exactly what its parent would do.

    Attributes:
        ref: reference to load the model by.
        dtype: compute dtype.
        device: device.
        attention: attention implementation.
        remote_code: whether the parent's model came from code in its repository.
        threads: torch threads of the parent; the order of additions depends on it.
        folder: the capture.
        settings: of the capture.
        product: precision of the products.
        identity: what the worker's own model and text must have.
    """

    ref: str
    dtype: str
    device: str
    attention: str
    remote_code: bool
    threads: int
    folder: Path
    settings: CaptureSettings
    product: Product
    identity: dict[str, Any]

    @classmethod
    def of(
        cls,
        loaded: LoadedModel,
        folder: Path,
        settings: CaptureSettings,
        product: Product,
        identity: dict[str, Any],
    ) -> WorkerOrder:
        """The order that makes a worker load the same model again."""
        port = loaded.port
        return cls(
            ref=f"{loaded.ref}@{loaded.revision}" if loaded.revision else loaded.ref,
            dtype=str(port.dtype).removeprefix("torch."),
            device=str(port.device),
            attention=port.attention,
            remote_code=type(loaded.model).__module__.startswith("transformers_modules"),
            threads=torch.get_num_threads(),
            folder=folder,
            settings=settings,
            product=product,
            identity=identity,
        )


def run_workers(
    order: WorkerOrder,
    leaves: list[int],
    *,
    stop: StopRequest,
    advance: Callable[[int], None],
    finished: Callable[[], None],
) -> None:
    """Finish leaves in worker processes, or as many as there is time for until `stop` is asked.

    Args:
        order: what to do.
        leaves: which ones.
        stop: when asked, workers save and end.
        advance: told the tokens of each batch.
        finished: called after each leaf.

    Raises:
        BadInput: a worker refused its input.
        CheckFailed: a worker found a broken promise, or died.
    """
    todo = list(leaves)
    told = False
    with _started(order, min(order.settings.workers, len(leaves))) as workers:
        while workers:
            if stop and not told:
                told = True
                for pipe in workers:
                    _send(pipe, None)
            for pipe in cast("list[Connection]", wait(list(workers), timeout=0.2)):
                try:
                    kind, value = pipe.recv()
                except (EOFError, OSError) as error:
                    process = workers.pop(pipe)
                    process.join()
                    if not stop:
                        raise _died(process.exitcode) from error
                    continue
                if kind == "tokens":
                    advance(value)
                elif kind == "failed":
                    name, what, fix = value
                    raise _ERRORS.get(name, CheckFailed)(what, fix)
                elif kind == "ended":
                    workers.pop(pipe).join()
                else:
                    if kind == "leaf":
                        finished()
                    _send(pipe, todo.pop(0) if todo and not told else None)


@contextlib.contextmanager
def _started(order: WorkerOrder, count: int) -> Iterator[dict[Connection, SpawnProcess]]:
    """Workers by the parent's end of their pipe; whatever still runs at the end is killed."""
    context = multiprocessing.get_context("spawn")
    workers: dict[Connection, SpawnProcess] = {}
    everyone: list[SpawnProcess] = []
    try:
        for number in range(count):
            mine, theirs = context.Pipe()
            process = context.Process(
                target=_work, args=(order, theirs), name=f"ridgefit capture {number + 1}", daemon=True
            )
            process.start()
            theirs.close()
            workers[mine] = process
            everyone.append(process)
        yield workers
    finally:
        for process in everyone:
            if process.is_alive():
                process.kill()
            process.join()


def _work(order: WorkerOrder, pipe: Connection) -> None:
    """A worker's whole life."""
    orders: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    with StopRequest(patient=True) as stop:
        threading.Thread(target=_listen, args=(pipe, orders, stop), daemon=True).start()
        try:
            work = _prepared(order)
            _send(pipe, ("ready", None))
            while (leaf := orders.get()) is not None and not stop:
                work.run(
                    leaf, stop=lambda: bool(stop), advance=lambda tokens: _send(pipe, ("tokens", tokens))
                )
                _send(pipe, ("leaf", leaf))
        except Interrupted:
            pass
        except RidgefitError as error:
            _send(pipe, ("failed", (type(error).__name__, error.what, error.fix)))
        _send(pipe, ("ended", None))


def _listen(pipe: Connection, orders: queue.SimpleQueue[int | None], stop: StopRequest) -> None:
    """Take orders until the parent is gone, then end the process at once."""
    while True:
        try:
            order = pipe.recv()
        except (EOFError, OSError):
            os._exit(1)
        if order is None:
            stop.ask()
        orders.put(order)


def _prepared(order: WorkerOrder) -> LeafWork:
    torch.set_num_threads(order.threads)
    loaded = load_model(
        order.ref,
        dtype=order.dtype,
        device=order.device,
        attention=order.attention,
        trust_remote_code=order.remote_code,
    )
    store = TokenStore.load(order.folder / TOKENS_FOLDER)
    require_same(
        order.identity,
        identity_of(loaded, store, order.settings, order.product),
        "the model this capture was started with",
        "leave the model's files alone while a capture runs, or use one worker",
    )
    return leaf_work(loaded, store, order.settings, order.product, order.folder)


def leaf_work(
    loaded: LoadedModel, store: TokenStore, settings: CaptureSettings, product: Product, folder: Path
) -> LeafWork:
    """A reader with empty sums, ready for any leaf."""
    reader = Reader(
        loaded.port,
        store,
        splits=sorted(settings.split),
        features=FeatureList(settings.features),
        product=product,
        lead=settings.lead,
    )
    return LeafWork(reader, folder, settings.batch, settings.checkpoint_every)


def _send(pipe: Connection, message: Any) -> None:
    """Send unless the other side is gone, which its own end will notice."""
    with contextlib.suppress(OSError):
        pipe.send(message)


def _died(status: int | None) -> CheckFailed:
    killed = status is not None and status < 0
    how = f"was ended by signal {-status}" if killed and status is not None else f"ended with status {status}"
    return CheckFailed(
        f"a capture worker {how}",
        "use fewer workers if memory ran out, then run again with --resume",
    )
