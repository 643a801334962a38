"""Fetching maps by name: one commit, only the splits asked for, every hash compared before use."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from ridgefit.errors import BadInput
from ridgefit.files import new_folder, require_space, require_unused
from ridgefit.hub.calls import Hub
from ridgefit.hub.check import check_repository, require_hash
from ridgefit.hub.layout import CARD, CONFIG, SUMS, RepoConfig, read_config, read_sums
from ridgefit.hub.published import (
    cached_maps,
    chosen_splits,
    fetch_published,
    is_foreign,
    published_maps,
    require_one,
)
from ridgefit.hub.reference import RepoRef, is_commit, names_repository
from ridgefit.hub.remote import (
    RemoteFile,
    commit_of,
    files_of,
    judged_files,
    require_small,
    same_bytes,
    sound_file,
)
from ridgefit.hub.strict import SIZE_LIMIT
from ridgefit.maps import load_maps

Progress = Callable[[int, int | None, str], None]
# Headers, manifests and extras beside the weights of one split.
_SLACK = 64 << 20
_TENSORS = ".safetensors"


class PullReport(BaseModel):
    """What is on this machine now.

    Attributes:
        repo: `org/name`.
        sha: commit.
        path: folder that holds the files.
        splits: those that are there.
        files: number of files.
        bytes: of them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    repo: str
    sha: str
    path: str
    splits: tuple[int, ...]
    files: int
    bytes: int


class Fetched(NamedTuple):
    """Files in the Hub's cache.

    Attributes:
        folder: snapshot of a commit.
        sha: the commit.
        paths: what was asked for, within the folder.
        foreign: where each split is, in a repository that others published; None in one of ridgefit's.
    """

    folder: Path
    sha: str
    paths: list[str]
    foreign: dict[int, Path] | None = None


def pull(
    ref: RepoRef | str,
    *,
    splits: Collection[int] = (),
    out: Path | None = None,
    hub: Hub | None = None,
    progress: Progress | None = None,
) -> PullReport:
    """Fetch a repository, or some of its splits, and judge every file.

    With `HF_HUB_OFFLINE=1` only the cache is read. A commit that is in the cache is not asked for again.

    Args:
        ref: `org/name[@revision]`.
        splits: only these; empty means all.
        out: copy the files there; must not exist or be empty. Otherwise they stay in the Hub's cache.
        hub: which Hub, and as whom.
        progress: called with files done, files in all, and a name.

    Raises:
        BadInput: no such repository, revision or split, no network, too little disk, or a file that is not
            what its hash, header or manifest says.
    """
    ref = RepoRef.parse(ref) if isinstance(ref, str) else ref
    hub = hub or Hub()
    if out is not None:
        require_unused(out)
    found = _fetched(hub, ref, splits, progress, thorough=True)
    if found.foreign:
        for at in found.foreign.values():
            maps = load_maps(at)
            for layer in maps.layers:
                maps.layer(layer)
        here = tuple(sorted(found.foreign))
    else:
        config = check_repository(found.folder, splits=splits or None, links=True)
        here = tuple(sorted(splits or config.splits))
    size = sum((found.folder / path).stat().st_size for path in found.paths)
    if out is not None:
        require_space(out, size, "the repository")
        with new_folder(out) as partial:
            for path in found.paths:
                (partial / path).parent.mkdir(exist_ok=True)
                shutil.copyfile(found.folder / path, partial / path)
            if not found.foreign:
                check_repository(partial, splits=splits or None, values=False)
    return PullReport(
        repo=ref.name,
        sha=found.sha,
        path=str(out or found.folder),
        splits=here,
        files=len(found.paths),
        bytes=size,
    )


