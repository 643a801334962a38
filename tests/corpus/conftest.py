"""Tokenizers small enough to count by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

WORDS = [
    *("the", "a", "cat", "dog", "saw", "ran", "on", "under", "hill", "river", "and", "then"),
    *("it", "was", "not", "here", "user", "assistant", ":", "."),
]
SPECIAL = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
CHAT = (
    "{{ bos_token }}"
    "{% for turn in messages %}{{ turn.role }} : {{ turn.content }} .{{ eos_token }}{% endfor %}"
)


def word_tokenizer(*, bos: bool = True, chat: str | None = None) -> PreTrainedTokenizerFast:
    """One id a word; ids 0, 1, 2 are <unk>, <s>, </s>."""
    vocab = {word: number for number, word in enumerate([*SPECIAL.values(), *WORDS])}
    backend = Tokenizer(models.WordLevel(vocab, SPECIAL["unk_token"]))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if bos:
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **SPECIAL)
    tokenizer.chat_template = chat
    return tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """Writes a BOS in front of text; no chat template."""
    return word_tokenizer()


@pytest.fixture(scope="session")
def chat_tokenizer() -> PreTrainedTokenizerFast:
    """Writes a BOS in front of text, and its template writes one too: the trap."""
    return word_tokenizer(chat=CHAT)


@pytest.fixture(scope="session")
def make_tokenizer() -> Callable[..., PreTrainedTokenizerFast]:
    """`word_tokenizer`, for tests that need another one."""
    return word_tokenizer
