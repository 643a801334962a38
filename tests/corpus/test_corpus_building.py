"""Folds, windows, choice and counts against a recount in plain Python; the same bytes on every path."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from ridgefit.corpus import Document, Manifest, TokenStore, build_store, building, read_documents
from ridgefit.errors import BadInput

WORDS = ["the", "a", "cat", "dog", "saw", "ran", "on", "under", "hill", "river", "and", "then", "it", "was"]
WORDS += ["not", "here"]
Make = Callable[..., PreTrainedTokenizerFast]


def texts(count: int, *, seed: int = 0, longest: int = 60) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randint(1, longest))) for _ in range(count)]


def words_to_ids(text: str) -> list[int]:
    """The tokenizer of conftest.py once more: BOS, then one id a word from 3 on."""
    return [1] + [3 + WORDS.index(word) for word in text.split()]


def recount(
    all_texts: list[str], window: int, min_tokens: int, held_out: float
) -> tuple[dict[str, str], dict[str, list[list[int]]], Counter[str]]:
    """Folds, window ids by document and counts, the slow way: words from the front until none is left."""
    counts: Counter[str] = Counter()
    windows: dict[str, list[list[int]]] = {}
    for text in all_texts:
        name = sha256(text.encode()).hexdigest()
        if text.strip() == "":
            counts["empty documents"] += 1
            continue
        if name in windows:
            counts["duplicate documents"] += 1
            continue
        ids = words_to_ids(text)
        windows[name] = []
        left = ids[1:]
        while left:
            taken, left = left[: window - 1], left[window - 1 :]
            new = len(taken) + (0 if windows[name] else 1)  # the first BOS is the document's own
            if new >= min_tokens:
                windows[name].append([1, *taken])
            elif windows[name]:
                counts["short remainders"] += 1
        if len(ids) < min_tokens:
            counts["too short documents"] += 1
    usable = sorted(name for name in windows if windows[name])
    held = [name for name in usable if int(name, 16) < held_out * 2**256]
    if len(held) in (0, len(usable)):
        held = usable[: max(1, min(len(usable) - 1, round(held_out * len(usable))))]
    return {n: "held" if n in held else "fit" for n in usable}, {n: windows[n] for n in usable}, counts


def window_ids(store: TokenStore) -> dict[str, list[list[int]]]:
    found: dict[str, list[list[int]]] = {}
    for number, window in enumerate(store.manifest.windows):
        name = store.manifest.documents[window.document].sha256
        found.setdefault(name, []).append(store.window(number).tolist())
    return found


@pytest.mark.parametrize(
    ("window", "min_tokens", "held_out"), [(16, 4, 0.2), (7, 7, 0.5), (64, 1, 0.9), (2, 2, 0.1)]
)
def test_everything_is_as_recounted(
    window: int, min_tokens: int, held_out: float, tokenizer: PreTrainedTokenizerFast
) -> None:
    corpus = [*texts(60), "", " \n", *texts(9)]
    folds, windows, counts = recount(corpus, window, min_tokens, held_out)
    store = build_store(
        [Document(text) for text in corpus],
        tokenizer,
        window=window,
        min_tokens=min_tokens,
        held_out=held_out,
    )
    manifest = store.manifest
    assert {record.sha256: record.fold for record in manifest.documents} == folds
    assert [record.sha256 for record in manifest.documents] == sorted(folds)
    assert window_ids(store) == windows
    assert {key: count for key, count in manifest.dropped.items() if count} == dict(counts)
    lengths = [manifest.window_tokens(number) for number in range(len(store))]
    assert lengths == [len(store.window(number)) for number in range(len(store))]
    assert max(lengths) <= window
    assert [manifest.fold_of(number) for number in manifest.fit_windows] == ["fit"] * len(
        manifest.fit_windows
    )
    assert [manifest.fold_of(n) for n in manifest.held_windows] == ["held"] * len(manifest.held_windows)
    assert len(manifest.fit_windows) + len(manifest.held_windows) == len(store)
    by_hash = {sha256(text.encode()).hexdigest(): words_to_ids(text) for text in corpus}
    for number, record in enumerate(manifest.documents):
        ids = by_hash[record.sha256]
        assert store.document(number).tolist() == ids
        stored = b"".join(token.to_bytes(4, "little", signed=True) for token in ids)
        assert record.tokens_sha256 == sha256(stored).hexdigest()
        assert (record.tokens, record.bos) == (len(ids), 1)
    assert manifest.tokens == len(store.tokens)


def test_ids_are_those_of_a_plain_call(tokenizer: PreTrainedTokenizerFast) -> None:
    corpus = texts(20)
    store = build_store([Document(text) for text in corpus], tokenizer, window=100, min_tokens=2)
    plain = {sha256(text.encode()).hexdigest(): tokenizer(text)["input_ids"] for text in corpus}
    assert {name: ids[0] for name, ids in window_ids(store).items()} == {
        n: plain[n] for n in window_ids(store)
    }


def test_a_tokenizer_without_bos(make_tokenizer: Make) -> None:
    store = build_store(
        [Document("the cat ran on and on"), Document("it was not here")],
        make_tokenizer(bos=False),
        window=4,
        min_tokens=2,
    )
    ids = sorted(window_ids(store).values())
    assert ids == [[[3, 5, 8, 9], [13, 9]], [[15, 16, 17, 18]]]
    assert store.manifest.opening.model_dump() == {
        "ids": (), "added": 0, "in_text": 0, "by_template": 0, "absent": 2, "chat_date": None,
    }  # fmt: skip


@pytest.mark.parametrize("max_windows", [2, 5, 17, 40, 10_000])
def test_chosen_windows_are_spread_and_ranked_by_hash(
    max_windows: int, tokenizer: PreTrainedTokenizerFast
) -> None:
    corpus = texts(30, longest=80)
    settings = {"window": 8, "min_tokens": 3, "held_out": 0.25}
    every = build_store(map(Document, corpus), tokenizer, **settings)
    some = build_store(map(Document, corpus), tokenizer, max_windows=max_windows, **settings)
    total = len(every)
    assert len(some) == min(max_windows, total)
    for fold in ("fit", "held"):
        have = [number for number in range(total) if every.manifest.fold_of(number) == fold]
        got = [number for number in range(len(some)) if some.manifest.fold_of(number) == fold]
        assert got
        if max_windows < total:
            share = {"held": max(1, round(max_windows * 0.25))}
            share["fit"] = max_windows - share["held"]
            if all(
                len([n for n in range(total) if every.manifest.fold_of(n) == f]) >= share[f] for f in share
            ):
                assert len(got) == share[fold]
        # Rounds over documents in hash order, each document's windows by their own hash.
        queues: dict[str, list[tuple[str, int]]] = {}
        for number in have:
            window = every.manifest.windows[number]
            name = every.manifest.documents[window.document].sha256
            queues.setdefault(name, []).append(
                (sha256(f"{name}:{window.start}".encode()).hexdigest(), window.start)
            )
        expected: set[tuple[str, int]] = set()
        while len(expected) < len(got):
            for name in sorted(queues):
                if queues[name] and len(expected) < len(got):
                    first = min(queues[name])
                    queues[name].remove(first)
                    expected.add((name, first[1]))
        found = {
            (
                some.manifest.documents[some.manifest.windows[n].document].sha256,
                some.manifest.windows[n].start,
            )
            for n in got
        }
        assert found == expected
    dropped = some.manifest.dropped
    assert dropped["windows not chosen"] == total - len(some)
    assert dropped["documents not chosen"] == len(every.manifest.documents) - len(some.manifest.documents)
    assert dropped["short remainders"] == every.manifest.dropped["short remainders"]
    starts = [(window.document, window.start) for window in some.manifest.windows]
    assert starts[: len(some.manifest.fit_windows)] == sorted(starts[: len(some.manifest.fit_windows)])


def test_few_documents_still_give_both_folds(tokenizer: PreTrainedTokenizerFast) -> None:
    corpus = texts(12, seed=3)
    for count in range(2, 13):
        for held_out in (1e-6, 0.3, 1 - 1e-6):
            manifest = build_store(
                map(Document, corpus[:count]), tokenizer, window=64, min_tokens=1, held_out=held_out
            ).manifest
            folds = [record.fold for record in manifest.documents]
            assert set(folds) == {"fit", "held"}
            assert folds == sorted(folds, reverse=True)  # the held ones have the smallest hashes
            if held_out == 1e-6:
                assert folds.count("held") == 1


def test_memory_is_bounded_by_max_windows(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Documents that cannot be chosen any more are let go while reading."""
    kept: list[int] = []
    put = building._Shelf.put

    def watched(shelf: building._Shelf, *args: object) -> None:
        put(shelf, *args)
        kept.append(len(shelf.kept))

    monkeypatch.setattr(building._Shelf, "put", watched)
    build_store(map(Document, texts(500)), tokenizer, window=32, min_tokens=2, max_windows=6)
    assert max(kept) == 6


