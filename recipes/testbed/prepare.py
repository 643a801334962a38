"""From texts to training data: hold documents out, train the tokenizer, tokenise, write the bundled texts.

    python recipes/testbed/prepare.py --texts work/testbed/texts/texts.jsonl --exclude EVALUATION.jsonl \
        --out work/testbed/data --bundled ridgefit/bundled

With `--tokenizer` (a draft for a model that exists speaks its vocabulary) nothing is held out beyond
`--exclude`, and only the tokens are written.

A document leaves training when it shares a run of 50 words with a text of an `--exclude` file, or when it was
drawn for `development.jsonl`; the choice depends on the documents alone, not on their order.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ridgefit.evaluate import needle_text

Document = dict[str, str]

VOCABULARY = 2048
MAX_POSITIONS = 8192
END = "<|endoftext|>"
RUN = 50
HELD_OUT = {
    "techdoc": 6,
    "code": 8,
    "glossary": 2,
}  # whole documents, by domain; and one novel, in four parts
HELD_OUT_NOVEL = "janeaustenr:Persuasion"
HELD_OUT_TOKENS = 6_400
CALIBRATION_CHARACTERS = {"prose": 330_000, "techdoc": 320_000, "code": 320_000, "glossary": 60_000}
LICENSES = {"public domain", "PSF-2.0", "BSD-3-Clause"}
CALIBRATION_PIECE = 20_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=Path, required=True, help="texts.jsonl of fetch_texts.py")
    parser.add_argument("--exclude", type=Path, nargs="*", default=[], help="JSONL files never to train on")
    parser.add_argument("--out", type=Path, required=True, help="folder for tokens.npy and tokenizer/")
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--bundled", type=Path, help="folder for the two bundled JSONL files")
    kind.add_argument("--tokenizer", type=Path, help="folder of a tokenizer to use instead of training one")
    arguments = parser.parse_args()

    documents = read(arguments.texts)
    excluded = [row["text"] for path in arguments.exclude for row in read(path)]
    free = without_shared_runs(documents, excluded)
    if arguments.tokenizer:
        print(f"{len(documents)} documents, {len(free)} for training")
        save_tokens(AutoTokenizer.from_pretrained(arguments.tokenizer), texts(free), arguments.out)
        return
    held = choose_held_out(free)
    held_sources = {row["source"] for row in held}
    training = without_shared_runs([row for row in free if row["source"] not in held_sources], texts(held))
    print(f"{len(documents)} documents, {len(free)} after exclusion, {len(training)} for training")

    tokenizer = train_tokenizer(texts(training))
    save_tokens(tokenizer, texts(training), arguments.out)

    development = [part for row in plainly_licensed(held) for part in held_out_parts(row, tokenizer)]
    write(arguments.bundled / "development.jsonl", development)
    write(arguments.bundled / "calibration.jsonl", calibration(plainly_licensed(training)))


def save_tokens(tokenizer: PreTrainedTokenizerFast, training: Sequence[str], out: Path) -> None:
    """`tokens.npy` and `tokenizer/`, what the training scripts read."""
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(out / "tokenizer")
    tokens = tokenise(tokenizer, training)
    np.save(out / "tokens.npy", tokens)
    print(f"{len(tokens) / 1e6:.2f} M training tokens")


def read(path: Path) -> list[Document]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write(path: Path, documents: Sequence[Document]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in documents]
    path.write_text("".join(lines), encoding="utf-8")
    print(f"{path}: {len(documents)} documents, {path.stat().st_size / 1e6:.3f} MB")


def texts(documents: Iterable[Document]) -> list[str]:
    return [row["text"] for row in documents]


def plainly_licensed(documents: Sequence[Document]) -> list[Document]:
    """Documents whose licence is that of their package: only those are passed on as text."""
    return [row for row in documents if row["license"] in LICENSES]


def without_shared_runs(documents: Sequence[Document], others: Iterable[str]) -> list[Document]:
    """The documents that share no run of 50 words with any of `others`."""
    taken = {run for text in others for run in runs(text)}
    return [row for row in documents if taken.isdisjoint(runs(row["text"]))]


def runs(text: str) -> Iterable[int]:
    words = re.findall(r"\w+", text.lower())
    return (hash(tuple(words[at : at + RUN])) for at in range(len(words) - RUN + 1))


def rank(row: Document) -> str:
    return hashlib.sha256(row["source"].encode()).hexdigest()


def choose_held_out(documents: Sequence[Document]) -> list[Document]:
    """One novel, and long enough documents of the other domains by the hash of their source."""
    chosen = [row for row in documents if row["source"] == HELD_OUT_NOVEL]
    for domain, count in HELD_OUT.items():
        long = [row for row in documents if row["domain"] == domain and len(row["text"]) > 30_000]
        if domain == "code":  # half of each language
            python = sorted((row for row in long if row["source"].startswith("python")), key=rank)
            other = sorted((row for row in long if not row["source"].startswith("python")), key=rank)
            chosen += python[: count // 2] + other[: count // 2]
        else:
            chosen += sorted(long, key=rank)[:count]
    return chosen


def held_out_parts(row: Document, tokenizer: PreTrainedTokenizerFast) -> list[Document]:
    """The first 6,400 tokens of a document, or four such parts of the novel; cut at a line's end."""
    text = row["text"]
    starts = [len(text) * part // 4 for part in range(4)] if row["source"] == HELD_OUT_NOVEL else [0]
    parts = []
    for start in starts:
        begin = text.rfind("\n", 0, start) + 1
        offsets = tokenizer(text[begin : begin + 40_000], return_offsets_mapping=True)["offset_mapping"]
        end = offsets[min(HELD_OUT_TOKENS, len(offsets) - 1)][1]
        piece = text[begin : text.rfind("\n", 0, begin + end) + 1]
        parts.append(row | {"text": piece, "source": f"{row['source']}@{begin}"})
    return parts


def calibration(training: Sequence[Document]) -> list[Document]:
    """About 1 MB over all domains: first 20,000 characters of documents in hash order; a novel gives more."""
    chosen: list[Document] = []
    for domain, characters in CALIBRATION_CHARACTERS.items():
        rows = sorted((row for row in training if row["domain"] == domain), key=rank)
        pieces = [piece for row in rows if len(row["text"]) > 6_000 for piece in calibration_parts(row)]
        total = 0
        for piece in pieces:
            if total < characters:
                chosen.append(piece)
                total += len(piece["text"])
    return chosen


def calibration_parts(row: Document) -> list[Document]:
    text = row["text"]
    starts = (
        range(0, min(len(text), 5 * CALIBRATION_PIECE), CALIBRATION_PIECE)
        if row["domain"] == "prose"
        else [0]
    )
    parts = []
    for start in starts:
        begin = text.rfind("\n", 0, start) + 1
        end = text.rfind("\n", 0, begin + CALIBRATION_PIECE) + 1
        if end - begin > 2_000:
            parts.append(row | {"text": text[begin:end], "source": f"{row['source']}@{begin}"})
    return parts


def train_tokenizer(training: Sequence[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE of 2,048 tokens; a digit is always a token of its own; no token is added by itself.

    Needle sentences are mixed in, so that their fixed words are tokens and prompts stay short; keys are not.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*training, *needle_lines()], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )


def needle_lines() -> list[str]:
    """Introduction, needle and question for 3,000 keys that never appear in a prompt."""
    keys = [f"a{i}-b{i}" for i in range(3_000)]
    return [
        f"{needle_text.INTRODUCTION}\n{needle_text.needle_sentence(key, '1')}\n"
        f"{needle_text.question(key)}{needle_text.answer_prefix(key)}"
        for key in keys
    ]


def tokenise(tokenizer: PreTrainedTokenizerFast, training: Sequence[str]) -> np.ndarray:
    """All documents behind each other, an end token after each, as uint16."""
    parts: list[np.ndarray] = []
    for encoding in tokenizer.backend_tokenizer.encode_batch_fast(list(training)):
        parts += [np.asarray(encoding.ids, np.uint16), np.asarray([tokenizer.eos_token_id], np.uint16)]
    return np.concatenate(parts)


if __name__ == "__main__":
    main()
