"""Publishing: everything is judged before the first byte leaves, and lands in one commit or not at all."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict

from ridgefit.errors import BadInput, CheckFailed
from ridgefit.hub.calls import TRIES, Hub, asked, is_passing, named, translated
from ridgefit.hub.check import check_repository, repository_files
from ridgefit.hub.layout import CARD, NOTICE, SUMS
from ridgefit.hub.reference import RepoRef
from ridgefit.hub.remote import RemoteFile, files_of, judged_files, same_bytes
from ridgefit.maps.folder import MANIFEST
from ridgefit.maps.recall import POLICY
from ridgefit.maps.refresh import CONTROLLER

if TYPE_CHECKING:
    from huggingface_hub import GitRefInfo, ModelInfo

Say = Callable[[str], None]
_MAIN = "main"
# What a push may remove: files of an earlier artefact. All others belong to people.
_OURS = re.compile(r"(?:s[0-9]{1,5}|plots)/[^/]+|NOTICE|evaluation\.json|provenance\.json")
_WELCOME = {CARD, "LICENSE", NOTICE}


class FileChange(BaseModel):
    """One file of a push.

    Attributes:
        path: within the repository.
        size: bytes; 0 for a removed one.
        change: against the branch as it was; "unknown" in a dry run, which asks nobody.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    size: int
    change: Literal["new", "changed", "same", "removed", "unknown"]


