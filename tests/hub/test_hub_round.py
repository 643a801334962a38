"""Push, pull and inspect through the real Hub client, against a server that answers like the Hub."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hub_server import TOKEN, Server

from ridgefit.errors import BadInput, CheckFailed
from ridgefit.hub import Hub, Target, local_maps, look, pull, push
from ridgefit.maps import inspect, load_maps

Build = Callable[..., Path]
REPO = "me/maps"


def snapshot(folder: Path) -> dict[str, str]:
    return {
        item.relative_to(folder).as_posix(): hashlib.sha256(item.read_bytes()).hexdigest()
        for item in sorted(folder.rglob("*"))
        if item.is_file()
    }


def published(server: Server, commit: str | None = None) -> dict[str, str]:
    repo = server.repos[REPO]
    tree = repo.commits[commit or repo.branches["main"]]
    return {
        p: hashlib.sha256(data).hexdigest() for p, (data, _) in sorted(tree.items()) if p != ".gitattributes"
    }


def test_round_trip(server: Server, hub: Hub, repository: Path, tmp_path: Path) -> None:
    report = push(repository, Target(REPO, tag="v1"), hub)
    repo = server.repos[REPO]
    assert repo.moves == [report.sha], "main moves once"
    assert report.moved
    assert repo.tags == {"v1": report.sha}
    assert published(server) == snapshot(repository)
    assert not repo.private
    found = pull(f"{REPO}@v1", out=tmp_path / "out", hub=hub)
    assert found.sha == report.sha
    assert snapshot(tmp_path / "out") == snapshot(repository)


def test_a_second_push_uploads_nothing(server: Server, hub: Hub, repository: Path) -> None:
    first = push(repository, Target(REPO, tag="v1"), hub)
    before = len(server.uploads)
    second = push(repository, Target(REPO, tag="v1"), hub)
    assert len(server.uploads) == before
    assert (second.sha, second.moved, second.uploaded) == (first.sha, False, 0)
    assert {change.change for change in second.files} == {"same"}
    assert server.repos[REPO].moves == [first.sha]


def test_an_update_sends_what_changed_and_removes_what_is_gone(
    server: Server, hub: Hub, repository: Path, build: Build, tmp_path: Path
) -> None:
    push(repository, Target(REPO), hub)
    repo = server.repos[REPO]
    tree = {**repo.main(), "s9/proj.L9.safetensors": (b"old", True), "notes.md": (b"mine", False)}
    repo.branches["main"] = repo.add(tree)
    folder = build(tmp_path / "r", datasets=("org/others",))
    report = push(folder, Target(REPO), hub)
    changed = {change.path: change.change for change in report.files if change.change != "same"}
    assert changed == {"README.md": "changed", "s9/proj.L9.safetensors": "removed"}
    assert "notes.md" in repo.main()
    assert "s9/proj.L9.safetensors" not in repo.main()


def test_a_file_that_pull_would_refuse_is_named_before_a_push(
    server: Server, hub: Hub, repository: Path
) -> None:
    push(repository, Target(REPO), hub)
    repo = server.repos[REPO]
    repo.branches["main"] = head = repo.add({**repo.main(), "run.py": (b"", False)})
    with pytest.raises(BadInput, match=r"me/maps names the file 'run\.py', maps are safetensors and JSON"):
        push(repository, Target(REPO), hub)
    assert repo.branches["main"] == head


def test_a_card_edited_on_the_hub_can_be_kept(server: Server, hub: Hub, repository: Path) -> None:
    push(repository, Target(REPO), hub)
    repo = server.repos[REPO]
    repo.branches["main"] = repo.add({**repo.main(), "README.md": (b"---\nlicense: mit\n---\nedited", False)})
    report = push(repository, Target(REPO, keep_card=True), hub)
    assert not report.moved
    assert pull(REPO, hub=hub).sha == report.sha, "an edited card breaks no hash"


def test_a_dry_run_asks_nobody(server: Server, hub: Hub, repository: Path) -> None:
    report = push(repository, Target(REPO), hub, dry_run=True)
    assert server.log == []
    assert {c.path: c.size for c in report.files} == {
        path: (repository / path).stat().st_size for path in snapshot(repository)
    }


def test_a_branch_and_a_pull_request_leave_main_alone(
    server: Server, hub: Hub, repository: Path, tmp_path: Path
) -> None:
    push(repository, Target(REPO), hub)
    repo = server.repos[REPO]
    main = repo.branches["main"]
    repo.branches["main"] = main = repo.add({p: f for p, f in repo.main().items() if p != "provenance.json"})
    branch = push(repository, Target(REPO, branch="next"), hub)
    assert repo.branches == {"main": main, "next": branch.sha}
    opened = push(repository, Target(REPO, pull_request=True), hub)
    assert repo.branches["main"] == main
    assert opened.url == f"{server.endpoint}/{REPO}/discussions/1"
    assert not opened.moved
    found = pull(f"{REPO}@refs/pr/1", out=tmp_path / "pr", hub=hub)
    assert found.sha == opened.sha == repo.pulls["refs/pr/1"]


def test_a_private_repository(server: Server, hub: Hub, repository: Path, tmp_path: Path) -> None:
    push(repository, Target(REPO, private=True), hub)
    assert server.repos[REPO].private
    with pytest.raises(BadInput, match="does not exist or is private: check the name, or log in"):
        pull(REPO, hub=Hub(server.endpoint, "hf_" + "y" * 34, tmp_path / "c"))
    server.repos[REPO].private = False
    with pytest.raises(BadInput, match="me/maps is public already"):
        push(repository, Target(REPO, private=True), hub)


def test_only_the_split_asked_for_is_fetched(
    server: Server, hub: Hub, repository: Path, tiny_maps: Path
) -> None:
    sha = push(repository, Target(REPO), hub).sha
    server.log.clear()
    found = pull(f"{REPO}@{sha}", splits=[4], hub=hub)
    assert not any("/s3/" in line for line in server.log)
    assert found.splits == (4,)
    maps, wanted = load_maps(found.path, 4), load_maps(tiny_maps, 4)
    assert all(map(torch.equal, maps.layer(5), wanted.layer(5)))
    server.log.clear()
    assert load_maps(local_maps(f"{REPO}@{sha}", 4, hub), 4).layers == range(4, 6)
    assert server.log == [], "a commit that is in the cache is not asked for again"
    with pytest.raises(BadInput, match="holds no split 9, only 3, 4: choose one with --split"):
        pull(REPO, splits=[9], hub=hub)


def test_offline_reads_the_cache(
    server: Server, hub: Hub, repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    push(repository, Target(REPO, tag="v1"), hub)
    pull(f"{REPO}@v1", splits=[4], hub=hub)
    server.log.clear()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert pull(f"{REPO}@v1", splits=[4], hub=hub).splits == (4,)
    assert server.log == []
    with pytest.raises(BadInput, match=r"s3/.* is not on this machine and HF_HUB_OFFLINE is set"):
        pull(f"{REPO}@v1", hub=hub)
    with pytest.raises(BadInput, match="me/other is not on this machine and HF_HUB_OFFLINE is set"):
        pull("me/other", hub=hub)


@pytest.mark.parametrize("name", ["s4/proj.L5.safetensors", "s4/ridgefill.json", "config.json", "SHA256SUMS"])
def test_a_changed_file_in_the_cache_is_not_used(
    server: Server, hub: Hub, repository: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    sha = push(repository, Target(REPO), hub).sha
    folder = Path(pull(REPO, hub=hub).path)
    blob = (folder / name).resolve()
    whole = blob.read_bytes()

    def spoil() -> None:
        blob.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))

    spoil()
    with monkeypatch.context() as offline:
        offline.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        with pytest.raises(BadInput, match=name.rpartition("/")[2]):
            pull(f"{REPO}@{sha}", hub=hub)
    if name.endswith(".safetensors"):
        maps = load_maps(local_maps(f"{REPO}@{sha}", 4, hub), 4)
        maps.layer(4)
        with pytest.raises(BadInput, match=r"proj\.L5\.safetensors is not the file its manifest names"):
            maps.layer(5)
    for revision in (f"{REPO}@{sha}", REPO):
        spoil()
        assert pull(revision, hub=hub).sha == sha
        assert (folder / name).read_bytes() == whole, "what changed was fetched again"


@pytest.mark.parametrize("name", ["s4/proj.L5.safetensors", "s4/ridgefill.json", "config.json", "SHA256SUMS"])
@pytest.mark.parametrize("ask", [lambda hub: pull(REPO, hub=hub), lambda hub: local_maps(REPO, None, hub)])
def test_bytes_that_change_on_the_way(
    server: Server, hub: Hub, repository: Path, name: str, ask: Any
) -> None:
    push(repository, Target(REPO), hub)
    server.spoiled = {name: 100}
    with pytest.raises(BadInput, match=r"of me/maps@.* arrives with other bytes than the Hub names"):
        ask(hub)
    server.spoiled = {name: 1}
    ask(hub)
    assert server.spoiled == {name: -1}, "fetched again after the first time"


def test_inspect_fetches_no_weight(
    server: Server, hub: Hub, build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build(tmp_path / "r")
    push(folder, Target(REPO), hub)
    server.sent.clear()
    monkeypatch.setattr("ridgefit.hub.remote._FIRST_READ", 256)
    found = look(REPO, hub)
    for layer in (3, 4, 5):
        file = folder / f"s3/proj.L{layer}.safetensors"
        header = int.from_bytes(file.read_bytes()[:8], "little")
        assert 8 + header <= server.sent[f"s3/proj.L{layer}.safetensors"] <= max(256, 8 + header)
    local = inspect(folder)
    for split in (3, 4):
        for key in ("layers", "shape", "features", "alphas", "penalty", "rows", "scores", "bytes"):
            assert found["splits"][split][key] == local["splits"][split][key], key
    assert found["fingerprint"] == local["fingerprint"]
    assert found["repository"]["base_model"] == "org/tiny"


def test_bytes_that_changed_on_the_hub_are_seen(server: Server, hub: Hub, repository: Path) -> None:
    push(repository, Target(REPO), hub)
    repo = server.repos[REPO]
    data, lfs = repo.main()["s4/proj.L5.safetensors"]
    broken = {**repo.main(), "s4/proj.L5.safetensors": (data[:-1] + bytes([data[-1] ^ 1]), lfs)}
    repo.branches["main"] = repo.add(broken)
    for ask in (pull, look):
        server.sent.clear()
        with pytest.raises(
            BadInput, match=r"s4/proj\.L5\.safetensors of me/maps is not the file that its SHA256SUMS"
        ):
            ask(REPO, hub=hub)
        assert not any(path.endswith(".safetensors") for path in server.sent), "no body was read"


def test_a_hub_that_stores_other_bytes_is_found_out(
    server: Server, hub: Hub, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(number: int, method: str, path: str) -> None:
        if "/commit/" in path:
            repo = server.repos[REPO]
            repo.main()["config.json"] = (b"{}", False)

    server.after = spoil
    with pytest.raises(
        CheckFailed, match=r"config\.json of me/maps@[0-9a-f]{40} is not the file that was sent"
    ):
        push(repository, Target(REPO), hub)


def test_the_token_and_the_place_are_asked_first(server: Server, hub: Hub, repository: Path) -> None:
    wrong = Hub(server.endpoint, "hf_" + "y" * 34, hub.cache)
    with pytest.raises(BadInput, match="the Hub does not accept this token"):
        push(repository, Target(REPO), wrong)
    with pytest.raises(BadInput, match="this token may not do that"):
        push(repository, Target("other/maps"), hub)
    assert server.repos == {}
    assert server.uploads == []
    push(repository, Target(REPO, tag="v1"), hub)
    repo = server.repos[REPO]
    repo.branches["main"] = repo.add({**repo.main(), "s4/proj.L4.safetensors": (b"x", True)})
    server.uploads.clear()
    with pytest.raises(BadInput, match="the tag v1 of me/maps is taken by commit"):
        push(repository, Target(REPO, tag="v1"), hub)
    repo.branches["main"] = repo.add({"model.safetensors": (b"x", True), "README.md": (b"", False)})
    with pytest.raises(BadInput, match=r"me/maps holds something else, model\.safetensors for one"):
        push(repository, Target(REPO), hub)
    assert server.uploads == []
    assert TOKEN not in str(hub.api.endpoint)


def test_a_broken_folder_is_refused_before_anything_is_asked(
    server: Server, hub: Hub, build: Build, tmp_path: Path
) -> None:
    folder = build(tmp_path / "r")
    (folder / "s3/proj.L4.safetensors").unlink()
    with pytest.raises(BadInput, match=r"lacks s3/proj\.L4\.safetensors"):
        push(folder, Target(REPO), hub)
    assert server.log == []


def test_a_disk_that_is_full_is_seen_before_the_download(
    server: Server, hub: Hub, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(repository, Target(REPO), hub)
    usage = type("Usage", (), {"free": 1 << 20})
    monkeypatch.setattr("ridgefit.files.shutil.disk_usage", lambda _: usage)
    with pytest.raises(BadInput, match=r"needed on the disk of .* for the download of me/maps, "):
        pull(REPO, hub=hub)
    assert not any(path.endswith(".safetensors") for path in server.sent)
