"""A small corpus for the tiny models, and one thread, so that eight tests at once do not fight for cores."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ridgefit.capture import CaptureResult, capture
from ridgefit.corpus import Document, TokenStore, build_store
from ridgefit.recipe import CaptureSettings

WORDS = ("the", "cat", "sat", "on", "mat", "and", "dog", "log", *"0123456789abc")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def documents(count: int, seed: int = 0) -> list[Document]:
    generator = random.Random(seed)
    lengths = [generator.randint(4, 150) for _ in range(count)]
    texts = [" ".join(generator.choices(WORDS, k=length)) for length in lengths]
    return [Document(text=text, domain="d", source=f"{n}") for n, text in enumerate(texts)]


@pytest.fixture(scope="session")
def make_store(tiny_tokenizer: Any) -> Callable[..., TokenStore]:
    """`make_store(count=24, window=96)` -> store of windows of several lengths."""

    def make(count: int = 24, *, window: int = 96, seed: int = 0) -> TokenStore:
        return build_store(documents(count, seed), tiny_tokenizer, window=window, min_tokens=3, held_out=0.2)

    return make


@pytest.fixture(scope="session")
def store(make_store: Callable[..., TokenStore]) -> TokenStore:
    return make_store()


@pytest.fixture(scope="session")
def digests() -> Callable[[CaptureResult], dict[str, str]]:
    """`digests(result)` -> split to sha256 of its sums."""
    return lambda result: {split: record.sha256 for split, record in result.record.moments.items()}


@pytest.fixture
def captured(
    tiny_loaded: Callable[..., Any], store: TokenStore, tmp_path: Path
) -> Callable[..., CaptureResult]:
    """`captured("name", split=(2,))` -> result of capturing the tiny Llama into a folder of that name."""

    def run(name: str, **settings: Any) -> CaptureResult:
        settings.setdefault("split", (2, 4))
        return capture(tiny_loaded(), store, CaptureSettings(**settings), tmp_path / name)

    return run
