"""Tiny models and a tokenizer made on the fly, as fixtures shared by all rooms' tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import VOCAB, build_tiny, tokens

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
torch.set_num_threads(1)  # tiny models only wait for a second thread


@pytest.fixture(scope="session", autouse=True)
def heard_signals() -> Iterator[None]:
    """A background job starts with Ctrl-C ignored, and hands that down; tests of signals need to be heard."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


_SPECIAL = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}


@pytest.fixture(scope="session")
def tiny_model() -> Callable[..., Any]:
    """`tiny_model("llama")` -> model, built once per session and argument list; do not change it."""
    built: dict[str, Any] = {}

    def get(name: str = "llama", **settings: Any) -> Any:
        key = f"{name} {sorted(settings.items())}"
        if key not in built:
            built[key] = build_tiny(name, **settings)
        return built[key]

    return get


@pytest.fixture(scope="session")
def tiny_tokenizer() -> Any:
    """A byte-level BPE tokenizer of at most VOCAB ids, with a chat template and no automatic BOS."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    raw.train_from_iterator(["the cat sat on the mat and the dog sat on the log; 12 34"] * 4, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        **_SPECIAL,
        model_max_length=512,
        chat_template=(
            "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}</s>{% endfor %}"
            "{% if add_generation_prompt %}<s>assistant:{% endif %}"
        ),
    )


@pytest.fixture(scope="session")
def tiny_folder(
    tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[..., Any], tiny_tokenizer: Any
) -> Callable[..., Path]:
    """`tiny_folder("llama")` -> folder with model and tokenizer as save_pretrained writes them; read only."""
    saved: dict[str, Path] = {}

    def get(name: str = "llama", **settings: Any) -> Path:
        key = f"{name} {sorted(settings.items())}"
        if key not in saved:
            folder = tmp_path_factory.mktemp(name)
            tiny_model(name, **settings).save_pretrained(folder)
            tiny_tokenizer.save_pretrained(folder)
            saved[key] = folder
        return saved[key]

    return get


@pytest.fixture(scope="session")
def tiny_loaded(tiny_folder: Callable[..., Path]) -> Callable[..., Any]:
    """`tiny_loaded("llama")` -> LoadedModel through the real loading path, fp32 on the CPU."""
    loaded: dict[str, Any] = {}

    def get(name: str = "llama", **settings: Any) -> Any:
        from ridgefit.models import load_model

        key = f"{name} {sorted(settings.items())}"
        if key not in loaded:
            loaded[key] = load_model(str(tiny_folder(name, **settings)), device="cpu")
        return loaded[key]

    return get


@pytest.fixture(scope="session")
def random_tokens() -> Callable[..., torch.Tensor]:
    """`random_tokens(rows, batch=1, seed=0)` -> ids `[batch, rows]`."""
    return tokens
