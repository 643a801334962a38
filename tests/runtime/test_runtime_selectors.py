"""Every selector against a plain brute force on random prompts, ties included; shares and caps exact."""

from __future__ import annotations

import random
import re
import string
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from ridgefit.errors import BadInput
from ridgefit.runtime.selectors import (
    SELECTORS,
    Asked,
    Attention,
    Digits,
    Explicit,
    LexicalNet,
    LongerTail,
    Probe,
    Probed,
    Prompt,
    Protected,
    QuestionBlind,
    Random,
    Sinks,
    Special,
)
from ridgefit.runtime.vocabulary import Vocabulary, text_class

CASES = 50
SPLIT = 9
SPECIAL = 3  # ids 0, 1, 2
WORDS = [
    " the",
    " Cat",
    "dog",
    "Ox",
    " 12",
    "7",
    ".",
    "!",
    "?",
    "\n",
    " ",
    ",",
    " x1",
    "é",
    " Émile",
    "  ",
    " $",
    "A-b",
]


class Words:
    """A tokenizer whose tokens are spelled as SentencePiece does; ids 0 to 2 are special."""

    def __init__(self, words: Sequence[str]) -> None:
        self.all_special_ids = [0, 1]
        self.added_tokens_decoder = {2: "<tool>"}
        self.words = ["<s>", "</s>", "<tool>", *words]

    def convert_ids_to_tokens(self, token: int) -> str:
        return self.words[token].replace(" ", "\u2581")


VOCABULARY = Vocabulary(Words(WORDS))
SIZE = SPECIAL + len(WORDS)


class Case:
    """A random prompt with few distinct scores, so that there are many ties."""

    def __init__(self, number: int) -> None:
        self.rng = rng = random.Random(number)
        self.rows = rng.randint(8, 90)
        self.prefix = rng.randint(1, self.rows - 5)
        self.ids = [rng.randrange(SIZE) for _ in range(self.rows)]
        self.frequency = [float(-rng.randint(1, 4)) for _ in range(SIZE)]
        self.share = rng.choice([0.05, 0.1, 0.25, 0.37, 1.0])
        self.lower = [float(rng.randint(0, 5)) for _ in range(self.prefix)]
        self.blind = [float(rng.randint(0, 5)) for _ in range(self.prefix)]
        self.probed = [float(rng.randint(0, 5)) for _ in range(self.prefix)]
        self.taken = sorted(rng.sample(range(self.prefix), rng.randint(0, self.prefix)))

    def prompt(self) -> Prompt:
        asked: dict[Asked | Probed, torch.Tensor] = {
            Asked((3, 7), 64): torch.tensor(self.lower, dtype=torch.float64),
            Asked((3, 7), 64, before_tail=True): torch.tensor(self.blind, dtype=torch.float64),
            Probed(5): torch.tensor(self.probed, dtype=torch.float64),
        }
        return Prompt(self.rows, self.prefix, self.ids, VOCABULARY, {None: self.frequency}, asked)

    def text(self, row: int) -> str:
        return WORDS[self.ids[row] - SPECIAL] if self.ids[row] >= SPECIAL else ""

    def best(self, scores: list[float], count: int, free: Sequence[int]) -> list[int]:
        """Highest first, ties to the lower row, by repeated search."""
        left, found = list(free), []
        while left and len(found) < count:
            top = max(scores[row] for row in left)
            first = next(row for row in left if scores[row] == top)
            found.append(first)
            left.remove(first)
        return sorted(found)

    def free(self) -> list[int]:
        return [row for row in range(self.prefix) if row not in self.taken]


each = pytest.mark.parametrize("number", range(CASES))


def chosen(selector: Any, case: Case, taken: dict[str, list[int]] | None = None) -> list[int]:
    rows = list(selector.choose(case.prompt(), SPLIT, {"": case.taken} if taken is None else taken))
    assert len(set(rows)) == len(rows)
    assert all(0 <= row < case.prefix for row in rows)
    return sorted(rows)


