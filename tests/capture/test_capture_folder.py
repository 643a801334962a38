"""Folders that are not gone on with, settings that are refused, room that is not there."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from ridgefit.capture import CaptureResult, capture, estimate, load_capture
from ridgefit.capture.identity import identity_of, require_same, weights_sha256
from ridgefit.capture.reader import Reader
from ridgefit.corpus import TokenStore
from ridgefit.cost import moments_bytes, shape_from_config
from ridgefit.errors import BadInput, Interrupted
from ridgefit.files import folder_lock
from ridgefit.recipe import CaptureSettings


@pytest.fixture
def unfinished(tiny_loaded: Callable[..., Any], store: TokenStore, tmp_path: Path) -> Path:
    """A capture that stopped after five windows, checkpoints on disk."""
    out = tmp_path / "unfinished"
    seen = []

    def step(*_: Any) -> None:
        seen.append(1)
        if len(seen) == 5:
            raise Interrupted("stopped")

    with pytest.raises(Interrupted):
        capture(tiny_loaded(), store, CaptureSettings(split=(2, 4), checkpoint_every=1), out, progress=step)
    assert list((out / "checkpoint").iterdir()) or list((out / "nodes").iterdir())
    return out


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_without_resume_nothing_is_gone_on_with(
    unfinished: Path,
    tiny_loaded: Callable[..., Any],
    store: TokenStore,
    captured: Callable[..., CaptureResult],
) -> None:
    before = tree(unfinished)
    with pytest.raises(BadInput, match="an unfinished capture") as caught:
        capture(tiny_loaded(), store, CaptureSettings(split=(2, 4)), unfinished)
    assert "--resume" in caught.value.fix
    assert tree(unfinished) == before
    finished = captured("finished").folder
    before = tree(finished)
    with pytest.raises(BadInput, match="a finished capture"):
        captured("finished")
    assert tree(finished) == before


def test_resuming_a_finished_capture_does_nothing(captured: Callable[..., CaptureResult]) -> None:
    first = captured("out")
    before = tree(first.folder)
    again = captured("out", resume=True)
    assert again.tokens == 0
    assert again.record == first.record
    assert tree(first.folder) == before


def test_resuming_nothing_starts(captured: Callable[..., CaptureResult], tmp_path: Path) -> None:
    """A run may have been killed before it wrote anything."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".capture.json.77.partial").write_text("{")
    assert captured("out", resume=True).record.state == "complete"
    assert not (tmp_path / "out" / ".capture.json.77.partial").exists()


def test_a_folder_of_something_else_is_left_alone(
    captured: Callable[..., CaptureResult], tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    for resume in (False, True):
        with pytest.raises(BadInput, match="not empty"):
            captured("out", resume=resume)
    assert (tmp_path / "out" / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("split", {"split": (2, 3)}),
        ("precision", {"precision": "fp64"}),
        ("lead", {"lead": 2}),
        ("batch", {"batch": 2}),
        ("shard", {"shard": "1/2"}),
    ],
)
def test_changed_settings_are_named_with_both_values(
    field: str, settings: dict[str, Any], unfinished: Path, tiny_loaded: Callable[..., Any], store: TokenStore
) -> None:
    before = tree(unfinished)
    now = CaptureSettings(**{"split": (2, 4), "resume": True, **settings})
    with pytest.raises(BadInput) as caught:
        capture(tiny_loaded(), store, now, unfinished)
    assert f" {field} " in caught.value.what
    assert (
        repr(list(settings[field]) if field == "split" else settings[field]).strip("'") in caught.value.what
    )
    assert tree(unfinished) == before


def test_a_changed_model_text_or_machine_is_named(
    unfinished: Path,
    tiny_loaded: Callable[..., Any],
    make_store: Callable[..., TokenStore],
    store: TokenStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = CaptureSettings(split=(2, 4), resume=True)

    def refused(loaded: Any, text: TokenStore) -> str:
        with pytest.raises(BadInput) as caught:
            capture(loaded, text, settings, unfinished)
        return caught.value.what

    assert " text " in refused(tiny_loaded(), make_store(seed=1))
    assert "model.weights_sha256" in refused(tiny_loaded("llama", seed=1), store)
    assert "model.family 'llama', this run has 'qwen3'" in refused(tiny_loaded("qwen3"), store)
    assert "model.attention 'sdpa', this run has 'eager'" in refused(tiny_eager(tiny_loaded()), store)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        assert f"threads {threads}, this run has {threads + 1}" in refused(tiny_loaded(), store)
    finally:
        torch.set_num_threads(threads)
    with monkeypatch.context() as patch:
        patch.setattr("ridgefit.capture.identity.library_versions", lambda: {"torch": "9.9"})
        assert "versions." in refused(tiny_loaded(), store)
    assert capture(tiny_loaded(), store, settings, unfinished).record.state == "complete"


class Eager:
    """A port that says of itself that it attends eagerly."""

    attention = "eager"

    def __init__(self, port: Any) -> None:
        self._port = port

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)


def tiny_eager(loaded: Any) -> Any:
    """The same model as one that was loaded with eager attention."""
    return SimpleNamespace(port=Eager(loaded.port), identity=loaded.identity, ref=loaded.ref)


def test_dtype_is_part_of_the_identity(tiny_folder: Callable[..., Path], store: TokenStore) -> None:
    from ridgefit.models import load_model

    settings = CaptureSettings(split=(2,))
    half, full = (
        identity_of(load_model(str(tiny_folder()), dtype=dtype, device="cpu"), store, settings, "fast")
        for dtype in ("bfloat16", "float32")
    )
    with pytest.raises(BadInput, match=r"model\.dtype 'float32', this run has 'bfloat16'"):
        require_same(full, half, "it", "")


def test_every_weight_matrix_is_in_the_hash(tiny_loaded: Callable[..., Any]) -> None:
    decoder = tiny_loaded().port.decoder
    before = weights_sha256(decoder)
    assert before == weights_sha256(decoder)
    for name, parameter in decoder.named_parameters():
        kept = parameter.detach().clone()
        parameter.data.mul_(1.01)
        assert weights_sha256(decoder) != before, name
        parameter.data.copy_(kept)
    assert weights_sha256(decoder) == before


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"split": (0,)}, "split 0 is not inside"),
        ({"split": (6,)}, "split 6 is not inside this model of 6 layers"),
        ({"split": (2, 2)}, "name one twice"),
        ({"features": ("stat",)}, "there is no feature 'stat'"),
        ({"shard": "0/4"}, "no shard 0/4"),
        ({"shard": "5/4"}, "no shard 5/4"),
        ({"shard": "1/9"}, "at most 8 shards"),
        ({"shard": "1/0"}, "at most 8 shards"),
    ],
)
def test_settings_that_cannot_be_met_are_refused_before_any_file(
    settings: dict[str, Any], words: str, captured: Callable[..., CaptureResult], tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=words):
        captured("out", **settings)
    assert not (tmp_path / "out").exists()