def local_maps(maps: str | Path, split: int | None = None, hub: Hub | None = None) -> Path:
    """A path that `load_maps` opens, whatever the user named: something local, or a repository on the Hub.

    Files of a repository are fetched or taken from the cache; a tensor file is hashed when its first weight
    is read.

    Args:
        maps: path, or `org/name[@revision]`.
        split: fetch only this one; None fetches all.
        hub: which Hub, and as whom.

    Raises:
        BadInput: see `pull`.
    """
    if not names_repository(str(maps)):
        return Path(maps)
    chosen = () if split is None else (split,)
    ref = RepoRef.parse(str(maps))
    found = _fetched(hub or Hub(), ref, chosen, thorough=False)
    if found.foreign:
        return next(iter(found.foreign.values()))
    check_repository(found.folder, splits=chosen or None, links=True, values=False, hashes=False)
    return found.folder


def _fetched(
    hub: Hub,
    ref: RepoRef,
    splits: Collection[int],
    progress: Progress | None = None,
    *,
    thorough: bool,
) -> Fetched:
    """What was asked for, in the Hub's cache; files there that changed come again.

    Args:
        hub: which Hub.
        ref: what was asked for.
        splits: of it.
        progress: of the download.
        thorough: also hash tensor files that are in the cache.
    """
    found = _cached(hub, ref, splits, thorough=thorough)
    if found is not None:
        return found
    sha = commit_of(hub, ref)
    files = files_of(hub, ref.name, sha)
    if is_foreign(files):
        return _foreign(hub, ref, sha, files, splits, progress, one=not thorough)
    remote = judged_files(files, str(ref))
    # By the revision's own name, so that the cache knows the name when the Hub is away.
    folder = sound_file(hub, ref.name, ref.revision or "main", remote[CONFIG]).parent
    if folder.name != sha:
        raise BadInput(f"{ref} moved while it was read", "run the same command again")
    sums = read_sums(sound_file(hub, ref.name, sha, remote[SUMS]))
    require_hash(folder / CONFIG, sums.get(CONFIG, ""))
    config = read_config(folder / CONFIG)
    wanted = _wanted(sums, config, splits, str(ref))
    _judge(wanted, sums, remote, config, ref)
    missing = [
        path
        for path in wanted
        if not (folder / path).exists()
        or ((thorough or not path.endswith(_TENSORS)) and not same_bytes(folder / path, remote[path]))
    ]
    require_space(folder, sum(remote[path].size for path in missing), f"the download of {ref}")
    if CARD in remote and remote[CARD].size <= SIZE_LIMIT:
        missing.append(CARD)
        wanted.append(CARD)
    for number, path in enumerate(missing):
        if progress:
            progress(number, len(missing), path)
        file = sound_file(hub, ref.name, sha, remote[path])
        if path in sums and remote[path].sha256 is None:
            require_hash(file, sums[path])
    return Fetched(folder, sha, [*wanted, SUMS])


def _foreign(
    hub: Hub,
    ref: RepoRef,
    sha: str,
    files: Mapping[str, RemoteFile],
    splits: Collection[int],
    progress: Progress | None,
    *,
    one: bool,
) -> Fetched:
    """Splits of a repository that others published, or the `one` split of it."""
    there = published_maps(hub, ref, sha, files)
    chosen = [there[split] for split in chosen_splits(there, splits, ref)]
    if one:
        require_one(tuple(maps.split for maps in chosen), ref)
    at: dict[int, Path] = {}
    for number, maps in enumerate(chosen):
        if progress:
            progress(number, len(chosen), f"split {maps.split}")
        at[maps.split] = fetch_published(hub, ref, sha, maps)
    # By the revision's own name, so that the cache knows the name when the Hub is away.
    folder = sound_file(hub, ref.name, ref.revision or "main", chosen[0].files[0])
    for _ in Path(chosen[0].files[0].path).parts:
        folder = folder.parent
    return Fetched(folder, sha, [file.path for maps in chosen for file in maps.files], at)


