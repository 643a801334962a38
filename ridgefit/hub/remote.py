"""A repository on the Hub: its commit, its files judged before a download, and file headers by range."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ridgefit.errors import BadInput
from ridgefit.files import sha256_file
from ridgefit.hub.calls import Hub, asked
from ridgefit.hub.layout import CONFIG, SUMS, judged_path, require_distinct
from ridgefit.hub.reference import RepoRef, is_commit
from ridgefit.hub.strict import SIZE_LIMIT
from ridgefit.maps.tensorfile import TensorEntry, header_length, parse_header

_FILES_LIMIT = 50_000
_FIRST_READ = 16 << 10


@dataclass(frozen=True)
class RemoteFile:
    """One file of a commit.

    Attributes:
        path: within the repository.
        size: bytes.
        sha256: where the Hub stores the file by its sha256; None for small text.
        git_sha1: git's own hash, for the others.
    """

    path: str
    size: int
    sha256: str | None
    git_sha1: str


def commit_of(hub: Hub, ref: RepoRef) -> str:
    """The commit that a revision means now.

    Raises:
        BadInput: no such repository or revision, no access, no network.
    """
    if ref.revision is not None and is_commit(ref.revision):
        return ref.revision
    info = asked(f"Hub repository {ref}", lambda: hub.api.model_info(ref.name, revision=ref.revision))
    if not is_commit(info.sha) or info.sha is None:
        raise BadInput(f"the Hub names no commit for {ref}", "try again")
    return info.sha


def files_of(hub: Hub, name: str, commit: str) -> dict[str, RemoteFile]:
    """Every file of a commit, by path; nothing is downloaded.

    Raises:
        BadInput: no access, no network, absurdly many files, or a size that is none.
    """
    from huggingface_hub.hf_api import RepoFile

    def listed() -> dict[str, RemoteFile]:
        found: dict[str, RemoteFile] = {}
        for entry in hub.api.list_repo_tree(name, recursive=True, revision=commit):
            if isinstance(entry, RepoFile):
                if entry.path in found or len(found) >= _FILES_LIMIT:
                    raise BadInput(f"{name} lists {entry.path[:80]} twice, or too many files")
                if not 0 <= entry.size < 1 << 48:
                    raise BadInput(f"{name} lists {entry.path[:80]} with {entry.size} bytes")
                lfs = entry.lfs.sha256 if entry.lfs else None
                found[entry.path] = RemoteFile(entry.path, entry.size, lfs, entry.blob_id)
        return found

    return asked(f"the list of files of {name}@{commit[:12]}", listed)


def judged_files(files: Mapping[str, RemoteFile], name: str) -> dict[str, RemoteFile]:
    """The files of a map repository, judged by name and, where they are read whole, by size.

    Raises:
        BadInput: it is no map repository, or one of its files has a name that none holds.
    """
    for needed in (CONFIG, SUMS):
        if needed not in files:
            raise BadInput(
                f"{name} is no map repository of ridgefit: it has no {needed}",
                "check the name; maps published otherwise: `hf download` them and give the folder",
            )
        require_small(files[needed], name)
    kept = {p: f for p, f in files.items() if not p.startswith(".git")}
    for path in kept:
        judged_path(path, name)
    require_distinct(kept, name)
    return kept


def same_bytes(file: Path, there: RemoteFile) -> bool:
    """Whether a file on this machine is the one that the Hub names."""
    if file.stat().st_size != there.size:
        return False
    if there.sha256 is not None:
        return sha256_file(file) == there.sha256
    from huggingface_hub.utils.sha import git_hash

    return git_hash(file.read_bytes()) == there.git_sha1


def sound_file(hub: Hub, name: str, revision: str, file: RemoteFile) -> Path:
    """A file in the cache with the bytes that the Hub names; fetched again once if it has others.

    Raises:
        BadInput: it arrives with other bytes, which are then removed.
    """
    path = download(hub, name, revision, file.path)
    if same_bytes(path, file):
        return path
    path = download(hub, name, revision, file.path, force=True)
    if same_bytes(path, file):
        return path
    path.resolve().unlink(missing_ok=True)
    path.unlink(missing_ok=True)
    raise BadInput(
        f"{file.path} of {name}@{revision[:12]} arrives with other bytes than the Hub names",
        "check the network, then run it again",
    )


def download(hub: Hub, name: str, revision: str, path: str, *, force: bool = False) -> Path:
    """One file in the Hub client's cache.

    Raises:
        BadInput: no access, no network, no such file.
    """
    return Path(
        asked(
            f"{path} of {name}@{revision[:12]}",
            lambda: hub.api.hf_hub_download(
                name, path, revision=revision, cache_dir=hub.cache, force_download=force
            ),
        )
    )


def require_small(file: RemoteFile, where: object) -> None:
    """Refuse a text file too large to be one, before it is fetched.

    Raises:
        BadInput: naming the file and its size.
    """
    if file.size > SIZE_LIMIT:
        raise BadInput(f"{file.path} of {where} has {file.size} bytes, too many", "do not use it")


def remote_header(
    hub: Hub, name: str, commit: str, file: RemoteFile
) -> tuple[dict[str, str], dict[str, TensorEntry]]:
    """Metadata and tensors of a safetensors file on the Hub, of which only the first bytes are fetched.

    Raises:
        BadInput: no access, no network, or a header that does not describe a file of that size.
    """
    where = f"{name}/{file.path}"
    start = _bytes_of(hub, name, commit, file, 0, min(_FIRST_READ, file.size))
    length = header_length(start, file.size, where)
    if 8 + length > len(start):
        start += _bytes_of(hub, name, commit, file, len(start), 8 + length)
    return parse_header(start[8 : 8 + length], file.size, where)


def _bytes_of(hub: Hub, name: str, commit: str, file: RemoteFile, start: int, stop: int) -> bytes:
    """Bytes `start` to `stop` of a file; a server that ignores the range is not read further than that."""
    from huggingface_hub import get_session, get_token, hf_hub_url, hf_raise_for_status

    if start >= stop:
        return b""
    url = hf_hub_url(name, file.path, revision=commit, endpoint=hub.endpoint)
    headers = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
    token = hub.token or get_token()
    if token:
        headers["Authorization"] = f"Bearer {token}"

    def read() -> bytes:
        data = b""
        with get_session().stream("GET", url, headers=headers, follow_redirects=True) as answer:
            hf_raise_for_status(answer)
            wanted = stop - start if answer.status_code == 206 else stop
            for block in answer.iter_bytes():
                data += block
                if len(data) >= wanted:
                    break
        return data[:wanted] if wanted == stop - start else data[start:stop]

    data = asked(f"the first bytes of {name}/{file.path}", read)
    if len(data) != stop - start:
        raise BadInput(f"{name}/{file.path} ends before byte {stop}", "fetch it again")
    return data
