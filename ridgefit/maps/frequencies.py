"""How often each token occurs in the calibration text: the table that says which tokens are rare."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from ridgefit.errors import BadInput
from ridgefit.files import writing
from ridgefit.maps.tensorfile import TensorFile

FREQUENCIES = "frequencies.safetensors"
"""Its name in a capture, and in the maps solved from it."""
_TENSOR = "logfreq"


@dataclass(frozen=True)
class Frequencies:
    """Add-one unigram frequencies of token ids.

    Attributes:
        logfreq: fp32 `[vocab]`, natural logarithm of (count + 1) / (tokens + vocab).
        tokenizer_sha256: the tokenizer whose ids they are; None where the file does not say.
    """

    logfreq: Tensor
    tokenizer_sha256: str | None = None

    @classmethod
    def counted(cls, documents: Iterable[Tensor], vocab: int, tokenizer_sha256: str) -> Frequencies:
        """Count the ids of documents.

        Args:
            documents: int64 ids of each.
            vocab: entries of the table, at least the largest id + 1.
            tokenizer_sha256: of the tokenizer that made the ids.
        """
        counts = torch.zeros(vocab, dtype=torch.int64)
        for ids in documents:
            counts += torch.bincount(ids.to(torch.int64), minlength=vocab)
        total = math.log(int(counts.sum()) + vocab)
        return cls(((counts + 1).double().log() - total).float(), tokenizer_sha256)

    def write(self, path: Path) -> None:
        """One safetensors file with the tensor `logfreq`, as published maps have it."""
        metadata = {"tokenizer_sha256": self.tokenizer_sha256} if self.tokenizer_sha256 else {}
        with writing(path) as partial:
            save_file({_TENSOR: self.logfreq}, partial, metadata=metadata)

    @classmethod
    def read(cls, path: Path) -> Frequencies:
        """Read one.

        Raises:
            BadInput: there is no such file, or it holds no such table.
        """
        if not path.is_file():
            raise BadInput(
                f"there is no frequency table {path}", "capture writes one; name it, or capture again"
            )
        file = TensorFile(path)
        if _TENSOR not in file.tensors:
            found = ", ".join(file.tensors) or "nothing"
            raise BadInput(f"{path} holds {found} and no tensor {_TENSOR!r}", "name a frequency table")
        table = file.read(_TENSOR)
        if table.ndim != 1 or not bool(torch.isfinite(table).all()):
            raise BadInput(f"{path}: log frequencies must be one finite row", "capture again")
        return cls(table.float(), file.metadata.get("tokenizer_sha256"))
