"""Samples cut from documents: stretches whose first tokens are the prompt; the next ones may be scored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import torch

from ridgefit.corpus import read_documents
from ridgefit.corpus.encoding import Encoder
from ridgefit.errors import BadInput
from ridgefit.evaluate.samples import Sample, SampleSet
from ridgefit.models import LoadedModel

# The encoder reads so many characters per token it may keep; text of long tokens (indented code) needs more.
_SPARE = 4


def document_samples(
    loaded: LoadedModel,
    sources: Sequence[str],
    text_field: str,
    limit: int | None,
    *,
    prompt: int,
    target: int,
    stretches: int = 1,
) -> SampleSet:
    """One sample per stretch of `prompt + target` tokens; a document's stretches are parts of one unit.

    Stretch k starts at token `k * (prompt + target)` of its document. What opens the document (BOS) opens
    every later stretch too, within its length.

    Args:
        loaded: model and tokenizer.
        sources: files, folders and Hub data sets, as `corpus.read_documents` takes them.
        text_field: column of plain text.
        limit: look at the first so many documents.
        prompt: tokens of the prompt.
        target: tokens scored after it; 0 for none.
        stretches: taken from each document at most; a shorter document gives fewer.

    Raises:
        BadInput: no document is long enough, or one cannot be read.
    """
    samples: list[Sample] = []
    skipped: list[tuple[str, str]] = []
    longest = 0
    length = prompt + target
    encoder = Encoder(loaded.tokenizer, _SPARE * length * stretches)
    for number, document in enumerate(islice(read_documents(sources, text_field=text_field), limit)):
        label = f"document {number:05d}"
        encoded = encoder.encode([document])[0]
        longest = max(longest, min(encoded.ids.size, length))
        found = list(
            _stretches(torch.from_numpy(encoded.ids.astype(np.int64)), encoded.bos, length, stretches)
        )
        if not found:
            skipped.append((label, f"{encoded.ids.size} tokens, {length} needed"))
        samples += [
            Sample(
                id=label if stretches == 1 else f"{label} stretch {place}",
                group=document.domain or "text",
                prompt=tokens[:prompt],
                target=tokens[prompt:],
                facts={"source": document.source},
                part_of=label,
            )
            for place, tokens in enumerate(found, 1)
        ]
    if not samples:
        raise BadInput(
            f"none of {len(skipped)} documents in {', '.join(sources)} has {length} tokens "
            f"(the longest has {longest})",
            "shorten the prompt or name longer documents",
        )
    return SampleSet(tuple(samples), tuple(skipped))


def _stretches(ids: torch.Tensor, bos: int, length: int, most: int) -> Iterator[torch.Tensor]:
    """Stretches of `length` ids; the later ones begin with the first `bos` ids, as a document does."""
    for start in range(0, most * length, length):
        repeated = ids[: min(bos, start)]
        own = ids[start : start + length - repeated.numel()]
        if repeated.numel() + own.numel() < length:
            return
        yield torch.cat([repeated, own])