def test_text_of_another_tokenizer_is_refused(
    tiny_loaded: Callable[..., Any], store: TokenStore, tmp_path: Path
) -> None:
    other = TokenStore(store.manifest.model_copy(update={"tokenizer_sha256": "0" * 64}), store.tokens)
    with pytest.raises(BadInput, match="another tokenizer"):
        capture(tiny_loaded(), other, CaptureSettings(split=(2,)), tmp_path / "out")


def test_a_folder_in_use_is_refused(captured: Callable[..., CaptureResult], tmp_path: Path) -> None:
    """The lock is another process's: within one process it would be this test's own."""
    context = multiprocessing.get_context("fork")
    held, done = context.Event(), context.Event()

    def hold() -> None:
        with folder_lock(tmp_path / "out"):
            held.set()
            done.wait(30)

    process = context.Process(target=hold)
    process.start()
    try:
        assert held.wait(30)
        with pytest.raises(BadInput, match="in use"):
            captured("out")
    finally:
        done.set()
        process.join()


def test_room_is_checked_before_the_first_pass(
    captured: Callable[..., CaptureResult], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Reader, "add", lambda *_: pytest.fail("a pass was run"))
    with monkeypatch.context() as patch:
        patch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
        with pytest.raises(BadInput, match=r"GiB of memory besides the model"):
            captured("out")
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage)
        with pytest.raises(BadInput, match="on the disk"):
            captured("out")
    assert not (tmp_path / "out" / "capture.json").exists()


