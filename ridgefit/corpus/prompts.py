"""Prompts cut from documents: the beginning of stretches, as plain text or inside a chat template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ridgefit.corpus.encoding import Encoder
from ridgefit.corpus.reading import read_documents
from ridgefit.errors import BadInput
from ridgefit.files import canonical_json, sha256_bytes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SPARE = 4
# A chat template adds its own tokens around the text; so many are left free for them.
_FRAME = 64


@dataclass(frozen=True)
class Prompt:
    """One prompt.

    Attributes:
        id: unique among the prompts of one call.
        document: sha256 of the document it was cut from; prompts of one document are one unit.
        domain: stratum.
        tokens: ids.
    """

    id: str
    document: str
    domain: str
    tokens: tuple[int, ...]

    @property
    def sha256(self) -> str:
        """Hash of the ids."""
        return sha256_bytes(canonical_json(list(self.tokens)))


def cut_prompts(
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[str],
    *,
    lengths: Sequence[int],
    per_document: int = 1,
    stride: int | None = None,
    instruction: str | None = None,
    text_field: str = "text",
) -> list[Prompt]:
    """The first tokens of stretches of documents.

    Args:
        tokenizer: of the model that reads them.
        sources: files, folders and Hub data sets, as `read_documents` takes them.
        lengths: tokens of a prompt; several are taken in turn.
        per_document: stretches of a document at most.
        stride: tokens from one stretch's start to the next; default: the longest length.
        instruction: ask for this after the text, in the chat template; default: plain text.
        text_field: column of plain text.

    Raises:
        BadInput: no document is long enough, an instruction without a template, or nothing to read.
    """
    step = stride or max(lengths)
    if instruction is not None and not getattr(tokenizer, "chat_template", None):
        raise BadInput("the tokenizer has no chat template for an instruction", "leave --instruction out")
    encoder = Encoder(tokenizer, _SPARE * (step * per_document + max(lengths)))
    found: list[Prompt] = []
    longest = 0
    for number, document in enumerate(read_documents(sources, text_field=text_field)):
        ids = [int(token) for token in encoder.encode([document])[0].ids]
        longest = max(longest, len(ids))
        for part in range(per_document):
            length = lengths[len(found) % len(lengths)]
            piece = ids[part * step : part * step + length]
            if len(piece) < length:
                break
            tokens = piece if instruction is None else _asked(tokenizer, piece[:-_FRAME], instruction)
            domain = document.domain or "text"
            found.append(Prompt(f"{number:05d}/{part}", document.sha256, domain, tuple(tokens)))
    if not found:
        raise BadInput(
            f"no document in {', '.join(sources)} has {min(lengths)} tokens (the longest has {longest})",
            "shorten the prompts or name longer documents",
        )
    return found


def _asked(tokenizer: PreTrainedTokenizerBase, piece: Sequence[int], instruction: str) -> list[int]:
    text = str(tokenizer.decode(list(piece), skip_special_tokens=True))
    message = {"role": "user", "content": f"{text}\n\n{instruction}"}
    rendered = str(tokenizer.apply_chat_template([message], add_generation_prompt=True, tokenize=False))
    return [int(token) for token in tokenizer(rendered, add_special_tokens=False)["input_ids"]]


def split_documents(prompts: Sequence[Prompt], shares: Sequence[float]) -> list[list[Prompt]]:
    """Prompts in parts that share no document, by the hash of the document alone.

    Args:
        prompts: prompts.
        shares: of the documents, adding to 1; each part's documents are those whose rank by hash lies in it.
    """
    ranked = sorted({prompt.document for prompt in prompts})
    parts: list[list[Prompt]] = []
    start = 0.0
    for share in shares:
        stop = start + share
        chosen = set(ranked[round(start * len(ranked)) : round(stop * len(ranked))])
        parts.append([prompt for prompt in prompts if prompt.document in chosen])
        start = stop
    return parts


def documents_of(prompts: Sequence[Prompt]) -> tuple[str, ...]:
    """Hashes of the documents, sorted."""
    return tuple(sorted({prompt.document for prompt in prompts}))
