"""The manifest together with its tokens, in memory and as a folder of two files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ridgefit.corpus.manifest import Manifest
from ridgefit.errors import BadInput
from ridgefit.files import canonical_json, read_json, sha256_bytes, write_bytes, writing

MANIFEST_FILE = "manifest.json"
TOKENS_FILE = "tokens.safetensors"
_KEY = "tokens"
_FIX = "make it again from the text"


@dataclass(frozen=True, slots=True)
class TokenStore:
    """A corpus ready to be read by the model.

    Attributes:
        manifest: what the tokens are.
        tokens: int32 [tokens], the documents one after another.
    """

    manifest: Manifest
    tokens: Tensor

    def __len__(self) -> int:
        return len(self.manifest.windows)

    def window(self, number: int) -> Tensor:
        """Ids of one window, int64 [at most manifest.window], opening ids repeated in front if it lacks them.

        Raises:
            IndexError: there is no such window.
        """
        cut = self.manifest.windows[number]
        ids = self.document(cut.document)
        head = ids[: self.manifest.repeated(number)]
        return torch.cat((head, ids[cut.start : cut.stop])).long()

    def document(self, number: int) -> Tensor:
        """Ids of a whole document, int32 [tokens], a view."""
        record = self.manifest.documents[number]
        return self.tokens[record.offset : record.offset + record.tokens]

    def save(self, folder: Path) -> None:
        """Write `tokens.safetensors`, then `manifest.json`; the same store gives the same bytes.

        Raises:
            BadInput: the folder cannot be written.
        """
        with writing(folder / TOKENS_FILE) as partial:
            save_file({_KEY: self.tokens}, partial)
        content = self.manifest.model_dump(mode="json")
        write_bytes(
            folder / MANIFEST_FILE,
            canonical_json({"manifest": content, "sha256": sha256_bytes(canonical_json(content))}),
        )

    @classmethod
    def load(cls, folder: Path) -> TokenStore:
        """Read a saved store and check every hash in it.

        Raises:
            BadInput: a file is missing, cut short, changed, or of another version.
        """
        manifest = _load_manifest(folder / MANIFEST_FILE)
        tokens = _load_tokens(folder / TOKENS_FILE, manifest)
        store = cls(manifest, tokens)
        for number, record in enumerate(manifest.documents):
            if tokens_sha256(store.document(number)) != record.tokens_sha256:
                raise BadInput(
                    f"{folder / TOKENS_FILE} is corrupt: the tokens of document {record.sha256[:12]} have "
                    "another hash than the manifest says",
                    _FIX,
                )
        return store


def tokens_sha256(ids: Tensor) -> str:
    """Hash of ids as little-endian int32, whatever the machine's byte order."""
    return sha256_bytes(ids.numpy().astype("<i4").tobytes())


def _load_manifest(path: Path) -> Manifest:
    saved = read_json(path)
    content = saved.get("manifest") if isinstance(saved, dict) else None
    if not isinstance(content, dict):
        raise BadInput(f"{path} is not a token manifest", _FIX)
    if content.get("version") != 1:
        raise BadInput(f"{path} has version {content.get('version')!r}, this ridgefit reads 1", _FIX)
    if saved.get("sha256") != sha256_bytes(canonical_json(content)):
        raise BadInput(f"{path} is corrupt: its content has another hash than it says", _FIX)
    try:
        return Manifest.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"{path} is not a token manifest ({place}: {first['msg']})", _FIX) from error


def _load_tokens(path: Path, manifest: Manifest) -> Tensor:
    if not path.is_file():
        raise BadInput(f"{path} does not exist", _FIX)
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (SafetensorError, OSError) as error:
        raise BadInput(f"{path} is corrupt or cut short ({error})", _FIX) from error
    tokens = tensors.get(_KEY)
    if tokens is None or tokens.dtype != torch.int32 or list(tokens.shape) != [manifest.tokens]:
        raise BadInput(f"{path} does not hold the {manifest.tokens} int32 tokens of its manifest", _FIX)
    return tokens
