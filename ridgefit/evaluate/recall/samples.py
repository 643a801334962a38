"""Samples of a recall evaluation: a prefix that is compressed, and what comes after it."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from ridgefit.corpus import read_documents
from ridgefit.corpus.encoding import Encoder
from ridgefit.errors import BadInput
from ridgefit.evaluate import needle_text
from ridgefit.evaluate.needle import Prompts
from ridgefit.evaluate.samples import tokens_sha256
from ridgefit.models.load import LoadedLatent
from ridgefit.recipe import RecallEvalSettings

_SPARE = 4


@dataclass(frozen=True)
class RecallSample:
    """One prefix and its continuation.

    Attributes:
        id: unique within its task.
        group: haystack or domain.
        prefix: ids `[tokens]` that are in the cache when rows are parted.
        rest: ids `[tokens]` that follow; the prefix was compressed before they were known.
        scored: how many at the end of `rest` are scored.
    """

    id: str
    group: str
    prefix: Tensor
    rest: Tensor
    scored: int

    @property
    def sha256(self) -> str:
        """Hash of all ids."""
        return tokens_sha256(torch.cat([self.prefix, self.rest]))


def needle_samples(loaded: LoadedLatent, settings: RecallEvalSettings) -> tuple[RecallSample, ...]:
    """Prompts whose numbers all lie in the first four fifths of the prefix; the question lies behind it.

    Raises:
        BadInput: the needles do not fit, or the tokenizer joins the question to the text before it.
    """
    prompts = Prompts(loaded.tokenizer, False)
    haystack: needle_text.Haystack = needle_text.NoiseHaystack()
    if settings.haystack != "noise":
        texts = [document.text for document in read_documents([settings.haystack]) if document.text]
        haystack = needle_text.TextHaystack(texts)
    return tuple(_needle(index, settings, prompts, haystack) for index in range(settings.trials))


def _needle(
    index: int, settings: RecallEvalSettings, prompts: Prompts, haystack: needle_text.Haystack
) -> RecallSample:
    case = needle_text.build_case(
        # Text is hashed the same way everywhere; the numbers hidden in a prompt are no secret (S311).
        random.Random(f"recall needle {settings.seed} {index}"),  # noqa: S311
        needles=settings.needles,
        haystack=haystack,
        fits=prompts.count,
        budget=settings.needle_tokens,
        filled_until=settings.needle_tokens * 4 // 5,
        render=lambda user, _prefix: user.rpartition("\n")[0],  # the budget is the prefix's alone
    )
    whole = f"{case.context}\n{case.question}{case.answer_prefix}"
    prompt, answer = prompts.ids(whole, f" {case.value}")
    before, _ = prompts.ids(case.context, "")
    if prompt[: len(before)] != before:
        raise BadInput(
            f"the tokenizer joins the question of sample {index} to the text before it",
            "use a tokenizer that splits at line breaks",
        )
    return RecallSample(
        id=f"needle {index:05d}",
        group=case.haystack,
        prefix=torch.tensor(before),
        rest=torch.tensor([*prompt[len(before) :], *answer]),
        scored=len(answer),
    )


def document_samples(loaded: LoadedLatent, settings: RecallEvalSettings) -> tuple[RecallSample, ...]:
    """The first documents that are long enough, cut into prefix and continuation.

    Raises:
        BadInput: none is.
    """
    if not settings.data:
        return ()
    length = settings.document_tokens + settings.continuation
    encoder = Encoder(loaded.tokenizer, _SPARE * length)
    found: list[RecallSample] = []
    longest = 0
    for document in read_documents(settings.data, text_field=settings.text_field):
        ids = torch.from_numpy(encoder.encode([document])[0].ids[:length].astype("int64"))
        longest = max(longest, ids.numel())
        if ids.numel() == length:
            found.append(
                RecallSample(
                    id=f"document {len(found):05d}",
                    group=document.domain or "text",
                    prefix=ids[: settings.document_tokens],
                    rest=ids[settings.document_tokens :],
                    scored=settings.continuation - 1,
                )
            )
        if len(found) == settings.documents:
            break
    if not found:
        raise BadInput(
            f"no document in {', '.join(settings.data)} has {length} tokens (the longest has {longest})",
            "use a smaller --document-tokens or longer documents",
        )
    return tuple(found)
