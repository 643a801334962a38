"""Every kind of exception is one sentence and an exit status; a traceback only when it is asked for."""

from __future__ import annotations

import errno
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from ridgefit.cli.errors import TABLE, explain, fail
from ridgefit.cli.options import command
from ridgefit.cli.output import Output
from ridgefit.errors import BadInput, CheckFailed, Interrupted


def hub(name: str) -> Exception:
    """An exception of the Hub client, without the response it would carry."""
    import huggingface_hub.errors

    kind = getattr(huggingface_hub.errors, name)
    made: Exception = kind.__new__(kind)
    Exception.__init__(made, "401 Client Error.\nRequest ID: x")
    return made


def out_of_memory() -> Exception:
    import torch

    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 16.00 GiB.\nGPU 0 has ...")


def damaged() -> Exception:
    from safetensors import SafetensorError

    error: Exception = SafetensorError("Error while deserializing header: invalid header length")
    return error


def decode() -> Exception:
    try:
        b"\xff".decode()
    except UnicodeDecodeError as error:
        return error
    raise AssertionError


CASES: list[tuple[Any, int, str]] = [
    (KeyboardInterrupt(), 75, "interrupted"),
    (MemoryError(), 2, "this machine ran out of memory"),
    (out_of_memory, 2, "the device ran out of memory (CUDA out of memory. Tried to allocate 16.00 GiB)"),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), 2, "this machine ran out of"),
    (RuntimeError("HIP out of memory"), 2, "the device ran out of memory"),
    (OSError(errno.ENOSPC, "No space left on device", "/maps/x"), 2, "the disk is full (/maps/x)"),
    (FileNotFoundError(errno.ENOENT, "No such file", "gone.json"), 2, "gone.json does not exist"),
    (PermissionError(errno.EACCES, "Permission denied", "locked"), 2, "locked may not be opened"),
    (IsADirectoryError(errno.EISDIR, "Is a directory", "folder"), 2, "folder is a folder"),
    (FileExistsError(errno.EEXIST, "File exists", "there"), 2, "there already exists"),
    (OSError(errno.EIO, "Input/output error"), 2, "the operating system refused"),
    (ConnectionResetError("reset by peer"), 2, "the network failed"),
    (decode, 2, "not UTF-8"),
    (json.JSONDecodeError("Expecting value", "", 0), 2, "not valid JSON"),
    (ModuleNotFoundError("No module named 'matplotlib'"), 2, "a library is missing"),
    (damaged, 2, "a safetensors file is damaged"),
    (lambda: hub("GatedRepoError"), 2, "gated"),
    (lambda: hub("RepositoryNotFoundError"), 2, "no such repository"),
    (lambda: hub("RevisionNotFoundError"), 2, "no such revision"),
    (lambda: hub("LocalEntryNotFoundError"), 2, "the Hub cannot be reached"),
    (lambda: hub("OfflineModeIsEnabled"), 2, "HF_HUB_OFFLINE forbids"),
    (lambda: hub("RemoteEntryNotFoundError"), 2, "lacks a file"),
    (lambda: hub("HFValidationError"), 2, "no Hub name"),
    (lambda: hub("HfHubHTTPError"), 2, "the Hub refused"),
    (ZeroDivisionError("division by zero"), 1, "ZeroDivisionError: division by zero"),
    (BadInput("this is wrong", "mend it"), 2, "this is wrong: mend it."),
    (CheckFailed("that does not hold"), 1, "that does not hold."),
    (Interrupted("stopped", "--resume"), 75, "stopped: --resume."),
]


@pytest.mark.parametrize(("error", "status", "words"), CASES, ids=[words[:24] for _, _, words in CASES])
def test_every_row_of_the_table(error: Any, status: int, words: str) -> None:
    known = explain(error if isinstance(error, BaseException) else error())
    assert known.exit_status == status
    assert words in str(known)
    assert "\n" not in str(known)
    assert str(known).endswith(".")


def test_gated_is_told_from_missing() -> None:
    """A gated repository is a kind of missing one to the client; the closer row must win."""
    assert explain(hub("GatedRepoError")).fix != explain(hub("RepositoryNotFoundError")).fix


def test_rows_fit_their_sentences() -> None:
    for row in TABLE:
        assert row.what.format(first="x", path="y", kind="z")
        assert row.status in (1, 2, 75)
        assert not row.what.endswith(".")


def test_failing_says_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    out = io.StringIO()
    assert fail(BadInput("wrong", "mend"), as_json=False, stdout=out) == 2
    assert (capsys.readouterr().err, out.getvalue()) == ("ridgefit: wrong: mend.\n", "")


def test_failing_with_json_also_prints_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    out = io.StringIO()
    assert fail(CheckFailed("wrong"), as_json=True, stdout=out) == 1
    assert json.loads(out.getvalue()) == {"error": "wrong.", "what": "wrong", "fix": "", "status": 1}
    assert capsys.readouterr().err == "ridgefit: wrong.\n"


def test_tracebacks_are_for_those_who_ask(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode() -> None:
        raise ValueError("inner")

    for value, traced in (("", False), ("0", False), ("1", True)):
        monkeypatch.setenv("RIDGEFIT_DEBUG", value)
        try:
            explode()
        except ValueError as error:
            assert fail(error, as_json=False, stdout=io.StringIO()) == 1
        assert ("Traceback" in capsys.readouterr().err) is traced


def status_of(error: BaseException, *arguments: str) -> int:
    """Exit status of a command that raises `error`."""

    def boom(output: Output) -> None:
        sys.stdout.write("chatter of a library\n")
        raise error

    boom.__annotations__ = {"output": Output}
    app = typer.Typer(add_completion=False)
    app.command()(command(boom))
    status: int = typer.main.get_command(app).main(list(arguments), standalone_mode=False)
    return status


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BadInput("a"), 2),
        (CheckFailed("a"), 1),
        (Interrupted("a"), 75),
        (KeyboardInterrupt(), 75),
        (RuntimeError("a"), 1),
        (MemoryError(), 2),
    ],
)
def test_a_command_returns_the_status(
    error: BaseException, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(error) == status
    assert status_of(error, "--json") == status
    said = capsys.readouterr()
    assert json.loads(said.out.splitlines()[-1])["status"] == status
    assert "Traceback" not in said.err


def test_a_model_name_that_is_nowhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ridgefit.cli.app import main

    for name in (str(tmp_path), str(tmp_path / "none"), "./none", "bundled:none"):
        assert main(["plan", name]) == 2
    assert capsys.readouterr().err.count("\n") == 4


def test_a_hub_name_without_a_network(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants

    from ridgefit.cli.app import main

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert main(["plan", "nobody/nothing"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "Hub" in said
