"""A push or pull whose every request may fail: main is old or complete, and the user reads one sentence."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hub_server import Server

from ridgefit.errors import RidgefitError
from ridgefit.hub import Hub, Target, pull, push

REPO = "me/maps"
Fault = str | int


def hashes(folder: Path) -> dict[str, str]:
    return {
        item.relative_to(folder).as_posix(): hashlib.sha256(item.read_bytes()).hexdigest()
        for item in sorted(folder.rglob("*"))
        if item.is_file()
    }


def on_main(server: Server) -> dict[str, str]:
    if REPO not in server.repos:
        return {}
    tree = server.repos[REPO].main()
    return {p: hashlib.sha256(d).hexdigest() for p, (d, _) in sorted(tree.items()) if p != ".gitattributes"}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's pauses between its tries are skipped; its requests are not touched."""
    monkeypatch.setattr("time.sleep", lambda _: None)


@pytest.fixture
def updated(build: Callable[..., Path], tmp_path: Path) -> Path:
    """The same maps with another card and another NOTICE: an update of one large and two small files."""
    from ridgefit.hub.licence import Licence

    return build(
        tmp_path / "updated", licence=Licence("llama3.2", notice="notice\n", sentence="Built with Llama.")
    )


def requests_of(server: Server, folder: Path, hub: Hub) -> int:
    server.log.clear()
    push(folder, Target(REPO, tag="v2"), hub)
    return len(server.log)


def one_sentence(error: RidgefitError) -> None:
    text = str(error)
    assert text.endswith(".")
    assert "\n" not in text
    assert "Traceback" not in text
    assert len(text) < 500, text


@pytest.mark.parametrize("first", [True, False], ids=["new", "update"])
@pytest.mark.parametrize("fault", ["drop", "lose", 401, 403, 409, 429, 500])
def test_every_request_fails_once(
    server: Server, hub: Hub, repository: Path, updated: Path, fault: Fault, first: bool
) -> None:
    """At each request in turn: one failure, then a server that is well again."""
    folder = repository if first else updated

    def start() -> dict[str, str]:
        server.reset()
        if not first:
            push(repository, Target(REPO), hub)
        return on_main(server)

    start()
    total = requests_of(server, folder, hub)
    new = hashes(folder)
    assert total >= 10
    went_through = 0
    for number in range(total):
        old = start()
        base = len(server.log)
        server.fault = lambda n, method, path, at=base + number: fault if n == at else None
        try:
            report = push(folder, Target(REPO, tag="v2"), hub)
        except RidgefitError as error:
            one_sentence(error)
            assert on_main(server) in (old, new), f"request {number} left half a repository"
        else:
            went_through += 1
            assert on_main(server) == new
            assert server.repos[REPO].branches["main"] == report.sha
        server.fault = None
        again = push(folder, Target(REPO, tag="v2"), hub)
        assert on_main(server) == new
        assert server.repos[REPO].tags == {"v2": again.sha}
        assert len(server.repos[REPO].moves) == (1 if first else 2), "main moves once per artefact"
    if fault in ("drop", "lose", 429, 500):
        assert went_through == total, "a failure that passes is survived"


@pytest.mark.parametrize("fault", ["drop", 429, 500])
def test_a_server_that_stays_down(
    server: Server, hub: Hub, repository: Path, updated: Path, fault: Fault
) -> None:
    push(repository, Target(REPO), hub)
    total = requests_of(server, updated, hub)
    for number in range(total):
        server.reset()
        push(repository, Target(REPO), hub)
        old, base = on_main(server), len(server.log)
        server.fault = lambda n, method, path, at=base + number: fault if n >= at else None
        with pytest.raises(RidgefitError) as failed:
            push(updated, Target(REPO, tag="v2"), hub)
        one_sentence(failed.value)
        assert on_main(server) in (old, hashes(updated))
        server.fault = None
        push(updated, Target(REPO, tag="v2"), hub)
        assert on_main(server) == hashes(updated)