class PushReport(BaseModel):
    """What a push did, or would do.

    Attributes:
        repo: `org/name`.
        branch: branch that moved; None for a pull request.
        sha: commit that holds the artefact; None in a dry run.
        moved: whether a commit was made.
        files: every file, in order.
        uploaded: bytes of files that were new or changed.
        tag: set on the commit.
        url: of the commit or the pull request.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    repo: str
    branch: str | None
    sha: str | None
    moved: bool
    files: tuple[FileChange, ...]
    uploaded: int
    tag: str | None = None
    url: str | None = None


@dataclass(frozen=True)
class Target:
    """Where a push goes.

    Attributes:
        name: `org/name`.
        branch: that moves; made from main if it does not exist.
        private: whether a new repository is private.
        pull_request: open one instead of moving the branch.
        tag: to set on the commit.
        keep_card: leave a README.md that is already there as it is.
    """

    name: str
    branch: str = _MAIN
    private: bool = False
    pull_request: bool = False
    tag: str | None = None
    keep_card: bool = False


def push(
    folder: Path, target: Target, hub: Hub | None = None, *, dry_run: bool = False, say: Say | None = None
) -> PushReport:
    """Publish a built repository; a second push of the same files uploads nothing.

    Order: the files are judged; token and permission are probed; the repository is made if it is new; what
    differs is uploaded and lands in one commit on the branch as it was seen; hashes on the Hub are compared;
    the tag is set.

    Args:
        folder: written by `build_repository`.
        target: where to.
        hub: which Hub, and as whom.
        dry_run: judge the files and list them; nothing is asked of the Hub.
        say: called with what is being done.

    Raises:
        BadInput: a file is wrong, the token is missing or may not write, the tag is taken, somebody else
            moved the branch, or the Hub fails; in each case the branch is as it was, or complete.
        CheckFailed: the Hub holds other bytes than were sent.
    """
    hub, tell = hub or Hub(), say or (lambda _: None)
    RepoRef.parse(target.name)
    check_repository(folder)
    local = {path: folder / path for path in repository_files(folder)}
    if dry_run:
        listed = tuple(FileChange(path=p, size=f.stat().st_size, change="unknown") for p, f in local.items())
        return PushReport(
            repo=target.name, branch=target.branch, sha=None, moved=False, files=listed, uploaded=0
        )
    tell(f"asking whether this token may write to {target.name}")
    _probe(hub, target)
    head = _branch_head(hub, target)
    before = files_of(hub, target.name, head)
    _require_place(before, target.name)
    if target.keep_card and CARD in before:
        local.pop(CARD, None)
    changes = _changes(local, before)
    sent = sum(change.size for change in changes if change.change in ("new", "changed"))
    url = None
    if all(change.change == "same" for change in changes):
        sha, moved = head, False
    else:
        tell(f"sending {sent} bytes")
        sha, url = _commit(hub, target, folder, changes, head)
        moved = not target.pull_request
    tell("comparing hashes on the Hub")
    _require_arrived(local, files_of(hub, target.name, sha), f"{target.name}@{sha}")
    if target.tag is not None:
        _set_tag(hub, target, sha)
    return PushReport(
        repo=target.name,
        branch=None if target.pull_request else target.branch,
        sha=sha,
        moved=moved,
        files=changes,
        uploaded=sent,
        tag=target.tag,
        url=url,
    )


def _probe(hub: Hub, target: Target) -> None:
    """Who the token is, and whether it may write; a repository that is not there is made, empty.

    Raises:
        BadInput: it may not, or a private repository was asked for and a public one is there.
    """
    who = asked("the account of the token", hub.api.whoami)
    info = asked(f"Hub repository {target.name}", lambda: _info(hub, target.name))
    if info is None:
        if target.pull_request:
            raise BadInput(f"{target.name} does not exist yet", "push without --pr first")
        asked(
            f"making {target.name} as {who.get('name')}",
            lambda: hub.api.create_repo(target.name, private=target.private, exist_ok=True),
        )
        info = asked(f"Hub repository {target.name}", lambda: hub.api.model_info(target.name))
    if target.private and not info.private:
        raise BadInput(f"{target.name} is public already", "leave --private out, or make it private first")
    if not target.pull_request:
        asked(f"writing to {target.name}", lambda: hub.api.auth_check(target.name, write=True))


def _info(hub: Hub, name: str) -> ModelInfo | None:
    """What the Hub says of a repository; None where it knows none."""
    try:
        return hub.api.model_info(name)
    except Exception as error:
        if "RepositoryNotFoundError" in named(error):
            return None
        raise


def _branch_head(hub: Hub, target: Target) -> str:
    """The commit that the branch is at; the branch is made if it is new.

    Raises:
        BadInput: the tag that shall be set exists on another commit than the branch's, or no branch is left.
    """
    refs = asked(f"branches and tags of {target.name}", lambda: hub.api.list_repo_refs(target.name))
    heads = _commits(refs.branches)
    tags = _commits(refs.tags)
    if target.tag is not None and target.tag in tags and tags[target.tag] != heads.get(target.branch):
        raise BadInput(
            f"the tag {target.tag} of {target.name} is taken by commit {tags[target.tag][:12]}",
            "choose another --tag",
        )
    if target.branch in heads:
        return heads[target.branch]
    if _MAIN not in heads:
        raise BadInput(f"{target.name} has no branch {_MAIN}", "make the repository anew")
    if target.branch.startswith("refs/"):
        return asked(
            f"{target.name}@{target.branch}",
            lambda: str(hub.api.model_info(target.name, revision=target.branch).sha),
        )
    asked(
        f"making the branch {target.branch} of {target.name}",
        lambda: hub.api.create_branch(
            target.name, branch=target.branch, revision=heads[_MAIN], exist_ok=True
        ),
    )
    return heads[_MAIN]


def _commits(refs: list[GitRefInfo]) -> dict[str, str]:
    return {item.name: item.target_commit for item in refs}


def _changes(local: Mapping[str, Path], remote: Mapping[str, RemoteFile]) -> tuple[FileChange, ...]:
    """What differs; files of an earlier artefact that this one lacks are removed, other files are kept."""
    found = []
    for path, file in local.items():
        there = remote.get(path)
        change: Literal["new", "changed", "same"] = (
            "new" if there is None else "same" if same_bytes(file, there) else "changed"
        )
        found.append(FileChange(path=path, size=file.stat().st_size, change=change))
    gone = (path for path in sorted(set(remote) - set(local)) if _OURS.fullmatch(path))
    found.extend(FileChange(path=path, size=0, change="removed") for path in gone)
    return tuple(found)


def _require_place(remote: Mapping[str, RemoteFile], name: str) -> None:
    """Refuse a repository that is used for something else, whose files a push would mix with its own.

    Raises:
        BadInput: naming one of its files.
    """
    if SUMS in remote and {MANIFEST, POLICY, CONTROLLER} & set(remote):
        judged_files(remote, name)
        return
    other = sorted(path for path in remote if not path.startswith(".git") and path not in _WELCOME)
    if other:
        raise BadInput(f"{name} holds something else, {other[0]} for one", "choose a new or empty repository")


def _commit(
    hub: Hub, target: Target, folder: Path, changes: tuple[FileChange, ...], head: str
) -> tuple[str, str | None]:
    """One commit on `head`, and its address.

    The Hub takes a commit whole or not at all, and only while the branch is still at `head`. Where the answer
    is lost, the branch tells whether it landed.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    adds = [
        CommitOperationAdd(path_in_repo=change.path, path_or_fileobj=folder / change.path)
        for change in changes
        if change.change in ("new", "changed")
    ]
    removes = [
        CommitOperationDelete(path_in_repo=change.path) for change in changes if change.change == "removed"
    ]
    what = f"publishing to {target.name}"
    for left in reversed(range(TRIES)):
        try:
            info = hub.api.create_commit(
                target.name,
                operations=[*adds, *removes],
                commit_message="Publish maps with ridgefit",
                revision=target.branch,
                create_pr=target.pull_request,
                parent_commit=head,
            )
        except Exception as error:
            if not is_passing(error):
                raise translated(error, what) from error
            if target.pull_request:
                raise BadInput(
                    f"the Hub did not say whether the pull request to {target.name} was opened",
                    "look at the repository's discussions before running it again",
                ) from error
            now = asked(
                f"the state of {target.name}",
                lambda: str(hub.api.model_info(target.name, revision=target.branch).sha),
            )
            if now != head:
                if all(c.change == "same" for c in _changes_at(hub, target, folder, changes, now)):
                    return now, None
                raise BadInput(
                    f"{target.branch} of {target.name} moved to {now[:12]} meanwhile", "run it again"
                ) from error
            if not left:
                raise translated(error, what) from error
            time.sleep(2.0 ** (TRIES - left - 1))
        else:
            return str(info.oid), info.pr_url or str(info.commit_url)
    raise AssertionError("unreachable")  # pragma: no cover