def test_copies_count_once_and_keep_the_smallest_label(tokenizer: PreTrainedTokenizerFast) -> None:
    copies = [
        Document("the cat ran", None, domain, source)
        for domain, source in [("b", "1"), ("a", "2"), ("a", "1")]
    ]
    others = [Document(text) for text in texts(100)]
    hashes = set()
    for order in ([*copies, *others], [*others, *copies], [copies[2], *others, *copies[:2]]):
        manifest = build_store(order, tokenizer, window=32, min_tokens=3).manifest
        record = next(r for r in manifest.documents if r.sha256 == copies[0].sha256)
        assert (record.domain, record.source) == ("a", "1")
        hashes.add(manifest.sha256)
    assert len(hashes) == 1


def test_long_documents_are_capped_and_counted(tokenizer: PreTrainedTokenizerFast) -> None:
    long = " ".join(["the", "cat"] * 500)
    wide = "the " + "x" * 2000  # 2 ids, and far more characters than 20 tokens can have
    store = build_store(
        [Document(long), Document(wide), Document("the dog ran")],
        tokenizer,
        window=8,
        min_tokens=3,
        max_document_tokens=20,
    )
    assert store.manifest.dropped["capped documents"] == 2
    name = sha256(long.encode()).hexdigest()
    assert sum(record.tokens for record in store.manifest.documents if record.sha256 == name) == 20
    assert window_ids(store)[name] == [[1, 3, 5, 3, 5, 3, 5, 3], [1, 5, 3, 5, 3, 5, 3, 5], [1, 3, 5, 3, 5, 3]]


