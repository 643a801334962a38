"""A saved store: the same bytes each time, and refused when anything in it has changed."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerFast

from ridgefit.corpus import Document, Manifest, TokenStore, Window, build_store
from ridgefit.errors import BadInput
from ridgefit.files import canonical_json


@pytest.fixture(scope="module")
def store(tokenizer: PreTrainedTokenizerFast) -> TokenStore:
    chance = random.Random(1)
    corpus = [
        " ".join(chance.choices(["the", "cat", "ran", "hill"], k=chance.randint(5, 40))) for _ in range(20)
    ]
    documents = [Document(text, domain="prosa ü", source=f"row {n}") for n, text in enumerate(corpus)]
    return build_store(documents, tokenizer, window=16, min_tokens=4)


def test_save_and_load(store: TokenStore, tmp_path: Path) -> None:
    store.save(tmp_path / "deep" / "tokens")
    store.save(tmp_path / "again")
    loaded = TokenStore.load(tmp_path / "again")
    assert loaded.manifest == store.manifest
    assert loaded.manifest.sha256 == store.manifest.sha256
    assert loaded.tokens.dtype == torch.int32
    assert torch.equal(loaded.tokens, store.tokens)
    for number in range(len(store)):
        assert loaded.window(number).dtype == torch.int64
        assert torch.equal(loaded.window(number), store.window(number))
    loaded.save(tmp_path / "third")
    files = sorted(path.name for path in (tmp_path / "again").iterdir())
    assert files == ["manifest.json", "tokens.safetensors"]
    for name in files:
        one, two, three = (
            (tmp_path / folder / name).read_bytes() for folder in ("deep/tokens", "again", "third")
        )
        assert one == two == three


def test_the_files_are_what_they_are_said_to_be(store: TokenStore, tmp_path: Path) -> None:
    """Read without the project: canonical JSON that names its own hash, and one plain int32 tensor."""
    store.save(tmp_path)
    data = (tmp_path / "manifest.json").read_bytes()
    saved = json.loads(data)
    assert data == json.dumps(saved, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    body = json.dumps(saved["manifest"], sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    assert saved["sha256"] == sha256(body).hexdigest()
    for record in saved["manifest"]["documents"]:
        del record["source"]
    body = json.dumps(saved["manifest"], sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    assert store.manifest.sha256 == sha256(body).hexdigest()
    raw = (tmp_path / "tokens.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    assert header == {
        "tokens": {"dtype": "I32", "shape": [len(store.tokens)], "data_offsets": [0, 4 * len(store.tokens)]}
    }
    assert raw[8 + length :] == store.tokens.numpy().astype("<i4").tobytes()


def test_any_changed_byte_is_found(store: TokenStore, tmp_path: Path) -> None:
    store.save(tmp_path)
    chance = random.Random(2)
    for name in ("manifest.json", "tokens.safetensors"):
        path = tmp_path / name
        good = path.read_bytes()
        places = [*range(90), len(good) - 1, *chance.sample(range(len(good)), 200)]
        for place in places:
            bad = bytearray(good)
            bad[place] ^= 1 << chance.randrange(8)
            path.write_bytes(bad)
            with pytest.raises(BadInput) as caught:
                TokenStore.load(tmp_path)
            assert "\n" not in str(caught.value), str(caught.value)
            assert str(path) in str(caught.value)
        path.write_bytes(good)
    TokenStore.load(tmp_path)


def cut(name: str, keep: float) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: int(len(data) * keep)])

    return spoil


def tokens(value: torch.Tensor, name: str = "tokens") -> Callable[[Path], None]:
    return lambda folder: save_file({name: value}, folder / "tokens.safetensors")


def manifest(change: Callable[[dict[str, object]], object]) -> Callable[[Path], None]:
    """Change the content and give it the right hash again, as an attacker or another version would."""

    def spoil(folder: Path) -> None:
        content = json.loads((folder / "manifest.json").read_bytes())["manifest"]
        change(content)
        whole = {"manifest": content, "sha256": sha256(canonical_json(content)).hexdigest()}
        (folder / "manifest.json").write_bytes(canonical_json(whole))

    return spoil


BAD = {
    "no manifest": (lambda folder: (folder / "manifest.json").unlink(), "manifest.json does not exist"),
    "no tokens": (
        lambda folder: (folder / "tokens.safetensors").unlink(),
        "tokens.safetensors does not exist",
    ),
    "manifest cut": (cut("manifest.json", 0.5), "manifest.json is not valid JSON"),
    "manifest empty": (cut("manifest.json", 0), "manifest.json is not valid JSON"),
    "manifest of something else": (
        lambda folder: (folder / "manifest.json").write_text("[]"),
        "manifest.json is not a token manifest",
    ),
    "tokens cut": (cut("tokens.safetensors", 0.7), "tokens.safetensors is corrupt or cut short"),
    "tokens empty": (cut("tokens.safetensors", 0), "tokens.safetensors is corrupt or cut short"),
    "other tokens": (tokens(torch.zeros(3, dtype=torch.int32)), "does not hold the [0-9]+ int32 tokens"),
    "other name": (tokens(torch.zeros(3, dtype=torch.int32), "ids"), "does not hold the [0-9]+ int32 tokens"),
    "newer version": (manifest(lambda m: m.update(version=2)), "has version 2, this ridgefit reads 1"),
    "unknown field": (manifest(lambda m: m.update(extra=1)), r"is not a token manifest \(extra: "),
    "window outside": (
        manifest(lambda m: m["windows"][0].update(stop=10_000)),
        "is not a token manifest .* a window leaves its document",
    ),
    "window of no document": (
        manifest(lambda m: m["windows"][0].update(document=99)),
        "a window names a document that is not there",
    ),
    "documents overlap": (
        manifest(lambda m: m["documents"][1].update(offset=1)),
        "documents do not follow one another",
    ),
    "folds mixed": (manifest(lambda m: m["windows"].reverse()), "windows of the two folds are mixed"),
}


@pytest.mark.parametrize(("spoil", "said"), BAD.values(), ids=BAD.keys())
def test_a_spoilt_store_is_refused_in_one_sentence(
    spoil: Callable[[Path], None], said: str, store: TokenStore, tmp_path: Path
) -> None:
    store.save(tmp_path)
    spoil(tmp_path)
    with pytest.raises(BadInput, match=said) as caught:
        TokenStore.load(tmp_path)
    assert caught.value.exit_status == 2
    assert "\n" not in str(caught.value)


def test_a_manifest_is_frozen_and_closed(store: TokenStore) -> None:
    with pytest.raises(ValidationError):
        store.manifest.version = 1
    with pytest.raises(ValidationError):
        Window(document=0, start=0, stop=1, length=1)
    assert Manifest.model_validate_json(store.manifest.model_dump_json()) == store.manifest
    assert hash(store.manifest.windows[0]) == hash(store.manifest.windows[0].model_copy())


def test_a_window_past_the_end(store: TokenStore) -> None:
    with pytest.raises(IndexError):
        store.window(len(store))