def _changes_at(
    hub: Hub, target: Target, folder: Path, changes: tuple[FileChange, ...], commit: str
) -> tuple[FileChange, ...]:
    local = {change.path: folder / change.path for change in changes if change.change != "removed"}
    return _changes(local, files_of(hub, target.name, commit))


def _require_arrived(local: Mapping[str, Path], remote: Mapping[str, RemoteFile], where: str) -> None:
    """Compare every file with the hash that the Hub holds.

    Raises:
        CheckFailed: one is missing or another.
    """
    for path, file in local.items():
        there = remote.get(path)
        if there is None:
            raise CheckFailed(f"{where} lacks {path} after the push", "push again")
        if not same_bytes(file, there):
            raise CheckFailed(f"{path} of {where} is not the file that was sent", "push again")


def _set_tag(hub: Hub, target: Target, sha: str) -> None:
    """Tag the commit; nothing where the tag is there already.

    Raises:
        BadInput: somebody set it on another commit meanwhile.
    """

    def tag() -> str | None:
        hub.api.create_tag(target.name, tag=str(target.tag), revision=sha, exist_ok=True)
        return _commits(hub.api.list_repo_refs(target.name).tags).get(str(target.tag))

    found = asked(f"setting the tag {target.tag} of {target.name}@{sha[:12]}", tag)
    if found != sha:
        raise BadInput(
            f"the tag {target.tag} of {target.name} is on commit {str(found)[:12]}, not on {sha[:12]}",
            "choose another --tag",
        )