@each
def test_ranked_selectors(number: int) -> None:
    case = Case(number)
    k = min(round(case.share * case.rows), case.prefix)
    free = case.free()
    assert chosen(Attention(share=case.share), case) == case.best(case.lower, k, free)
    assert chosen(QuestionBlind(share=case.share), case) == case.best(case.blind, k, free)
    assert chosen(Probe(share=case.share, window=5), case) == case.best(case.probed, k, free)
    assert chosen(LongerTail(share=case.share), case) == (free[-k:] if k else [])
    count = case.rng.randint(1, case.rows)
    assert chosen(Attention(count=count), case) == case.best(case.lower, min(count, case.prefix), free)
    drawn = chosen(Random(share=case.share, seed=number), case)
    assert len(drawn) == min(k, len(free))
    assert set(drawn) <= set(free)
    assert drawn == chosen(Random(share=case.share, seed=number), case)


@each
def test_pooled_rankings(number: int) -> None:
    """A row counts as the highest of those around it, found by looking at each; pools may be wide."""
    case = Case(number)
    pool = case.rng.choice([1, 3, 5, 31, 201])

    def around(scores: list[float]) -> list[float]:
        reach = range(-(pool // 2), pool // 2 + 1)
        every = range(case.prefix)
        return [max(scores[row + step] for step in reach if row + step in every) for row in every]

    k = min(round(case.share * case.rows), case.prefix)
    free = case.free()
    settings = {"share": case.share, "pool": pool}
    assert chosen(Attention(**settings), case) == case.best(around(case.lower), k, free)
    assert chosen(QuestionBlind(**settings), case) == case.best(around(case.blind), k, free)
    assert chosen(Probe(**settings, window=5), case) == case.best(around(case.probed), k, free)


@pytest.mark.parametrize("selector", [Attention, QuestionBlind, Probe])
@pytest.mark.parametrize("pool", [0, -1, 2, 30])
def test_a_pool_without_a_middle_is_refused(selector: type[Any], pool: int) -> None:
    with pytest.raises(BadInput, match=r"no middle one.*odd"):
        selector(pool=pool)


@each
def test_selectors_of_tokens(number: int) -> None:
    case = Case(number)
    rows = range(case.prefix)
    assert chosen(Special(), case) == [row for row in rows if case.ids[row] < SPECIAL]
    assert chosen(Digits(), case) == [row for row in rows if any(c in string.digits for c in case.text(row))]
    assert chosen(Sinks(3), case) == list(range(min(3, case.prefix)))

    eligible = {"cap": ["Cat", "Ox", "Émile"], "piece": ["dog", "é"], "mixed": ["x1", "A-b"]}
    classes = case.rng.choice([("cap",), ("piece", "mixed"), ("cap", "mixed", "piece")])
    words = [word for name in classes for word in eligible[name]]
    matches = [row for row in rows if case.text(row).strip() in words]
    rarity = [-case.frequency[token] for token in case.ids]
    k = round(case.share * len(matches))
    assert chosen(Protected(case.share, classes), case) == case.best(rarity, k, matches)


@each
def test_the_27b_budget(number: int) -> None:
    """Base rules set the count, net rows stand against it, special tokens on top, the probe fills it."""
    case = Case(number)
    rows = range(case.prefix)
    ranked = case.best(case.lower, round(0.2 * case.prefix), rows)
    words = ["Cat", "Ox", "Émile", "dog", "é", "x1", "A-b"]
    matches = [row for row in rows if case.text(row).strip() in words]
    rarity = [-case.frequency[token] for token in case.ids]
    rarer = case.best(rarity, round(0.5 * len(matches)), matches)
    digits = [row for row in rows if any(c.isdigit() for c in case.text(row))]
    factor = case.rng.choice([0.5, 1.0, 1.5])
    net = case.taken[: case.rng.randint(0, len(case.taken))]
    special = [row for row in rows if case.ids[row] < SPECIAL]
    count = max(round(factor * len({*ranked, *rarer, *digits})) - len(net), 0)
    free = [row for row in rows if row not in net and row not in special]
    found = chosen(
        Probe(window=5, base_rules=True, factor=factor), case, {"special": special, "lexical_net": net}
    )
    assert found == case.best(case.probed, count, free)


def brute_net(case: NetCase, net: LexicalNet) -> list[int]:
    """Sentences by walking over characters; runs by comparing word lists."""

    def words(text: str) -> list[str]:
        found, word = [], ""
        for char in unicodedata.normalize("NFKC", text).casefold() + " ":
            if char.isalnum() or char == "_":
                word += char
            elif word:
                found.append(word)
                word = ""
        return found

    content = [token for token in case.ids if token >= SPECIAL][-net.window :]
    question = words("".join(case.words[token - SPECIAL] for token in content))
    texts = [case.words[t - SPECIAL] if t >= SPECIAL else "\n" for t in case.ids[: case.prefix]]
    text = "".join(texts)
    owner = [row for row, part in enumerate(texts) for _ in part]
    sentences: list[list[int]] = [[]]
    for place, char in enumerate(text):
        sentences[-1].append(place)
        after = text[place + 1 : place + 2]
        if char == "\n" or (char in ".!?" and after != "" and after in " \n"):
            sentences.append([])
    every = words(text)
    rows: list[int] = []
    for places in sentences:
        own = words("".join(text[place] for place in places))
        caught = False
        for start in range(len(own) - net.run + 1):
            run = own[start : start + net.run]
            quoted = any(question[at : at + net.run] == run for at in range(len(question)))
            caught |= quoted and any(every.count(word) <= net.rare for word in run)
        if caught:
            first = list(dict.fromkeys(owner[place] for place in places))[: net.sentence_rows]
            rows += [row for row in first if row not in rows][: int(net.share * case.prefix) - len(rows)]
    return sorted(rows)


class NetCase(Case):
    """Sentences of few words, some of which the end of the prompt quotes."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        rng = self.rng
        self.words = [f" {w}" for w in ["red", "blue", "Green", "river", "mountain", "stone", "hill"]]
        self.words += [".", "!", "\n", "x", " q7", ",", " ÉTÉ"]
        ids: list[int] = []
        sentences = []
        for _ in range(rng.randint(3, 12)):
            body = [rng.randrange(len(self.words)) for _ in range(rng.randint(3, 14))]
            sentences.append(body)
            ids += [SPECIAL + word for word in (*body, 7)]
            if rng.random() < 0.2:
                ids.append(rng.randrange(SPECIAL))
        quoted = rng.choice(sentences)
        start = rng.randrange(max(1, len(quoted) - 5))
        self.prefix = len(ids)
        ids += [SPECIAL + word for word in (0, *quoted[start : start + rng.randint(4, 9)], 1)]
        self.ids, self.rows = ids, len(ids)
        self.taken = []

    def prompt(self) -> Prompt:
        return Prompt(self.rows, self.prefix, self.ids, Vocabulary(Words(self.words)))


@each
def test_the_lexical_net(number: int) -> None:
    case = NetCase(number)
    rng = random.Random(number)
    net = LexicalNet(
        run=rng.choice([2, 3, 4]),
        window=rng.choice([6, 12, 64]),
        rare=rng.choice([1, 2, 3]),
        sentence_rows=rng.choice([2, 5, 80]),
        share=rng.choice([0.05, 0.2, 0.6, 1.0]),
    )
    found = chosen(net, case)
    assert found == brute_net(case, net)
    assert len(found) <= net.share * case.prefix


def test_the_net_catches_something() -> None:
    """The cases above are not all empty."""
    sizes = [len(chosen(LexicalNet(run=3, share=1.0), NetCase(number))) for number in range(CASES)]
    assert sum(size > 0 for size in sizes) > CASES / 3


def test_random_rows_are_uniform_and_of_their_prompt() -> None:
    counts = [0] * 40
    for seed in range(400):
        prompt = Prompt(50, 40, ids=list(range(50)))
        for row in Random(count=10, seed=seed).choose(prompt, SPLIT, {}):
            counts[row] += 1
    assert min(counts) > 60
    assert max(counts) < 140  # 100 expected, standard deviation 8.7
    one, other = (Prompt(50, 40, ids=[first, *range(49)]) for first in (0, 1))
    assert Random(count=10).choose(one, 9, {}) == Random(count=10).choose(one, 4, {})
    assert Random(count=10).choose(one, 9, {}) != Random(count=10).choose(other, 9, {})


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (" the", "word-start"),
        (" The", "word-start-cap"),
        ("ing", "word-piece"),
        ("Ing", "word-piece-cap"),
        ("\tÉt", "word-start-cap"),
        (" 1.5", "number"),
        ("42", "number"),
        (" (", "punct"),
        ("€", "punct"),
        ("  ", "space"),
        ("\n\n", "newline"),
        ("x1", "mixed"),
        ("don't", "mixed"),
        ("\ufffd", "mixed"),
    ],
)
def test_token_classes(text: str, wanted: str) -> None:
    assert text_class(text) == wanted


def test_spelling_of_byte_level_tokens(tiny_tokenizer: Any) -> None:
    """Pieces put together are the text, whatever the bytes; a character is completed by its last token."""
    vocabulary = Vocabulary(tiny_tokenizer)
    text = "the naïve 猫 sat\non 12 logs"
    ids = tiny_tokenizer(text, add_special_tokens=False)["input_ids"]
    assert b"".join(vocabulary.piece(token) for token in ids) == text.encode()
    whole, spans = vocabulary.spans(ids)
    assert whole == text
    assert [place for span in spans for place in span] == list(range(len(text)))
    assert vocabulary.is_special(tiny_tokenizer.eos_token_id)


def test_the_header_of_the_answer_is_no_question(tiny_tokenizer: Any) -> None:
    vocabulary = Vocabulary(tiny_tokenizer)
    chat = tiny_tokenizer.apply_chat_template(
        [{"role": "user", "content": "the cat"}], tokenize=False, add_generation_prompt=True
    )
    ids = tiny_tokenizer(chat, add_special_tokens=False)["input_ids"]
    kept = vocabulary.without_header(ids)
    assert len(kept) < len(ids)
    assert not re.search("assistant", vocabulary.spans(kept)[0])
    assert "the cat" in vocabulary.spans(kept)[0]


def test_registry_names_every_selector() -> None:
    assert {name: cls.name for name, cls in SELECTORS.items()} == {name: name for name in SELECTORS}
    assert len(SELECTORS) == 11


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Attention(share=1.2), "share of 1.2 of attention rows"),
        (lambda: Random(share=0.0), "share of 0 of random rows"),
        (lambda: LongerTail(count=0), "empty selection"),
        (lambda: Probe(share=0.1, count=3), "both a share and a count"),
        (lambda: Probe(share=0.1, base_rules=True), "base rules"),
        (lambda: Explicit(), "empty selection"),
        (lambda: Explicit(rows=(-1,)), "row -1"),
        (lambda: Sinks(0), "empty selection"),
        (lambda: Protected(classes=("words",)), "words"),
        (lambda: Protected(share=2.0), "share of 2"),
        (lambda: LexicalNet(run=0), "run 0"),
        (lambda: Attention(layers=(9,)).check(SPLIT, 64), "layer 9"),
        (lambda: Attention().check(3, 64), "below split 3"),
        (lambda: Probe(window=65).check(SPLIT, 64), "65 rows.*has 64"),
        (lambda: Explicit(rows=(40,)).choose(Prompt(50, 40), SPLIT, {}), "row 40 is outside the prefix"),
        (lambda: Digits().choose(Prompt(50, 40), SPLIT, {}), "embeddings"),
    ],
)
def test_refusals(make: Callable[[], object], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        make()
