"""The frozen record of a corpus: documents, their folds, their windows, and what was dropped."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ridgefit.files import canonical_json, sha256_bytes

Fold = Literal["fit", "held"]
Sha256 = Field(pattern=r"^[0-9a-f]{64}$")

DROPPED = (
    "empty documents",
    "duplicate documents",
    "too short documents",
    "capped documents",
    "documents not chosen",
    "windows not chosen",
    "short remainders",
)
"""Keys of `Manifest.dropped`. A capped document is kept without its end; a short remainder is the end of a
document that fills no window of `min_tokens`; the others are left out whole."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CorpusSettings(_Frozen):
    """How documents were cut, in tokens."""

    window: int
    min_tokens: int
    max_windows: int | None
    held_out: float
    max_document_tokens: int


class OpeningPolicy(_Frozen):
    """The BOS policy: ids that open a sequence, and how many documents got them from whom.

    Attributes:
        ids: what the tokenizer puts in front of plain text.
        added: documents that got them from the tokenizer.
        in_text: plain texts that began with them already and got no second copy.
        by_template: chats whose template writes them (tokenised without special tokens).
        absent: documents without any, because neither tokenizer nor template writes one.
        chat_date: the day that templates were told it is; None without chats.
    """

    ids: tuple[int, ...]
    added: int = 0
    in_text: int = 0
    by_template: int = 0
    absent: int = 0
    chat_date: str | None = None


class DocumentRecord(_Frozen):
    """One document.

    Attributes:
        sha256: hash of its text or chat, before tokenising.
        tokens_sha256: hash of its ids as little-endian int32.
        fold: "fit" or "held".
        tokens: how many.
        bos: first ids that later windows repeat.
        domain: stratum.
        source: label for people; the one field that the manifest's hash leaves out.
        offset: where its ids start in the token file.
    """

    sha256: str = Sha256
    tokens_sha256: str = Sha256
    fold: Fold
    tokens: int = Field(ge=1)
    bos: int = Field(ge=0)
    domain: str
    source: str
    offset: int = Field(ge=0)


class Window(_Frozen):
    """Tokens `start` to `stop` of document number `document`; read them with `TokenStore.window`."""

    document: int = Field(ge=0)
    start: int = Field(ge=0)
    stop: int


class Manifest(_Frozen):
    """A corpus as the model will read it; equal manifests have equal hashes on every machine.

    Documents stand in the order of their hashes, so that file names, folders and the order of files change
    nothing. Windows of the fit fold come first, then those of the held-out fold, each in document order.
    """

    version: Literal[1] = 1
    tokenizer_sha256: str = Sha256
    settings: CorpusSettings
    opening: OpeningPolicy
    documents: tuple[DocumentRecord, ...]
    windows: tuple[Window, ...]
    dropped: dict[str, int]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        offset = 0
        for record in self.documents:
            if record.offset != offset or record.bos > record.tokens:
                raise ValueError("documents do not follow one another")
            offset += record.tokens
        for window in self.windows:
            if window.document >= len(self.documents):
                raise ValueError("a window names a document that is not there")
            if not window.start < window.stop <= self.documents[window.document].tokens:
                raise ValueError("a window leaves its document")
        folds = [self.fold_of(number) for number in range(len(self.windows))]
        if folds != sorted(folds):  # "fit" < "held"
            raise ValueError("windows of the two folds are mixed")
        return self

    @property
    def sha256(self) -> str:
        """Identity of the corpus: everything in it but the documents' source labels."""
        return sha256_bytes(canonical_json(self.unlabelled()))

    @property
    def window(self) -> int:
        """Longest window, in tokens."""
        return self.settings.window

    @property
    def tokens(self) -> int:
        """Ids in the token file."""
        return sum(record.tokens for record in self.documents)

    @property
    def fit_windows(self) -> range:
        """Numbers of the windows that maps are fitted on."""
        return range(sum(self.fold_of(number) == "fit" for number in range(len(self.windows))))

    @property
    def held_windows(self) -> range:
        """Numbers of the windows that choose the penalty."""
        return range(len(self.fit_windows), len(self.windows))

    def fold_of(self, window: int) -> Fold:
        """Fold of a window."""
        return self.documents[self.windows[window].document].fold

    def repeated(self, window: int) -> int:
        """Opening ids repeated in front of a window, because it starts inside its document."""
        cut = self.windows[window]
        return min(self.documents[cut.document].bos, cut.start)

    def window_tokens(self, window: int) -> int:
        """Length of a window as the model reads it, repeated opening ids included."""
        cut = self.windows[window]
        return self.repeated(window) + cut.stop - cut.start

    def unlabelled(self) -> dict[str, Any]:
        """The manifest as JSON values, without the documents' source labels."""
        return self.model_dump(mode="json", exclude={"documents": {"__all__": {"source"}}})

    def differences(self, other: Manifest) -> list[str]:
        """Names of the top-level fields in which two manifests differ, for a refusal that names them."""
        mine, theirs = self.unlabelled(), other.unlabelled()
        return [name for name in mine if mine[name] != theirs[name]]