def test_a_full_disk_leaves_a_capture_that_resumes(
    unfinished: Path, tiny_loaded: Callable[..., Any], store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = CaptureSettings(split=(2, 4), resume=True, checkpoint_every=1)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("ridgefit.files._flush", full)
        with pytest.raises(BadInput, match="No space left"):
            capture(tiny_loaded(), store, settings, unfinished)
    assert not list(unfinished.rglob("*.partial"))
    assert capture(tiny_loaded(), store, settings, unfinished).record.state == "complete"


def test_a_damaged_checkpoint_is_refused(
    unfinished: Path, tiny_loaded: Callable[..., Any], store: TokenStore
) -> None:
    for path in (*(unfinished / "checkpoint").iterdir(), *(unfinished / "nodes").iterdir()):
        path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(BadInput, match="not a whole file"):
        capture(tiny_loaded(), store, CaptureSettings(split=(2, 4), resume=True), unfinished)


def test_changed_sums_or_records_are_refused(captured: Callable[..., CaptureResult]) -> None:
    folder = captured("out").folder
    opened = load_capture(folder)
    with pytest.raises(BadInput, match="no split 3"):
        opened.moments(3)
    path = folder / "moments.s2.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(BadInput, match="sha256 differs"):
        opened.moments(2)
    path.unlink()
    with pytest.raises(BadInput, match="not a whole file"):
        opened.moments(2)
    record = folder / "capture.json"
    content = json.loads(record.read_text())
    for change in ({"format": "ridgefit-capture-9"}, {"state": "done"}, {"extra": 1}):
        record.write_text(json.dumps({**content, **change}))
        with pytest.raises(BadInput, match="not a capture's record"):
            load_capture(folder)
    record.write_text("{")
    with pytest.raises(BadInput, match="not valid JSON"):
        load_capture(folder)


def test_a_capture_keeps_its_text(captured: Callable[..., CaptureResult], store: TokenStore) -> None:
    opened = load_capture(captured("out").folder)
    assert opened.store().manifest == store.manifest
    assert torch.equal(opened.store().tokens, store.tokens)
    assert opened.features == ("state",)
    assert opened.lead == 4


def test_the_estimate_knows_the_files(
    captured: Callable[..., CaptureResult], tiny_loaded: Callable[..., Any]
) -> None:
    """Bytes of sums are exact; a checkpoint and the finest pieces of the tree fit in the disk estimate."""
    shape = shape_from_config(tiny_loaded().port.config.to_dict())
    for lead, kinds in ((4, 2), (0, 1)):
        result = captured(f"lead-{lead}", lead=lead)
        settings = CaptureSettings(split=(2, 4), lead=lead)
        needs = estimate(shape, settings, longest=96, tokens=1000, product="fast")
        assert needs.sums == kinds * (moments_bytes(shape, 2) + moments_bytes(shape, 4))
        written = sum((result.folder / part.file).stat().st_size for part in result.record.moments.values())
        assert abs(written - needs.sums) < 8000  # headers
        assert needs.memory > needs.sums
        assert needs.disk > needs.result > needs.sums
    more = estimate(shape, CaptureSettings(split=(2, 4), workers=3), longest=96, tokens=1000, product="fast")
    assert more.disk > needs.disk
    eager = estimate(shape, settings, longest=96, tokens=1000, product="fast", eager=True)
    assert eager.forward > needs.forward