def test_batches_do_not_show(tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = [Document(text) for text in texts(100)]
    one = build_store(corpus, tokenizer, window=16, min_tokens=3).manifest.sha256
    monkeypatch.setattr(building, "_BATCH_DOCUMENTS", 3)
    monkeypatch.setattr(building, "_BATCH_CHARACTERS", 150)
    assert build_store(corpus, tokenizer, window=16, min_tokens=3).manifest.sha256 == one


@pytest.mark.parametrize(
    ("corpus", "changes", "said"),
    [
        ([], {}, r"no document has 3 tokens \(nothing else was read\)"),
        (["", "  ", "\n"], {}, r"no document has 3 tokens \(3 empty documents\): give longer text or lower"),
        (
            ["cat", "dog", "cat", ""],
            {},
            r"\(1 empty documents, 1 duplicate documents, 2 too short documents\)",
        ),
        (
            ["the cat ran", "the cat ran"],
            {},
            r"only one document can be used \(1 duplicate documents\): give",
        ),
        (["the cat ran"], {"min_tokens": 33}, r"min-tokens 33 is not between 1 and the window of 32"),
        (["the cat ran"], {"window": 1, "min_tokens": 1}, r"a window of 1 tokens holds nothing behind the 1"),
        (["the cat ran"], {"held_out": 1.0}, r"held-out share 1.0 is not between 0 and 1"),
        (["the cat ran"], {"max_windows": 1}, r"max-windows 1 leaves a fold empty"),
        (["the cat ran"], {"max_document_tokens": 2}, r"documents are cut at 2 tokens and must have 3"),
    ],
)
def test_a_corpus_that_cannot_be(
    corpus: list[str], changes: dict[str, int], said: str, tokenizer: PreTrainedTokenizerFast
) -> None:
    settings = {"window": 32, "min_tokens": 3} | changes
    with pytest.raises(BadInput, match=said) as caught:
        build_store(map(Document, corpus), tokenizer, **settings)
    assert caught.value.exit_status == 2
    assert "\n" not in str(caught.value)


SCRIPT = """
import sys
from pathlib import Path
from transformers import AutoTokenizer
from ridgefit.corpus import build_store, read_documents
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
store = build_store(read_documents(sys.argv[3:]), tokenizer, window=16, min_tokens=3, max_windows=40)
store.save(Path(sys.argv[2]))
print(store.manifest.sha256)
"""


def test_paths_order_process_and_hash_seed_change_nothing(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    rows = [json.dumps({"text": text, "domain": "d"}) + "\n" for text in texts(90)]
    first, second = tmp_path / "first", tmp_path / "second" / "deeper"
    first.mkdir()
    second.mkdir(parents=True)
    (first / "a.jsonl").write_text("".join(rows[:30]))
    (first / "b.jsonl").write_text("".join(rows[30:]))
    (second / "z.jsonl").write_text("".join(rows[:30][::-1]))
    (second / "y.ndjson").write_text("".join(rows[30:60]) + "".join(rows[60:][::-1]))
    found = []
    for seed, cwd, sources in [
        ("0", tmp_path, ["first/b.jsonl", "first/a.jsonl"]),
        ("4711", second, ["."]),
    ]:
        out = cwd / f"out{seed}"
        env = os.environ | {"PYTHONHASHSEED": seed, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(tmp_path / "tokenizer"), str(out), *sources],
            env=env,
            cwd=cwd,
            capture_output=True,
            text=True,
            check=True,
        )
        found.append((done.stdout.strip(), (out / "tokens.safetensors").read_bytes()))
    here = build_store(read_documents([str(first)]), tokenizer, window=16, min_tokens=3, max_windows=40)
    assert found[0] == found[1]
    assert found[0][0] == here.manifest.sha256


def test_the_hash_is_pinned(tokenizer: PreTrainedTokenizerFast) -> None:
    """A change here makes every capture and every map name another corpus: only with a new version."""
    documents = [Document(text, domain="d", source=f"row {n}") for n, text in enumerate(texts(40))]
    manifest = build_store(documents, tokenizer, window=16, min_tokens=3, max_windows=20).manifest
    assert manifest.sha256 == "5b524a9820281a683d0c402a853b7771b037905333cf0fb92cc81b08b1a56106"
    relabelled = [Document(text, domain="d") for text in texts(40)]
    assert (
        build_store(relabelled, tokenizer, window=16, min_tokens=3, max_windows=20).manifest.sha256
        == manifest.sha256
    )


def test_a_refusal_can_name_what_differs(tokenizer: PreTrainedTokenizerFast, make_tokenizer: Make) -> None:
    corpus = [Document(text) for text in texts(10)]

    def manifest(**changes: object) -> Manifest:
        return build_store(corpus, tokenizer, **({"window": 16, "min_tokens": 3} | changes)).manifest

    assert manifest().differences(manifest()) == []
    assert "settings" in manifest().differences(manifest(window=20))
    other = build_store(corpus, make_tokenizer(chat="x"), window=16, min_tokens=3).manifest
    assert manifest().differences(other) == ["tokenizer_sha256"]