def _cached(hub: Hub, ref: RepoRef, splits: Collection[int], *, thorough: bool) -> Fetched | None:
    """The same from the cache alone: for a commit that is there whole, and for anything while offline.

    Raises:
        BadInput: offline, and it is not there, or not as it was.
    """
    import huggingface_hub

    offline = huggingface_hub.is_offline_mode()
    if not offline and not is_commit(ref.revision):
        return None
    revision = ref.revision or "main"
    found = huggingface_hub.try_to_load_from_cache(ref.name, SUMS, cache_dir=hub.cache, revision=revision)
    try:
        if not isinstance(found, str):
            return _cached_foreign(hub, ref, splits, one=not thorough)
        folder = Path(found).parent
        sums = read_sums(folder / SUMS)
        wanted = _wanted(sums, read_config(folder / CONFIG), splits, str(ref))
        for path in wanted:
            if not (folder / path).exists():
                raise _absent(f"{path} of {ref}")
            if thorough or not path.endswith(_TENSORS):
                require_hash(folder / path, sums[path])
    except BadInput:
        if offline:
            raise
        return None
    card = [CARD] if (folder / CARD).exists() else []
    return Fetched(folder, folder.name, [*wanted, *card, SUMS])


def _cached_foreign(hub: Hub, ref: RepoRef, splits: Collection[int], *, one: bool) -> Fetched:
    """Splits of a repository that others published, from the cache alone.

    Raises:
        BadInput: it is not there.
    """
    import huggingface_hub

    try:
        folder = Path(
            huggingface_hub.snapshot_download(
                ref.name, revision=ref.revision, cache_dir=hub.cache, local_files_only=True
            )
        )
    except (FileNotFoundError, ValueError) as error:
        raise _absent(ref) from error
    there = cached_maps(folder)
    if not there:
        raise _absent(ref)
    chosen = {split: there[split] for split in chosen_splits(there, splits, ref)}
    if one:
        require_one(chosen, ref)
    paths = [
        item.relative_to(folder).as_posix()
        for at in chosen.values()
        for item in ([at] if at.is_file() else sorted(at.iterdir()))
        if item.is_file()
    ]
    return Fetched(folder, folder.name, paths, chosen)


def _absent(what: object) -> BadInput:
    return BadInput(f"{what} is not on this machine and HF_HUB_OFFLINE is set", "unset it, or pull it before")


def _wanted(sums: Mapping[str, str], config: RepoConfig, splits: Collection[int], where: str) -> list[str]:
    """Paths of the splits that were asked for, and of what belongs to all of them."""
    for split in splits:
        if split not in config.splits:
            known = ", ".join(map(str, config.splits))
            raise BadInput(f"{where} holds no split {split}, only {known}", "choose one with --split")
    if not splits:
        return sorted(sums)
    folders = {config.splits[split].folder for split in splits}
    return sorted(path for path in sums if "/" not in path or path.partition("/")[0] in folders)


def _judge(
    wanted: Collection[str],
    sums: Mapping[str, str],
    remote: Mapping[str, RemoteFile],
    config: RepoConfig,
    ref: RepoRef,
) -> None:
    """Refuse before the download what sizes and the Hub's own hashes give away.

    Raises:
        BadInput: a file is missing, is another one than listed, or is absurdly large for what it holds.
    """
    for path in wanted:
        file = remote.get(path)
        if file is None:
            raise BadInput(f"{ref} lacks {path}, which its {SUMS} lists", "the publisher must push it again")
        if file.sha256 is not None and file.sha256 != sums[path]:
            raise BadInput(
                f"{path} of {ref} is not the file that its {SUMS} names", "the publisher must push it again"
            )
        if path.endswith(".json"):
            require_small(file, ref)
    for split, record in config.splits.items():
        claimed = sum(remote[path].size for path in wanted if path.startswith(f"{record.folder}/"))
        if claimed > record.nbytes + _SLACK:
            raise BadInput(
                f"split {split} of {ref} takes {claimed} bytes, its maps need {record.nbytes}",
                "do not use this repository",
            )