def _child(folder: Path, endpoint: str, token: str, cache: Path) -> None:
    push(folder, Target(REPO, tag="v2"), Hub(endpoint, token, cache))
    os._exit(0)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_push_that_is_killed(
    server: Server, hub: Hub, repository: Path, updated: Path, moment: str
) -> None:
    """SIGKILL at each request in turn, before or after the server has acted on it."""
    push(repository, Target(REPO), hub)
    total = requests_of(server, updated, hub)
    fork = multiprocessing.get_context("fork")
    killed = 0
    for number in range(total):
        server.reset()
        push(repository, Target(REPO), hub)
        old, base = on_main(server), len(server.log)
        child: dict[str, Any] = {}

        def kill(n: int, method: str, path: str, at: int = base + number, child: Any = child) -> Any:
            if n == at:
                os.kill(child["process"].pid, signal.SIGKILL)
                return "drop"
            return None

        if moment == "before":
            server.fault = kill
        else:
            server.after = kill
        with server.lock:
            child["process"] = fork.Process(
                target=_child, args=(updated, server.endpoint, hub.token, hub.cache), daemon=True
            )
            child["process"].start()
        child["process"].join(60)
        killed += child["process"].exitcode == -signal.SIGKILL
        assert on_main(server) in (old, hashes(updated)), f"request {number} left half a repository"
        server.fault = server.after = None
        push(updated, Target(REPO, tag="v2"), hub)
        assert on_main(server) == hashes(updated)
        assert server.repos[REPO].tags["v2"] == server.repos[REPO].branches["main"]
    assert killed >= total - 1


def test_a_lost_answer_about_a_pull_request_is_not_repeated(
    server: Server, hub: Hub, repository: Path, updated: Path
) -> None:
    push(repository, Target(REPO), hub)
    main = server.repos[REPO].branches["main"]
    server.fault = lambda n, method, path: "lose" if "/commit/" in path else None
    with pytest.raises(
        RidgefitError, match="did not say whether the pull request to me/maps was opened: look at"
    ):
        push(updated, Target(REPO, pull_request=True), hub)
    assert len(server.repos[REPO].pulls) == 1, "a second request would have opened a second one"
    assert server.repos[REPO].branches["main"] == main


def test_somebody_else_pushes_meanwhile(server: Server, hub: Hub, repository: Path, updated: Path) -> None:
    push(repository, Target(REPO), hub)
    repo = server.repos[REPO]

    def race(number: int, method: str, path: str) -> None:
        if "/preupload/" in path:
            server.after = None
            repo.branches["main"] = repo.add({**repo.main(), "notes.md": (b"theirs", False)})

    server.after = race
    with pytest.raises(
        RidgefitError, match=r"the repository changed meanwhile .* run the same command again"
    ):
        push(updated, Target(REPO), hub)
    assert repo.main()["notes.md"][0] == b"theirs"
    push(updated, Target(REPO), hub)
    assert repo.main()["notes.md"][0] == b"theirs"
    assert {p: s for p, s in on_main(server).items() if p != "notes.md"} == hashes(updated)


@pytest.mark.parametrize("fault", ["drop", 401, 403, 404, 429, 500])
def test_a_pull_whose_every_request_fails_once(
    server: Server, hub: Hub, repository: Path, tmp_path: Path, fault: Fault
) -> None:
    push(repository, Target(REPO), hub)
    server.log.clear()
    pull(REPO, out=tmp_path / "whole", hub=hub)
    total = len(server.log)
    assert total >= 15
    for number in range(total):
        server.log.clear()
        out, cache = tmp_path / f"out{number}", tmp_path / f"cache{number}"
        server.fault = lambda n, method, path, at=number: fault if n == at else None
        mine = Hub(server.endpoint, hub.token, cache)
        try:
            pull(REPO, out=out, hub=mine)
        except RidgefitError as error:
            one_sentence(error)
            assert not out.exists(), "nothing half-written"
            assert fault not in ("drop", 429, 500), f"request {number}: {error}"
        else:
            assert hashes(out) == hashes(repository)
        server.fault = None
        if not out.exists():
            pull(REPO, out=out, hub=mine)
        assert hashes(out) == hashes(repository)
