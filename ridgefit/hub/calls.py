"""Requests to the Hub: which failures are worth another try, and what each of them means in one sentence."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import ridgefit
from ridgefit.errors import BadInput, RidgefitError

if TYPE_CHECKING:
    from huggingface_hub import HfApi

T = TypeVar("T")
TRIES = 3
_AGAIN = {429, 500, 502, 503, 504}
_NETWORK = {"TransportError", "ConnectionError", "Timeout", "RemoteProtocolError"}
_NET_PACKAGES = {"httpx", "httpx2", "requests", "urllib3"}
_LOGIN = "log in with `hf auth login`, or set HF_TOKEN"


@dataclass(frozen=True)
class Hub:
    """Where the Hub is and who asks it.

    Attributes:
        endpoint: None takes HF_ENDPOINT or the public Hub.
        token: None takes HF_TOKEN or the one that `hf auth login` saved.
        cache: None takes the client's own cache folder.
    """

    endpoint: str | None = None
    token: str | None = None
    cache: Path | None = None

    @cached_property
    def api(self) -> HfApi:
        """The Hub's own client."""
        from huggingface_hub import HfApi

        return HfApi(
            endpoint=self.endpoint,
            token=self.token,
            library_name="ridgefit",
            library_version=ridgefit.__version__,
        )


def asked(what: str, call: Callable[[], T], *, tries: int = TRIES) -> T:
    """The result of a call to the Hub, which may be repeated without harm.

    Args:
        what: what was asked for, for the sentence: "the list of files of org/name".
        call: one request, or several that change nothing, or that may be made twice.
        tries: how often it is made while the failure may pass.

    Raises:
        BadInput: it failed, in one sentence.
    """
    for left in reversed(range(tries)):
        try:
            return call()
        except RidgefitError:
            raise
        except Exception as error:
            if left and is_passing(error):
                time.sleep(2.0 ** (tries - left - 1))
                continue
            raise translated(error, what) from error
    raise AssertionError("unreachable")  # pragma: no cover


def is_passing(error: BaseException) -> bool:
    """Whether the same request may succeed a moment later: the network, a busy or a broken server."""
    if status_of(error) is not None:
        return status_of(error) in _AGAIN
    return any(_is_network(item) or isinstance(item, json.JSONDecodeError) for item in _chain(error))


def status_of(error: BaseException) -> int | None:
    """HTTP status behind an exception, if it was the server that refused."""
    for item in _chain(error):
        status = getattr(getattr(item, "response", None), "status_code", None)
        if isinstance(status, int):
            return status
    return None


def named(error: BaseException) -> set[str]:
    """Class names of an exception and of what caused it."""
    return {cls.__name__ for item in _chain(error) for cls in type(item).__mro__}


def translated(error: BaseException, what: str) -> RidgefitError:
    """The sentence for a failure of the Hub client."""
    names, status = named(error), status_of(error)
    if "OfflineModeIsEnabled" in names:
        return BadInput(f"{what} is not on this machine and HF_HUB_OFFLINE is set", "unset it")
    if "LocalTokenNotFoundError" in names:
        return BadInput(f"there is no token of the Hub to ask for {what}", _LOGIN)
    if "GatedRepoError" in names:
        return BadInput(f"{what} is gated for this account", "accept the terms on its page, then log in")
    if "RevisionNotFoundError" in names:
        return BadInput(f"{what}: there is no such revision", "name a branch, a tag or a commit")
    if "RepositoryNotFoundError" in names:
        return BadInput(
            f"{what}: the repository does not exist or is private", f"check the name, or {_LOGIN}"
        )
    if names & {"EntryNotFoundError", "RemoteEntryNotFoundError"}:
        return BadInput(f"{what}: there is no such file in the repository", "check name and revision")
    if status == 401:
        return BadInput(f"the Hub does not accept this token ({what})", _LOGIN)
    if status == 403:
        return BadInput(f"this token may not do that ({what})", "use one with access to the repository")
    if status in (409, 412):
        return BadInput(f"the repository changed meanwhile ({what})", "run the same command again")
    if status == 429:
        return BadInput(
            f"the Hub limits the rate of requests ({what})", "wait some minutes, then run it again"
        )
    if status is not None and status >= 500:
        return BadInput(f"the Hub failed with status {status} ({what})", "run the same command again later")
    if is_passing(error):
        return BadInput(f"the Hub cannot be reached ({what})", "check the network, then run it again")
    if "LocalEntryNotFoundError" in names:
        return BadInput(f"{what} is not on this machine and the Hub cannot be reached", "check the network")
    return BadInput(f"the Hub refused ({what}): {_first(error)}", "check the account and the name")


def _is_network(error: BaseException) -> bool:
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    return any(
        cls.__name__ in _NETWORK and cls.__module__.partition(".")[0] in _NET_PACKAGES
        for cls in type(error).__mro__
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__ or found.__context__


def _first(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".")[:160]
