"""Samples cut from documents: the first tokens of each are the prompt, the next ones may be scored."""

from __future__ import annotations

from collections.abc import Sequence
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
) -> SampleSet:
    """One sample per document with at least `prompt + target` tokens.

    Args:
        loaded: model and tokenizer.
        sources: files, folders and Hub data sets, as `corpus.read_documents` takes them.
        text_field: column of plain text.
        limit: look at the first so many documents.
        prompt: tokens of the prompt.
        target: tokens scored after it; 0 for none.

    Raises:
        BadInput: no document is long enough, or one cannot be read.
    """
    samples: list[Sample] = []
    skipped: list[tuple[str, str]] = []
    longest = 0
    encoder = Encoder(loaded.tokenizer, _SPARE * (prompt + target))
    for number, document in enumerate(islice(read_documents(sources, text_field=text_field), limit)):
        label = f"document {number:05d}"
        ids = encoder.encode([document])[0].ids[: prompt + target]
        longest = max(longest, ids.size)
        if ids.size < prompt + target:
            skipped.append((label, f"{ids.size} tokens, {prompt + target} needed"))
            continue
        tokens = torch.from_numpy(ids.astype(np.int64))
        samples.append(
            Sample(
                id=label,
                group=document.domain or "text",
                prompt=tokens[:prompt],
                target=tokens[prompt:],
                facts={"source": document.source},
            )
        )
    if not samples:
        raise BadInput(
            f"none of {len(skipped)} documents in {', '.join(sources)} has {prompt + target} tokens "
            f"(the longest has {longest})",
            "shorten the prompt or name longer documents",
        )
    return SampleSet(tuple(samples), tuple(skipped))
