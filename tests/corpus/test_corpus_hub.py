"""Hub data sets through the real `datasets` and Hub client, against a server that answers like the Hub."""

from __future__ import annotations

import http.server
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ridgefit.corpus.documents import Columns
from ridgefit.corpus.hub import HubSource, read_hub, read_table
from ridgefit.errors import BadInput

SHA = "a" * 40
ROWS = b'{"text": "the cat ran", "domain": "tale"}\n{"text": "the dog ran"}\n'
SCRIPT = """
import json, sys
from ridgefit.corpus import read_documents
from ridgefit.errors import BadInput
found = {}
for source in sys.argv[1:]:
    try:
        found[source] = [[d.text, d.domain, d.source] for d in read_documents([source])]
    except BadInput as error:
        found[source] = str(error)
print(json.dumps(found))
"""


class Hub(http.server.BaseHTTPRequestHandler):
    """org/good has a file, org/gated shows its listing but no file, org/locked nothing, org/script code."""

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.split("?")[0]
        match = re.match(r"/(api/datasets|datasets)/org/(\w+)(/.*)?$", path)
        kind, name, rest = match.groups() if match else ("", "", "")
        rest = rest or ""
        if name == "locked":
            return self.reply(401, b"{}", x_error_code="GatedRepo", x_error_message="gated")
        if name == "gated" and kind == "datasets":
            return self.reply(403, b"{}", x_error_code="GatedRepo", x_error_message="gated")
        if name not in ("good", "gated", "script", "hollow"):
            return self.reply(401, b"{}", x_error_code="RepoNotFound")
        entry = {"type": "file", "oid": "b" * 40, "size": len(ROWS), "path": "train.jsonl"}
        if kind == "api/datasets" and rest == "/revision/nope":
            return self.reply(404, b"{}", x_error_code="RevisionNotFound")
        if kind == "api/datasets" and (not rest or rest.startswith("/revision/")):
            return self.reply(200, json.dumps({"id": f"org/{name}", "sha": SHA, "siblings": []}).encode())
        if kind == "api/datasets" and rest.startswith("/tree/"):
            return self.reply(200, json.dumps([] if name == "hollow" else [entry]).encode())
        if kind == "api/datasets" and rest.startswith("/paths-info/"):
            return self.reply(200, json.dumps([entry] if b"train.jsonl" in body else []).encode())
        if rest.endswith("/train.jsonl"):
            return self.reply(200, ROWS, etag='"' + "b" * 40 + '"', x_repo_commit=SHA)
        if name == "script" and rest.endswith("/script.py"):
            return self.reply(200, b"raise SystemExit\n", etag='"' + "c" * 40 + '"', x_repo_commit=SHA)
        return self.reply(404, b"{}", x_error_code="EntryNotFound", x_repo_commit=SHA)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self.do_GET()

    def reply(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def read(home: Path, endpoint: str, *sources: str, offline: bool = False) -> dict[str, object]:
    """Read sources in a process of its own, because the Hub client takes its settings at import."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    env |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_OFFLINE": str(int(offline))}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *sources],
        env=env,
        cwd=home,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_a_data_set_and_every_way_it_can_fail(tmp_path: Path, endpoint: str) -> None:
    label = f"hub:org/good@{SHA}:default:train"
    online = read(
        tmp_path,
        endpoint,
        *("hub:org/good", "hub:org/good::train[:1]", "hub:org/good@nope", "hub:org/good:nope"),
        *("hub:org/good::nope", "hub:org/locked", "hub:org/gated", "hub:org/script", "hub:org/missing"),
        "hub:org/hollow",
    )
    both = [["the cat ran", "tale", f"{label}#1"], ["the dog ran", "", f"{label}#2"]]
    assert online["hub:org/good"] == both
    assert online["hub:org/good::train[:1]"] == [["the cat ran", "tale", f"{label}[:1]#1"]]
    for source, said in {
        "hub:org/good@nope": "Hub data set org/good has no revision 'nope': ",
        "hub:org/good:nope": "Hub data set org/good has no subset 'nope'",
        "hub:org/good::nope": "Hub data set org/good has no split 'nope'",
        "hub:org/locked": "Hub data set org/locked is gated: ",
        "hub:org/gated": "Hub data set org/gated is gated: ",
        "hub:org/script": "Hub data set org/script is a loading script, which is never run: ",
        "hub:org/missing": "Hub data set org/missing does not exist or is private: ",
        "hub:org/hollow": "Hub data set org/hollow holds no file that `datasets` can read: ",
    }.items():
        assert isinstance(online[source], str), online[source]
        assert online[source].startswith(said), online[source]
        assert "\n" not in online[source]

    other = "hub:org/good@" + "b" * 40
    cached = read(tmp_path, endpoint, "hub:org/good", f"hub:org/good@{SHA}", other, "hub:org/x", offline=True)
    assert cached["hub:org/good"] == both
    assert cached[f"hub:org/good@{SHA}"] == both
    assert str(cached[other]).startswith(
        "data set org/good is cached at aaaaaaaaaaaa and not at bbbbbbbbbbbb: "
    )
    assert str(cached["hub:org/x"]).startswith(
        "Hub data set org/x is not in the cache and HF_HUB_OFFLINE is set"
    )


def test_no_network_is_said_at_once(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{free.getsockname()[1]}"
    found = read(tmp_path, closed, "hub:org/good")
    assert str(found["hub:org/good"]).startswith("the Hub cannot be reached for org/good: ")


@pytest.mark.parametrize(
    ("written", "parsed"),
    [
        ("hub:org/name", HubSource("org/name")),
        ("hub:org/na.me-1@v1", HubSource("org/na.me-1", "v1")),
        ("hub:org/name@refs/convert/parquet", HubSource("org/name", "refs/convert/parquet")),
        ("hub:org/name:en", HubSource("org/name", None, "en")),
        ("hub:org/name@abc:en:test", HubSource("org/name", "abc", "en", "test")),
        ("hub:org/name::train[10%:20%]", HubSource("org/name", None, None, "train[10%:20%]")),
    ],
)
def test_the_written_form(written: str, parsed: HubSource) -> None:
    assert HubSource.parse(written) == parsed


@pytest.mark.parametrize(
    "written", ["hub:", "hub:name", "hub:a/b/c", "hub:a/b@", "hub:a/b:train[:5]", "hub:../b/c"]
)
def test_another_form_is_refused(written: str) -> None:
    with pytest.raises(BadInput, match="does not name a Hub data set"):
        HubSource.parse(written)


def test_a_local_folder_does_not_pass_for_a_hub_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="a local folder hides the Hub data set org/name"):
        next(read_hub(HubSource("org/name"), Columns()))


def test_rows_of_a_parquet_folder_through_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow
    import pyarrow.parquet

    turns = [
        {"role": "user", "content": "hi", "name": None},
        {"role": "assistant", "content": "ho", "name": "x"},
    ]
    table = pyarrow.table({"messages": [turns, None], "body": ["not read", "the cat"], "n": [1, 2]})
    folder = tmp_path / "set"
    folder.mkdir()
    pyarrow.parquet.write_table(table, folder / "train.parquet")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    source = HubSource(str(folder))
    first, second = read_table(source, None, Columns(text="body"))
    assert first.messages == ({"role": "user", "content": "hi"}, turns[1])
    assert second.text == "the cat"
    with pytest.raises(BadInput, match="no field 'text'; its fields are 'messages', 'body', 'n'"):
        list(read_table(source, None, Columns(messages="chat")))
