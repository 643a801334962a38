"""The tokenizer's hash: the same where ids are the same, another where they may differ."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizer, PreTrainedTokenizerFast

from ridgefit.tokens import opening_ids, tokenizer_sha256

Make = Callable[..., PreTrainedTokenizerFast]


SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def bpe_tokenizer() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=280,
        special_tokens=list(SPECIAL.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["the hill and the river and the hill"] * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, **SPECIAL)


def test_the_hash_is_pinned(make_tokenizer: Make) -> None:
    """The same on every machine and in every version, or old manifests and maps stop matching."""
    assert tokenizer_sha256(make_tokenizer(chat="{{ messages }}")) == (
        "78283537cd72b58730c5c98760225f65f4a1cbf80bc540405e847f3258bd5b2a"
    )


@pytest.mark.parametrize("make", [bpe_tokenizer, None], ids=["bpe", "words"])
def test_saving_loading_and_use_leave_the_hash(
    make: Make | None, make_tokenizer: Make, tmp_path: Path
) -> None:
    tokenizer = (make or make_tokenizer)()
    before = tokenizer_sha256(tokenizer)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer_sha256(loaded) == before
    loaded.add_special_tokens({"pad_token": "</s>"})
    loaded.padding_side = "left"
    loaded.model_max_length = 7
    loaded.backend_tokenizer.enable_truncation(3)  # as a call with truncation=True leaves it
    loaded.backend_tokenizer.enable_padding()
    assert tokenizer_sha256(loaded) == before


def another_normaliser(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.backend_tokenizer.normalizer = normalizers.NFC()


def another_pre_tokenizer(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()


def no_bos(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])


def another_template(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = "{{ messages }}"


def another_eos(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.add_special_tokens({"eos_token": "<s>"})


def another_token(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.add_tokens([AddedToken("newword")])


def swapped_ids(tokenizer: PreTrainedTokenizerFast) -> None:
    """Only ids 0 and 3 change places: a hash that takes 0 for a missing value does not see it."""
    saved = json.loads(tokenizer.backend_tokenizer.to_str())
    vocab = saved["model"]["vocab"]
    vocab["<unk>"], vocab["the"] = vocab["the"], vocab["<unk>"]
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(saved))


@pytest.mark.parametrize(
    "change",
    [
        another_normaliser,
        another_pre_tokenizer,
        no_bos,
        another_template,
        another_eos,
        another_token,
        swapped_ids,
    ],
)
def test_a_change_of_ids_changes_the_hash(
    change: Callable[[PreTrainedTokenizerFast], None], make_tokenizer: Make
) -> None:
    tokenizer = make_tokenizer()
    change(tokenizer)
    assert tokenizer_sha256(tokenizer) != tokenizer_sha256(make_tokenizer())


def test_merges_of_older_files_hash_alike() -> None:
    """Before version 0.20 `tokenizers` wrote merges as "a b", and no "ignore_merges"."""
    tokenizer = bpe_tokenizer()
    before = tokenizer_sha256(tokenizer)
    saved = json.loads(tokenizer.backend_tokenizer.to_str())
    assert saved["model"]["merges"]
    saved["model"]["merges"] = [" ".join(pair) for pair in saved["model"]["merges"]]
    del saved["model"]["ignore_merges"]

    class Older:
        def to_str(self) -> str:
            return json.dumps(saved)

    class Wrapped(PreTrainedTokenizerFast):
        backend_tokenizer = Older()

    wrapped = Wrapped(tokenizer_object=tokenizer.backend_tokenizer, **tokenizer.special_tokens_map)
    assert tokenizer_sha256(wrapped) == before


class SlowTokenizer(PreTrainedTokenizer):
    """No `tokenizers` backend: one id a letter."""

    def __init__(self, letters: str = "abc", **kwargs: object) -> None:
        self.letters = {letter: number for number, letter in enumerate(letters)}
        super().__init__(**kwargs)

    @property
    def vocab_size(self) -> int:
        return len(self.letters)

    def get_vocab(self) -> dict[str, int]:
        return dict(self.letters)

    def _tokenize(self, text: str, **kwargs: object) -> list[str]:
        return list(text)

    def _convert_token_to_id(self, token: str) -> int:
        return self.letters.get(token, 0)

    def _convert_id_to_token(self, index: int) -> str:
        return {number: letter for letter, number in self.letters.items()}[index]


def test_a_tokenizer_without_backend() -> None:
    assert tokenizer_sha256(SlowTokenizer()) == tokenizer_sha256(SlowTokenizer())
    assert tokenizer_sha256(SlowTokenizer()) != tokenizer_sha256(SlowTokenizer("bac"))
    assert opening_ids(SlowTokenizer()) == ()


def test_opening_ids(make_tokenizer: Make) -> None:
    assert opening_ids(make_tokenizer()) == (1,)
    assert opening_ids(make_tokenizer(bos=False)) == ()
    both = make_tokenizer()
    both.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    assert opening_ids(both) == (1,)
