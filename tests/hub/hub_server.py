"""A small server that answers like the Hub: the endpoints that the real client calls, with git's object ids.

State is in memory. A commit is a dict path -> (bytes, is_lfs); main moves only in `/commit`. Every request is
counted and may be answered by a fault instead: `server.fault = lambda number, method, path: ...`.
"""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import re
import socketserver
import threading
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

TOKEN = "hf_" + "x" * 34
LFS_SUFFIXES = (".safetensors", ".png", ".bin")
REPO = r"(?P<repo>[\w.-]+/[\w.-]+)"
REV = r"(?P<rev>[^/?]+)"


def sha1(text: bytes) -> str:
    return hashlib.sha1(text, usedforsecurity=False).hexdigest()


def blob_id(data: bytes) -> str:
    return sha1(b"blob %d\0" % len(data) + data)


Tree = dict[str, tuple[bytes, bool]]


@dataclass
class Repo:
    private: bool = False
    commits: dict[str, Tree] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    pulls: dict[str, str] = field(default_factory=dict)
    moves: list[str] = field(default_factory=list)

    def resolve(self, revision: str) -> str | None:
        for table in (self.branches, self.tags, self.pulls):
            if revision in table:
                return table[revision]
        return revision if revision in self.commits else None

    def add(self, tree: Tree, parent: str = "") -> str:
        listing = json.dumps([[p, hashlib.sha256(d).hexdigest()] for p, (d, _) in sorted(tree.items())])
        commit = sha1(f"{parent} {listing}".encode())
        self.commits[commit] = tree
        return commit

    def main(self) -> Tree:
        return self.commits[self.branches["main"]]


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server_port}"
        self.reset()
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()

    def reset(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.cards: dict[str, dict[str, str]] = {"org/tiny": {"license": "apache-2.0"}}
        self.objects: dict[str, bytes] = {}
        self.log: list[str] = []
        self.uploads: list[str] = []
        self.sent: dict[str, int] = {}
        self.spoiled: dict[str, int] = {}  # path -> how many more times it arrives with a wrong last byte
        self.fault: Callable[[int, str, str], str | int | None] | None = None
        self.after: Callable[[int, str, str], None] | None = None
        self.lock = threading.RLock()
        self.writers = {TOKEN: "me"}

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that went away


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def log_message(self, *args: object) -> None:
        pass

    def handle_one(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        if self.headers.get("Transfer-Encoding") == "chunked":
            self.body = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                self.body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            self.body = self.rfile.read(length)
        parts = urllib.parse.urlsplit(self.path)
        self.query = dict(urllib.parse.parse_qsl(parts.query))
        with self.server.lock:
            self.server.log.append(f"{self.command} {parts.path}")
            number = len(self.server.log) - 1
        fault = self.server.fault(number, self.command, parts.path) if self.server.fault else None
        if fault == "drop":
            self.close_connection = True
            self.connection.close()
            return
        if isinstance(fault, int):
            self.reply(fault, {"error": f"injected {fault}"})
            return
        with self.server.lock:
            self.answer(parts.path, lost=fault == "lose")
        if self.server.after:
            self.server.after(number, self.command, parts.path)

    def do_GET(self) -> None:
        self.handle_one()

    def do_HEAD(self) -> None:
        self.handle_one()

    def do_POST(self) -> None:
        self.handle_one()

    def do_PUT(self) -> None:
        self.handle_one()

    def reply(self, status: int, body: Any = b"", **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        if getattr(self, "losing", False):  # done, but the answer never arrives
            self.close_connection = True
            self.connection.close()
            return
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def answer(self, path: str, *, lost: bool) -> None:
        self.losing = lost
        for method, pattern, name in ROUTES:
            match = re.fullmatch(pattern, path)
            if match and method in (self.command, "GET" if self.command == "HEAD" else self.command):
                found = {k: urllib.parse.unquote(v) for k, v in match.groupdict().items()}
                return getattr(self, name)(**found)
        return self.reply(404, {"error": f"no route {self.command} {path}"})

    # -- helpers ---------------------------------------------------------------------------------

    def user(self) -> str | None:
        return self.server.writers.get(self.headers.get("Authorization", "").removeprefix("Bearer "))

    def found(self, repo: str) -> Repo | None:
        known = self.server.repos.get(repo)
        if known is None or (known.private and self.user() is None):
            self.reply(404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
            return None
        return known

    def at(self, repo: str, rev: str) -> tuple[Repo, str] | None:
        known = self.found(repo)
        if known is None:
            return None
        commit = known.resolve(rev)
        if commit is None:
            self.reply(404, {"error": "Invalid rev"}, X_Error_Code="RevisionNotFound")
            return None
        return known, commit

    def may_write(self) -> bool:
        if self.user() is None:
            self.reply(401, {"error": "Invalid credentials"})
            return False
        return True

    # -- endpoints -------------------------------------------------------------------------------

    def whoami(self) -> None:
        if self.may_write():
            self.reply(200, {"type": "user", "name": self.user(), "orgs": []})

    def create(self) -> None:
        if not self.may_write():
            return None
        given = json.loads(self.body)
        name = f"{given.get('organization') or self.user()}/{given['name']}"
        if given.get("organization") not in (None, self.user()):
            return self.reply(
                403, {"error": "You don't have the rights to create a model under this namespace"}
            )
        if name in self.server.repos:
            return self.reply(409, {"error": "exists", "url": f"{self.server.endpoint}/{name}"})
        repo = Repo(private=given.get("visibility") == "private" or bool(given.get("private")))
        repo.branches["main"] = repo.add({".gitattributes": (b"*.safetensors filter=lfs\n", False)})
        self.server.repos[name] = repo
        return self.reply(200, {"url": f"{self.server.endpoint}/{name}", "name": name})

    def validate(self) -> None:
        import yaml

        content = json.loads(self.body)["content"]
        data = yaml.safe_load(content.split("---\n")[1])
        wrong = [key for key in ("license", "base_model", "library_name") if key not in data]
        if data.get("license") == "other" and "license_name" not in data:
            wrong.append("license_name")
        if wrong:
            self.reply(400, {"errors": [{"message": f"{key} is required"} for key in wrong], "warnings": []})
        else:
            self.reply(200, {"errors": [], "warnings": []})

    def info(self, repo: str, rev: str = "main") -> None:
        if repo in self.server.cards:
            card = self.server.cards[repo]
            return self.reply(
                200, {"id": repo, "sha": rev, "cardData": card, "private": False, "siblings": []}
            )
        if (place := self.at(repo, rev)) is None:
            return None
        known, commit = place
        names = [{"rfilename": path} for path in sorted(known.commits[commit])]
        return self.reply(200, {"id": repo, "sha": commit, "private": known.private, "siblings": names})

    def auth(self, repo: str) -> None:
        if self.may_write() and self.found(repo):
            if repo.split("/")[0] != self.user():
                return self.reply(403, {"error": "no write access"})
            return self.reply(200, {})
        return None

    def refs(self, repo: str) -> None:
        if (known := self.found(repo)) is None:
            return

        def listed(table: dict[str, str], kind: str) -> list[dict[str, str]]:
            return [{"name": n, "ref": f"refs/{kind}/{n}", "targetCommit": c} for n, c in table.items()]

        heads, tags = listed(known.branches, "heads"), listed(known.tags, "tags")
        self.reply(200, {"branches": heads, "tags": tags, "converts": [], "pullRequests": []})

    def tree(self, repo: str, rev: str) -> None:
        if (place := self.at(repo, rev)) is None:
            return
        known, commit = place
        entries = []
        for path, (data, lfs) in sorted(known.commits[commit].items()):
            entry: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": blob_id(data)}
            if lfs:
                sha = hashlib.sha256(data).hexdigest()
                entry["lfs"] = {"oid": sha, "size": len(data), "pointerSize": 130}
            entries.append(entry)
        self.reply(200, entries)

    def preupload(self, repo: str, rev: str) -> None:
        if not self.may_write() or (place := self.at(repo, rev)) is None:
            return
        known, commit = place
        files = []
        for item in json.loads(self.body)["files"]:
            mode = "lfs" if item["path"].endswith(LFS_SUFFIXES) else "regular"
            there = known.commits[commit].get(item["path"])
            oid = None
            if there is not None:
                oid = hashlib.sha256(there[0]).hexdigest() if there[1] else blob_id(there[0])
            files.append({"path": item["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        self.reply(200, {"files": files})

    def batch(self, repo: str) -> None:
        if not self.may_write() or self.found(repo) is None:
            return
        objects = []
        for item in json.loads(self.body)["objects"]:
            entry: dict[str, Any] = {"oid": item["oid"], "size": item["size"]}
            if item["oid"] not in self.server.objects:
                entry["actions"] = {
                    "upload": {"href": f"{self.server.endpoint}/store/{item['oid']}"},
                    "verify": {"href": f"{self.server.endpoint}/{repo}/verify"},
                }
            objects.append(entry)
        self.reply(200, {"transfer": "basic", "objects": objects})

    def store(self, oid: str) -> None:
        if hashlib.sha256(self.body).hexdigest() != oid:
            return self.reply(400, {"error": "hash"})
        self.server.objects[oid] = self.body
        self.server.uploads.append(oid)
        return self.reply(200)

    def verify(self, repo: str) -> None:
        item = json.loads(self.body)
        known = len(self.server.objects.get(item["oid"], b"")) == item["size"]
        self.reply(200 if known else 404, {})

    def commit(self, repo: str, rev: str) -> None:
        if not self.may_write() or (place := self.at(repo, rev)) is None:
            return None
        known, head = place
        tree = dict(known.commits[head])
        for line in self.body.splitlines():
            item = json.loads(line)
            value = item["value"]
            if item["key"] == "header":
                if value.get("parentCommit") not in (None, head):
                    return self.reply(
                        412, {"error": "A commit has happened since. Please refresh and try again."}
                    )
            elif item["key"] == "file":
                tree[value["path"]] = (base64.b64decode(value["content"]), False)
                self.server.uploads.append(value["path"])
            elif item["key"] == "lfsFile":
                if value["oid"] not in self.server.objects:
                    return self.reply(400, {"error": f"missing object {value['oid']}"})
                tree[value["path"]] = (self.server.objects[value["oid"]], True)
            elif item["key"] == "deletedFile" and tree.pop(value["path"], None) is None:
                return self.reply(404, {"error": "A file with this name doesn't exist"})
        commit = known.add(tree, head)
        answer: dict[str, Any] = {
            "commitUrl": f"{self.server.endpoint}/{repo}/commit/{commit}",
            "commitOid": commit,
        }
        if self.query.get("create_pr"):
            number = len(known.pulls) + 1
            known.pulls[f"refs/pr/{number}"] = commit
            answer["pullRequestUrl"] = f"{self.server.endpoint}/{repo}/discussions/{number}"
        else:
            known.branches[rev] = commit
            known.moves.append(commit)
        return self.reply(200, answer)

    def tag(self, repo: str, rev: str) -> None:
        if not self.may_write() or (place := self.at(repo, rev)) is None:
            return None
        known, commit = place
        name = json.loads(self.body)["tag"]
        if name in known.tags:
            return self.reply(409, {"error": "exists"})
        known.tags[name] = commit
        return self.reply(200, {})

    def branch(self, repo: str, rev: str) -> None:
        if not self.may_write() or (known := self.found(repo)) is None:
            return None
        if rev in known.branches:
            return self.reply(409, {"error": "exists"})
        given = json.loads(self.body or b"{}")
        known.branches[rev] = given.get("startingPoint") or known.branches["main"]
        return self.reply(200, {})

    def resolve(self, repo: str, rev: str, file: str) -> None:
        if (place := self.at(repo, rev)) is None:
            return None
        known, commit = place
        there = known.commits[commit].get(file)
        if there is None:
            return self.reply(
                404, {"error": "Entry not found"}, X_Error_Code="EntryNotFound", X_Repo_Commit=commit
            )
        data, lfs = there
        etag = hashlib.sha256(data).hexdigest() if lfs else blob_id(data)
        headers = {"ETag": f'"{etag}"', "X_Repo_Commit": commit, "Accept_Ranges": "bytes"}
        if lfs:
            headers |= {"X_Linked_Etag": f'"{etag}"', "X_Linked_Size": str(len(data))}
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        status = 200
        if span:
            start, stop = int(span[1]), min(int(span[2] or len(data) - 1) + 1, len(data))
            headers["Content_Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
            data, status = data[start:stop], 206
        if file in self.server.spoiled and self.command == "GET":
            self.server.spoiled[file] -= 1
            if self.server.spoiled[file] >= 0:
                data = data[:-1] + bytes([data[-1] ^ 1])
        if self.command == "GET":
            self.server.sent[file] = self.server.sent.get(file, 0) + len(data)
        return self.reply(status, data, **headers)


ROUTES = [
    ("GET", r"/api/whoami-v2", "whoami"),
    ("POST", r"/api/repos/create", "create"),
    ("POST", r"/api/validate-yaml", "validate"),
    ("GET", rf"/api/models/{REPO}", "info"),
    ("GET", rf"/api/models/{REPO}/revision/{REV}", "info"),
    ("GET", rf"/api/models/{REPO}/auth-check(?:/write)?", "auth"),
    ("GET", rf"/api/models/{REPO}/refs", "refs"),
    ("GET", rf"/api/models/{REPO}/tree/{REV}", "tree"),
    ("POST", rf"/api/models/{REPO}/preupload/{REV}", "preupload"),
    ("POST", rf"/{REPO}\.git/info/lfs/objects/batch", "batch"),
    ("PUT", r"/store/(?P<oid>[0-9a-f]{64})", "store"),
    ("POST", rf"/{REPO}/verify", "verify"),
    ("POST", rf"/api/models/{REPO}/commit/{REV}", "commit"),
    ("POST", rf"/api/models/{REPO}/tag/{REV}", "tag"),
    ("POST", rf"/api/models/{REPO}/branch/{REV}", "branch"),
    ("GET", rf"/{REPO}/resolve/{REV}/(?P<file>.+)", "resolve"),
]
