"""From a stream of documents to a token store: copies dropped, ids kept, folds and windows frozen."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ridgefit.corpus.documents import Document
from ridgefit.corpus.encoding import CHAT_DATE, Encoded, Encoder
from ridgefit.corpus.manifest import (
    DROPPED,
    CorpusSettings,
    DocumentRecord,
    Fold,
    Manifest,
    OpeningPolicy,
    Window,
)
from ridgefit.corpus.store import TokenStore, tokens_sha256
from ridgefit.corpus.windows import (
    Cut,
    check_settings,
    chosen_windows,
    cut_document,
    first_fold,
    settled_folds,
)
from ridgefit.errors import BadInput
from ridgefit.tokens import tokenizer_sha256

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MAX_DOCUMENT_TOKENS = 262_144
_BATCH_DOCUMENTS = 64
_BATCH_CHARACTERS = 2_000_000


def build_store(
    documents: Iterable[Document],
    tokenizer: PreTrainedTokenizerBase,
    *,
    window: int,
    min_tokens: int,
    max_windows: int | None = None,
    held_out: float = 0.1,
    max_document_tokens: int = MAX_DOCUMENT_TOKENS,
) -> TokenStore:
    """Tokenise a corpus once and freeze it.

    Every choice is made by document hash, so the result depends on the set of documents alone: not on paths,
    the order of files, the machine or `PYTHONHASHSEED`. Folds and windows: see `settled_folds`,
    `cut_document` and `chosen_windows`. Of several copies of a document one is kept.

    Memory: documents are streamed and only ids are kept, under `max_windows` those of at most that many
    documents a fold.

    Args:
        documents: from `read_documents`.
        tokenizer: of the model that will read them.
        window: longest window in tokens, opening ids included.
        min_tokens: shorter documents, and shorter last windows, are dropped and counted.
        max_windows: windows kept over both folds.
        held_out: share of documents held out, between 0 and 1.
        max_document_tokens: the end of longer documents is cut off and counted.

    Raises:
        BadInput: a setting out of range, no usable document, or only one.
    """
    settings = CorpusSettings(
        window=window,
        min_tokens=min_tokens,
        max_windows=max_windows,
        held_out=held_out,
        max_document_tokens=max_document_tokens,
    )
    encoder = Encoder(tokenizer, max_document_tokens)
    check_settings(settings, len(encoder.opening))
    intake = _Intake(encoder, settings)
    for document in documents:
        intake.add(document)
    intake.encode_waiting()
    intake.require_two()

    kept = intake.kept
    folds = settled_folds(kept, intake.usable, held_out)
    chosen = chosen_windows({sha256: kept[sha256].cuts for sha256 in kept}, folds, settings)
    dropped = intake.dropped
    dropped["documents not chosen"] = intake.usable - len(chosen)
    dropped["windows not chosen"] = intake.windows - sum(len(cuts) for cuts in chosen.values())
    records, windows, tokens = _laid_out(kept, folds, chosen)
    manifest = Manifest(
        tokenizer_sha256=tokenizer_sha256(tokenizer),
        settings=settings,
        opening=OpeningPolicy(
            ids=encoder.opening, chat_date=CHAT_DATE if intake.chats else None, **intake.opened
        ),
        documents=records,
        windows=windows,
        dropped=dict(dropped),
    )
    return TokenStore(manifest, tokens)


@dataclass(slots=True)
class _Kept:
    """A usable document: long enough, and met for the first time."""

    label: tuple[str, str]  # domain, source
    encoded: Encoded
    cuts: list[Cut]


class _Intake:
    """Takes documents one by one, in any order, and ends in the same state for the same set of them."""

    def __init__(self, encoder: Encoder, settings: CorpusSettings) -> None:
        self.encoder = encoder
        self.settings = settings
        self.dropped = Counter(dict.fromkeys(DROPPED, 0))
        self.opened: Counter[str] = Counter()
        self.usable = self.windows = self.chats = 0
        self._shelves = {"fit": _Shelf(settings.max_windows), "held": _Shelf(settings.max_windows)}
        self._seen: set[bytes] = set()
        self._waiting: dict[str, Document] = {}
        self._characters = 0

    @property
    def kept(self) -> dict[str, _Kept]:
        """Document hash -> what is kept of it."""
        return self._shelves["fit"].kept | self._shelves["held"].kept

    def add(self, document: Document) -> None:
        """Count an empty document or a copy, queue any other, and tokenise when the queue is full."""
        digest = bytes.fromhex(document.sha256)
        if document.empty:
            self.dropped["empty documents"] += 1
        elif digest in self._seen:
            self.dropped["duplicate documents"] += 1
            self._relabel(document)
        else:
            self._seen.add(digest)
            self._waiting[document.sha256] = document
            self._characters += len(document.text or "")
            if len(self._waiting) >= _BATCH_DOCUMENTS or self._characters >= _BATCH_CHARACTERS:
                self.encode_waiting()

    def encode_waiting(self) -> None:
        """Tokenise the queue and keep what is long enough."""
        waiting = list(self._waiting.values())
        self._waiting, self._characters = {}, 0
        for document, encoded in zip(waiting, self.encoder.encode(waiting), strict=True):
            self._keep(document, encoded)

    def require_two(self) -> None:
        """Refuse a corpus that cannot give both folds a document.

        Raises:
            BadInput: none or one usable document, with what became of the others.
        """
        if self.usable >= 2:
            return
        reasons = [f"{self.dropped[key]} {key}" for key in DROPPED[:3] if self.dropped[key]]
        found = ", ".join(reasons) or "nothing else was read"
        if self.usable == 1:
            raise BadInput(
                f"only one document can be used ({found})",
                "give at least two: one is held out to choose the penalty",
            )
        raise BadInput(
            f"no document has {self.settings.min_tokens} tokens ({found})",
            "give longer text or lower --min-tokens",
        )

    def _keep(self, document: Document, encoded: Encoded) -> None:
        self.opened[encoded.opened] += 1
        self.chats += document.text is None
        self.dropped["capped documents"] += encoded.capped
        if len(encoded.ids) < self.settings.min_tokens:
            self.dropped["too short documents"] += 1
            return
        cuts, remainder = cut_document(len(encoded.ids), encoded.bos, self.settings)
        self.usable += 1
        self.windows += len(cuts)
        self.dropped["short remainders"] += remainder
        shelf = self._shelves[first_fold(document.sha256, self.settings.held_out)]
        shelf.put(document.sha256, _Kept((document.domain, document.source), encoded, cuts))

    def _relabel(self, copy: Document) -> None:
        """Of several copies the smallest label stays, whichever copy came first."""
        waiting = self._waiting.get(copy.sha256)
        if waiting is not None:
            self._waiting[copy.sha256] = min(waiting, copy, key=lambda one: (one.domain, one.source))
        for shelf in self._shelves.values():
            if known := shelf.kept.get(copy.sha256):
                known.label = min(known.label, (copy.domain, copy.source))


class _Shelf:
    """Kept documents of one fold: of more than `limit`, those with the smallest hashes.

    No other can be chosen, because windows are taken from documents in hash order, one each at first.
    """

    def __init__(self, limit: int | None) -> None:
        self.kept: dict[str, _Kept] = {}
        self._limit = limit
        self._largest_first: list[tuple[int, str]] = []

    def put(self, sha256: str, document: _Kept) -> None:
        self.kept[sha256] = document
        if self._limit is not None:
            heapq.heappush(self._largest_first, (-int(sha256, 16), sha256))
            if len(self._largest_first) > self._limit:
                del self.kept[heapq.heappop(self._largest_first)[1]]


def _laid_out(
    kept: Mapping[str, _Kept], folds: Mapping[str, Fold], chosen: Mapping[str, list[Cut]]
) -> tuple[tuple[DocumentRecord, ...], tuple[Window, ...], torch.Tensor]:
    """Records in hash order, windows (fit before held), and the ids one after another."""
    records: list[DocumentRecord] = []
    windows: dict[Fold, list[Window]] = {"fit": [], "held": []}
    ids: list[torch.Tensor] = []
    offset = 0
    for number, sha256 in enumerate(sorted(chosen)):
        document = kept[sha256]
        tokens = torch.from_numpy(document.encoded.ids)
        windows[folds[sha256]] += [Window(document=number, start=a, stop=b) for a, b in chosen[sha256]]
        records.append(
            DocumentRecord(
                sha256=sha256,
                tokens_sha256=tokens_sha256(tokens),
                fold=folds[sha256],
                tokens=len(tokens),
                bos=document.encoded.bos,
                domain=document.label[0],
                source=document.label[1],
                offset=offset,
            )
        )
        ids.append(tokens)
        offset += len(tokens)
    return tuple(records), (*windows["fit"], *windows["held"]), torch.cat(ids)
