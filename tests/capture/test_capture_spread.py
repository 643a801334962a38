"""Same inputs, same bytes: shards, workers, signals and kills change nothing."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ridgefit.capture import CaptureResult, capture, load_capture, merge_shards, workers
from ridgefit.capture.identity import identity_of
from ridgefit.capture.reader import Reader
from ridgefit.corpus import TokenStore
from ridgefit.errors import BadInput, CheckFailed, Interrupted, RidgefitError
from ridgefit.files import sha256_file
from ridgefit.recipe import CaptureSettings

Digests = Callable[[CaptureResult], dict[str, str]]


class Run:
    """A capture in a process of its own that can be killed; it is forked, because importing takes seconds."""

    def __init__(
        self, loaded: Any, store: TokenStore, out: Path, pause: float, settings: dict[str, Any]
    ) -> None:
        self._read, write = os.pipe()
        self.errors = out.with_suffix(".errors")
        self.process = multiprocessing.get_context("fork").Process(
            target=self._work, args=(loaded, store, out, pause, settings, write)
        )
        self.process.start()
        os.close(write)

    def _work(
        self, loaded: Any, store: TokenStore, out: Path, pause: float, settings: dict[str, Any], write: int
    ) -> None:
        def step(*_: Any) -> None:
            os.write(write, b".")
            time.sleep(pause)

        try:
            capture(loaded, store, CaptureSettings(**settings), out, progress=step)
        except RidgefitError as error:
            self.errors.write_text(str(error))
            os._exit(error.exit_status)
        os._exit(0)

    def wait_for(self, windows: int) -> None:
        for _ in range(windows):
            if not os.read(self._read, 1):
                break

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def end(self, timeout: float = 120) -> int | None:
        self.process.join(timeout)
        os.close(self._read)
        return self.process.exitcode


@pytest.fixture
def start(tiny_loaded: Callable[..., Any], store: TokenStore) -> Callable[..., Run]:
    """`start(out, pause=0.01, **settings)` -> a process that captures into `out`, going on if it can."""

    def run(out: Path, pause: float = 0.02, **settings: Any) -> Run:
        settings = {"split": (2, 4), "resume": True, "checkpoint_every": 1, **settings}
        return Run(tiny_loaded(), store, out, pause, settings)

    return run


def sums(folder: Path) -> dict[str, str]:
    return {split: record.sha256 for split, record in load_capture(folder).record.moments.items()}


@pytest.fixture
def reference(captured: Callable[..., CaptureResult], digests: Digests) -> dict[str, str]:
    return digests(captured("reference"))


@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_shards_merge_to_the_bytes_of_one(
    count: int, captured: Callable[..., CaptureResult], reference: dict[str, str], tmp_path: Path
) -> None:
    shards = [captured(f"shard-{n}", shard=f"{n}/{count}") for n in range(1, count + 1)]
    assert {shard.record.state for shard in shards} == {"shard"}
    folders = [shard.folder for shard in shards]
    before = {path: sha256_file(path) for folder in folders for path in folder.rglob("*.safetensors")}
    record = merge_shards(folders[::-1], tmp_path / "merged")
    assert sums(tmp_path / "merged") == reference
    assert all(sha256_file(tmp_path / "merged" / m.file) == m.sha256 for m in record.moments.values())
    assert before == {path: sha256_file(path) for path in before}
    whole = load_capture(tmp_path / "reference").record
    assert (record.windows, record.tokens) == (whole.windows, whole.tokens)
    assert not (tmp_path / "merged" / "nodes").exists()


def test_one_shard_of_one_is_the_whole(
    captured: Callable[..., CaptureResult], reference: dict[str, str], digests: Digests
) -> None:
    assert digests(captured("one", shard="1/1")) == reference


def test_shards_that_are_not_the_whole_are_refused(
    captured: Callable[..., CaptureResult], tmp_path: Path
) -> None:
    one, two = (captured(f"shard-{n}", shard=f"{n}/2").folder for n in (1, 2))
    other = captured("other", shard="2/2", lead=2).folder
    whole = captured("whole").folder
    cases = {
        "no shards": [],
        "not the whole": [one],
        "same part": [one, two, one],
        "lead 4": [one, other],
        "whole capture": [whole],
        "not a capture": [tmp_path],
    }
    for words, folders in cases.items():
        with pytest.raises(BadInput, match=words):
            merge_shards(folders, tmp_path / "merged")
        assert not (tmp_path / "merged").exists()
    with pytest.raises(BadInput, match="shard 1/2"):
        load_capture(one)
    (one / "nodes" / "node-0-4.safetensors").unlink()
    with pytest.raises(BadInput, match="lacks sums"):
        merge_shards([one, two], tmp_path / "merged")


def test_a_torn_shard_is_refused_and_leaves_nothing(
    captured: Callable[..., CaptureResult], tmp_path: Path
) -> None:
    one, two = (captured(f"shard-{n}", shard=f"{n}/2").folder for n in (1, 2))
    path = two / "nodes" / "node-4-8.safetensors"
    path.write_bytes(path.read_bytes()[:-64])
    with pytest.raises(BadInput, match="not a whole file"):
        merge_shards([one, two], tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_workers_give_the_bytes_of_one_process(
    captured: Callable[..., CaptureResult], reference: dict[str, str], digests: Digests
) -> None:
    result = captured("workers", workers=4)
    assert digests(result) == reference
    assert result.tokens == result.record.tokens


def test_a_batched_capture_is_the_same_in_shards(
    captured: Callable[..., CaptureResult], digests: Digests, tmp_path: Path
) -> None:
    whole = digests(captured("whole", batch=3, precision="fp64"))
    folders = [captured(f"{n}", batch=3, precision="fp64", shard=f"{n}/4").folder for n in (1, 2, 3, 4)]
    merge_shards(folders, tmp_path / "merged")
    assert sums(tmp_path / "merged") == whole


def test_fewer_windows_than_leaves(
    tiny_loaded: Callable[..., Any], make_store: Callable[..., TokenStore], tmp_path: Path
) -> None:
    """Some leaves are empty, whole shards too."""
    small = make_store(3, window=400)
    assert len(small.manifest.fit_windows) < 8
    for shard in (None, "1/3", "2/3", "3/3"):
        settings = CaptureSettings(split=(2,), shard=shard)
        capture(tiny_loaded(), small, settings, tmp_path / str(shard).replace("/", "-"))
    merge_shards([tmp_path / f"{n}-3" for n in (1, 2, 3)], tmp_path / "merged")
    assert sums(tmp_path / "None") == sums(tmp_path / "merged")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_the_window_saves_and_exits_75(
    number: signal.Signals, start: Callable[..., Run], reference: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run = start(out, pause=0.3, checkpoint_every=1000)
    run.wait_for(3)
    run.signal(number)
    assert run.end() == 75
    assert "--resume" in run.errors.read_text()
    assert list((out / "checkpoint").glob("leaf-*.safetensors")) or list((out / "nodes").iterdir())
    with pytest.raises(BadInput, match="not finished"):
        load_capture(out)
    assert start(out, pause=0).end() == 0
    assert sums(out) == reference


def test_a_second_signal_stops_at_once(start: Callable[..., Run], tmp_path: Path) -> None:
    run = start(tmp_path / "out", pause=30)
    run.wait_for(1)
    run.signal(signal.SIGTERM)
    time.sleep(0.3)
    assert run.process.is_alive()
    run.signal(signal.SIGTERM)
    assert run.end(20) == -signal.SIGTERM


def test_killed_at_random_moments_and_resumed(
    start: Callable[..., Run], reference: dict[str, str], tmp_path: Path
) -> None:
    """SIGKILL ten times, at no chosen point: in a forward pass, while writing, while merging."""
    out = tmp_path / "out"
    generator = random.Random(0)
    kills = 0
    while kills < 10:
        run = start(out, pause=0.01)
        run.wait_for(generator.randint(0, 3))
        time.sleep(generator.random() * 0.1)
        run.signal(signal.SIGKILL)
        status = run.end()
        if status == 0:
            break
        assert status == -signal.SIGKILL
        kills += 1
    assert kills >= 5
    assert start(out, pause=0).end() == 0
    assert sums(out) == reference
    assert not list(out.rglob("*.partial"))


@pytest.mark.slow
def test_workers_are_killed_and_resumed(
    start: Callable[..., Run], reference: dict[str, str], tmp_path: Path
) -> None:
    """The parent is killed, its workers end by themselves; then a signal; then to the end."""
    out = tmp_path / "out"
    for _ in range(2):
        run = start(out, pause=0.05, workers=2)
        run.wait_for(2)
        run.signal(signal.SIGKILL)
        assert run.end() == -signal.SIGKILL
    run = start(out, pause=0.2, workers=2, checkpoint_every=1000)
    run.wait_for(2)
    run.signal(signal.SIGTERM)
    assert run.end() == 75
    assert start(out, pause=0, workers=3).end() == 0
    assert sums(out) == reference


def test_a_worker_that_dies_is_reported(
    captured: Callable[..., CaptureResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_work", _die)
    with pytest.raises(CheckFailed, match="worker ended with status 3") as caught:
        captured("out", workers=2)
    assert "--resume" in caught.value.fix


def _die(*_: Any) -> None:
    os._exit(3)


def test_a_model_that_changed_under_its_workers_is_refused(
    tiny_loaded: Callable[..., Any], store: TokenStore, tmp_path: Path
) -> None:
    """Workers load the model again; one that is not the parent's is found by its weights."""
    store.save(tmp_path / "tokens")
    settings = CaptureSettings(split=(2,), workers=2)
    loaded = tiny_loaded()
    identity = identity_of(loaded, store, settings, "fast")
    workers._prepared(workers.WorkerOrder.of(loaded, tmp_path, settings, "fast", identity))
    weight = loaded.port.layers[5].mlp.up_proj.weight
    kept = weight[0].clone()
    try:
        weight[0] += 1
        changed = identity_of(loaded, store, settings, "fast")
        with pytest.raises(BadInput, match="weights_sha256"):
            workers._prepared(workers.WorkerOrder.of(loaded, tmp_path, settings, "fast", changed))
    finally:
        weight[0] = kept


def test_interrupted_is_raised_to_python_callers(
    captured: Callable[..., CaptureResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    add = Reader.add
    calls = iter(range(100))

    def add_and_stop(self: Reader, windows: Any) -> None:
        add(self, windows)
        if next(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Reader, "add", add_and_stop)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted):
        captured("out")
    assert signal.getsignal(signal.SIGINT) is before
    result = captured("out", resume=True)
    assert result.record.state == "complete"
    assert 0 < result.tokens < result.record.tokens
