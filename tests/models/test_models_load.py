"""Loading: what comes back, and one sentence for everything that can be wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub import errors

from ridgefit.errors import BadInput
from ridgefit.models import find_model, load_model, split_revision


@pytest.fixture
def folder(tiny_folder: Callable[..., Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_folder("qwen3"), tmp_path / "model"))


def refused(ref: object, match: str, **settings: Any) -> None:
    with pytest.raises(BadInput, match=match) as caught:
        load_model(str(ref), **{"device": "cpu", **settings})
    assert "\n" not in str(caught.value)
    assert caught.value.exit_status == 2


@pytest.mark.parametrize("name", ["llama", "gemma3-multimodal"])
def test_saved_model_comes_back(
    name: str,
    tiny_folder: Callable[..., Path],
    tiny_model: Callable[..., Any],
    random_tokens: Callable[..., Any],
) -> None:
    loaded = load_model(str(tiny_folder(name)), device="cpu")
    ids = random_tokens(12)
    with torch.no_grad():
        assert torch.equal(loaded.model(ids).logits, tiny_model(name)(ids).logits)
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert loaded.tokenizer.decode(loaded.tokenizer("the cat")["input_ids"]) == "the cat"
    assert (loaded.revision, loaded.ref) == (None, str(tiny_folder(name)))


def test_identity_names_the_model_and_not_the_machine(folder: Path) -> None:
    moved = folder.parent / "elsewhere" / "model"
    shutil.copytree(folder, moved)
    one, other = (load_model(str(path), device="cpu").identity() for path in (folder, moved))
    assert one == other
    assert one["name"] == "model"
    assert len(one["tokenizer_sha256"]) == len(one["config_sha256"]) == 64
    assert str(folder.parent) not in json.dumps(one)


def test_dtype_and_attention_are_taken(folder: Path) -> None:
    loaded = load_model(str(folder), device="cpu", dtype="bfloat16", attention="eager")
    assert (loaded.port.dtype, loaded.port.attention) == (torch.bfloat16, "eager")
    assert load_model(str(folder), device="cpu").port.dtype == torch.float32


def test_missing_things_are_named(folder: Path, tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "does not exist")
    refused(tmp_path, r"no config\.json")
    refused("bundled:nothing", "no bundled model 'nothing'")
    refused("bundled:../models", "no bundled model")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    refused(folder, "no tokenizer")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refused(folder, "no safetensors weights")


def test_bad_config_is_named(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "gpt_neox"}))
    refused(folder, r"'gpt_neox'.*registry\.py")
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "not-a-family"}))
    refused(folder, "not-a-family")
    (folder / "config.json").write_text(
        json.dumps({**config, "model_type": "own", "auto_map": {"AutoConfig": "own.Config"}})
    )
    refused(folder, "trust-remote-code")
    (folder / "config.json").write_text("{ no json")
    refused(folder, "not a model config")


def test_damaged_weights_are_named(folder: Path) -> None:
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    for damaged, match in (
        (whole[:-5], r"model\.safetensors has \d+ bytes where its header promises"),
        (whole + b"x", "promises"),
        (b"", "cut short"),
        (whole[:100], "cut short"),
        (whole[:8] + b"?" + whole[9:], "damaged safetensors header"),
        ((1 << 60).to_bytes(8, "little") + whole[8:], "cut short"),
    ):
        file.write_bytes(damaged)
        refused(folder, match)


def test_missing_tensor_is_named(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.3.self_attn.k_proj.weight"
    save_file({key: value for key, value in tensors.items() if key != name}, file, metadata={"format": "pt"})
    refused(folder, rf"lacks 1 weights of the model, {name}")


def test_missing_shard_is_named(folder: Path) -> None:
    index = {"metadata": {}, "weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder, r"lacks the weight file model-2\.safetensors")
    (folder / "model.safetensors.index.json").write_text("[]")
    refused(folder, "not a weight index")


def test_nan_weights_are_found_when_asked(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.2.mlp.up_proj.weight"][0, :3] = float("nan")
    save_file(tensors, file, metadata={"format": "pt"})
    load_model(str(folder), device="cpu")
    refused(folder, r"layers\.2\.mlp\.up_proj\.weight has 3 of \d+ entries", check_weights=True)


def test_bad_settings_are_named(folder: Path) -> None:
    refused(folder, "dtype 'int3'", dtype="int3")
    refused(folder, "device 'abacus'", device="abacus")
    if not torch.cuda.is_available():
        refused(folder, "not on this machine", device="cuda:7")
    refused(folder, "flash_attention_2", attention="flash_attention_2")


def hub_error(kind: type[Exception]) -> Exception:
    """The error without the HTTP response that its constructor wants, which differs between hub versions."""
    return kind.__new__(kind, "no")


@pytest.mark.parametrize(
    ("kind", "match"),
    [
        (errors.GatedRepoError, "gated.*accept its licence"),
        (errors.RepositoryNotFoundError, "no public model 'org/name'"),
        (errors.RevisionNotFoundError, "no revision 'v9'"),
        (errors.LocalEntryNotFoundError, "cannot be reached"),
        (errors.OfflineModeIsEnabled, "cannot be reached"),
        (errors.HFValidationError, "no public model"),
        (ConnectionResetError, "could not be fetched"),
    ],
)
def test_hub_errors_are_sentences(
    kind: type[Exception], match: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*args: Any, **kwargs: Any) -> str:
        raise hub_error(kind)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", fail)
    refused("org/name@v9", match)


def test_hub_model_is_pinned_to_its_commit(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    snapshot = tmp_path / "models--org--name" / "snapshots" / commit
    shutil.copytree(folder, snapshot)
    asked: dict[str, Any] = {}

    def download(name: str, **settings: Any) -> str:
        asked.update(settings, name=name)
        return str(snapshot)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: None)
    loaded = load_model("org/name@main", device="cpu")
    assert (asked["name"], asked["revision"]) == ("org/name", "main")
    assert not any("bin" in pattern or pattern.endswith(".py") for pattern in asked["allow_patterns"])
    assert (loaded.ref, loaded.revision) == ("org/name", commit)
    assert (loaded.port.identity()["name"], loaded.port.identity()["revision"]) == ("org/name", commit)
    assert loaded.identity()["revision"] == commit
    find_model("org/name", trust_remote_code=True)
    assert "*.py" in asked["allow_patterns"]


def test_offline_hub_name_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    refused("nobody/nothing-of-this-name", "cannot be reached")


def test_a_hub_that_does_not_answer_is_asked_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The client tries six times and half a minute by itself; the cache is good enough at once."""
    asked: list[bool] = []

    def silent(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("name or service not known")

    def download(name: str, *, local_files_only: bool, **settings: Any) -> str:
        asked.append(local_files_only)
        return str(folder)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", silent)
    assert find_model("org/name")[0] == folder
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: None)
    find_model("org/name")
    assert asked == [True, False]


def test_revision_is_split_off_once(tmp_path: Path) -> None:
    assert split_revision("org/name@v1") == ("org/name", "v1")
    assert split_revision("org/name") == ("org/name", None)
    there = tmp_path / "a@b"
    there.mkdir()
    assert split_revision(str(there)) == (str(there), None)
