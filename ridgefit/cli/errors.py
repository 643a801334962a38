"""One table from an exception to a sentence, what mends it, and an exit status."""

from __future__ import annotations

import errno
import json
import os
import sys
import traceback
from dataclasses import dataclass
from typing import TextIO

from ridgefit.errors import BadInput, Interrupted, RidgefitError

DEBUG = "RIDGEFIT_DEBUG"
_CHECK, _INPUT, _AGAIN = RidgefitError.exit_status, BadInput.exit_status, Interrupted.exit_status


@dataclass(frozen=True)
class Row:
    """What to say about one kind of exception.

    Args:
        error: top package and name of the class; naming it imports nothing. Subclasses are meant too,
            unless they have a row of their own.
        what: the sentence; `{first}` is the first line of the exception's own text, `{path}` the file it
            names.
        fix: the command or setting that mends it.
        status: exit status.
        when: the exception's text must contain this.
        errno: an OSError must have this number.
    """

    error: str
    what: str
    fix: str = ""
    status: int = _INPUT
    when: str = ""
    errno: int | None = None


_SMALLER = "use a shorter prompt or window, a smaller batch, --dtype bfloat16 or another --device"
_CONNECT = "connect, unset HF_HUB_OFFLINE, or give a local folder"
TABLE = (
    Row(
        "builtins.KeyboardInterrupt",
        "interrupted",
        "run it again; capture goes on with --resume, run and eval by themselves",
        _AGAIN,
    ),
    Row("builtins.BrokenPipeError", "nobody reads the output any more", "", _CHECK),
    Row("builtins.MemoryError", "this machine ran out of memory", _SMALLER),
    Row("torch.OutOfMemoryError", "the device ran out of memory ({first})", _SMALLER),
    Row(
        "builtins.RuntimeError", "this machine ran out of memory ({first})", _SMALLER, when="allocate memory"
    ),
    Row("builtins.RuntimeError", "the device ran out of memory ({first})", _SMALLER, when="out of memory"),
    Row(
        "huggingface_hub.GatedRepoError",
        "the Hub repository is gated and this account has no access ({first})",
        "accept its licence on its page and log in with `hf auth login`",
    ),
    Row(
        "huggingface_hub.RepositoryNotFoundError",
        "the Hub has no such repository for this account ({first})",
        "check the name, or log in with `hf auth login` if it is private",
    ),
    Row(
        "huggingface_hub.RevisionNotFoundError",
        "the Hub repository has no such revision ({first})",
        "check the name after @",
    ),
    Row(
        "huggingface_hub.LocalEntryNotFoundError",
        "a file of the Hub is not on this machine and the Hub cannot be reached",
        _CONNECT,
    ),
    Row(
        "huggingface_hub.OfflineModeIsEnabled",
        "the Hub is needed and HF_HUB_OFFLINE forbids it",
        _CONNECT,
    ),
    Row(
        "huggingface_hub.EntryNotFoundError",
        "the Hub repository lacks a file ({first})",
        "check the name and the revision",
    ),
    Row(
        "huggingface_hub.RemoteEntryNotFoundError",
        "the Hub repository lacks a file ({first})",
        "check the name and the revision",
    ),
    Row("huggingface_hub.HFValidationError", "this is no Hub name ({first})", "write org/name[@revision]"),
    Row("huggingface_hub.HfHubHTTPError", "the Hub refused ({first})", "try again, or check the account"),
    Row("httpx.TransportError", "the network failed ({first})", _CONNECT),
    Row("httpx2.TransportError", "the network failed ({first})", _CONNECT),
    Row("requests.ConnectionError", "the network failed ({first})", _CONNECT),
    Row(
        "builtins.OSError",
        "the disk is full ({path})",
        "free disk space or choose another --out",
        errno=errno.ENOSPC,
    ),
    Row("builtins.FileNotFoundError", "{path} does not exist"),
    Row("builtins.PermissionError", "{path} may not be opened", "check who owns it"),
    Row("builtins.IsADirectoryError", "{path} is a folder, not a file"),
    Row("builtins.NotADirectoryError", "{path} is a file, not a folder"),
    Row("builtins.FileExistsError", "{path} already exists", "choose another --out or remove it"),
    Row("builtins.ConnectionError", "the network failed ({first})", _CONNECT),
    Row("builtins.OSError", "the operating system refused ({first})"),
    Row("builtins.UnicodeDecodeError", "a file is not UTF-8 text ({first})", "convert it to UTF-8"),
    Row("json.JSONDecodeError", "a file is not valid JSON ({first})", "write it again"),
    Row("safetensors.SafetensorError", "a safetensors file is damaged ({first})", "make or fetch it again"),
    Row(
        "safetensors_rust.SafetensorError",
        "a safetensors file is damaged ({first})",
        "make or fetch it again",
    ),
    Row(
        "builtins.ModuleNotFoundError",
        "a library is missing ({first})",
        "install it; `pip install ridgefit[plots,gguf]` brings the optional ones",
    ),
    Row(
        "builtins.BaseException",
        "ridgefit failed in a way it should not ({kind}: {first})",
        f"run it again with {DEBUG}=1 and report what it prints",
        _CHECK,
    ),
)


def explain(error: BaseException) -> RidgefitError:
    """The sentence for any exception: ridgefit's own, a command line that cannot be parsed, or a row."""
    if isinstance(error, RidgefitError):
        return error
    if hasattr(error, "format_message"):  # typer's usage errors, which share no public base class
        return _usage(error)
    row = next(row for kind in type(error).__mro__ for row in TABLE if _matches(row, kind, error))
    text = str(error).strip().splitlines()
    words = {
        "first": (text[0].rstrip(".") if text else type(error).__name__)[:200],
        "path": getattr(error, "filename", None) or "a file",
        "kind": type(error).__name__,
    }
    return _with_status(row.what.format(**words), row.fix, row.status)


def fail(error: BaseException, *, as_json: bool, stdout: TextIO) -> int:
    """Say what is wrong, once, and return the exit status.

    One sentence on stderr; with `as_json` also an object on stdout, so that there is always exactly
    one. The traceback comes before it if RIDGEFIT_DEBUG=1.
    """
    known = explain(error)
    if os.environ.get(DEBUG, "") not in ("", "0"):
        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, BrokenPipeError):
        # Python would fail once more when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
        return known.exit_status
    sys.stderr.write(f"ridgefit: {known}\n")
    if as_json:
        body = {"error": str(known), "what": known.what, "fix": known.fix, "status": known.exit_status}
        stdout.write(json.dumps(body, ensure_ascii=False) + "\n")
        stdout.flush()
    return known.exit_status


def _matches(row: Row, kind: type, error: BaseException) -> bool:
    return (
        row.error == f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
        and row.when in str(error)
        and (row.errno is None or getattr(error, "errno", None) == row.errno)
    )


def _usage(error: BaseException) -> BadInput:
    message = (
        " ".join(str(error.format_message()).split()) if hasattr(error, "format_message") else str(error)
    )
    context = getattr(error, "ctx", None)
    command = getattr(context, "command_path", None) or "ridgefit"
    message = message.rstrip(".")
    return BadInput(message[:1].lower() + message[1:], f"see `{command} --help`")


def _with_status(what: str, fix: str, status: int) -> RidgefitError:
    kinds = {kind.exit_status: kind for kind in (RidgefitError, BadInput, Interrupted)}
    return kinds[status](what, fix)
