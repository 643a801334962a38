"""Needle-in-a-haystack prompts: numbers hidden in filler text, one of them asked for at the end.

The shape is RULER's `niah_single` and `niah_multikey` (Hsieh et al. 2024): a needle sentence per key, an
answer prefix after the question, an answer that counts when it contains the number. Filler, word lists and
introduction are our own, so scores do not compare with published RULER figures. Pure Python, no model.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from ridgefit.errors import BadInput

INTRODUCTION = (
    "Some special magic numbers are hidden in the following text. "
    "Remember them: you will be asked for them afterwards."
)
VALUE_DIGITS = 7
_ADJECTIVES = (
    "amber ancient bitter bold brave bright broad calm clean clever cold cosmic crisp curious dark deep "
    "distant dusty eager early empty famous faint fierce final fresh gentle giant golden grand green "
    "happy hidden hollow humble icy jolly keen large late lively lonely lucky mellow mighty modern narrow "
    "noble odd open patient plain proud quick quiet rapid rare red rough round royal rustic sharp shiny "
    "silent silver simple slow small smooth soft solid spare steady strange strong sunny swift tall "
    "tender tidy tiny vast velvet warm wide wild wise young"
)
_NOUNS = (
    "anchor apple arrow badge barrel basket beacon bell bird boat bottle branch bridge brook bucket "
    "candle canyon castle cedar chapel circle cliff clock cloud coast compass copper cottage crown desert "
    "dragon drum eagle engine falcon farmer feather fiddle field flute forest fountain fox garden gate "
    "glacier hammer harbor hill horse island jacket jungle kettle kitten ladder lamp lantern lemon "
    "library lion marble market meadow mirror moon mountain needle ocean orchard otter owl palace paper "
    "parrot pebble pepper piano pigeon pillow planet pocket pond prairie rabbit ribbon river rocket "
    "saddle shadow shell ship spoon squirrel stone storm table temple thunder tiger tower train tulip "
    "tunnel turtle valley violin wagon water whale willow window winter wolf yard"
)
ADJECTIVES = tuple(_ADJECTIVES.split(" "))
NOUNS = tuple(_NOUNS.split(" "))
_NOISE = "The kettle is warm. The door is open. The lamp is lit. Out we go. In we come again.\n"
_UNIT_CHARACTERS = 240
_SENTENCE_END = re.compile(r"(?<=[.!?])[ \t]+|\n\s*")

Render = Callable[[str, str], str]
"""(user text, answer prefix) -> the finished prompt, for instance through a chat template."""


class Haystack(Protocol):
    """Filler text as an endless stream of units, each ending in whitespace; needles go between units."""

    name: str

    def units(self, rng: random.Random, /) -> Iterator[str]:
        """An endless stream of units; draws from `rng` only before it yields the first one."""
        ...


class NoiseHaystack:
    """The same few neutral sentences over and over, in the manner of RULER's noise haystack."""

    name = "noise"

    def units(self, _rng: random.Random, /) -> Iterator[str]:
        """The one unit, again and again."""
        while True:
            yield _NOISE


class TextHaystack:
    """Sentences (lines, in code) of given documents, from a random start on, wrapping around at the end.

    Raises:
        BadInput: the documents hold no text.
    """

    name = "text"

    def __init__(self, documents: Sequence[str]) -> None:
        self._units = [unit for document in documents for unit in sentences(document)]
        if not self._units:
            raise BadInput("the text haystack has no text", "give at least one document that is not empty")

    def units(self, rng: random.Random, /) -> Iterator[str]:
        """Units in document order, starting anywhere."""
        at = rng.randrange(len(self._units))
        while True:
            yield self._units[at]
            at = (at + 1) % len(self._units)


@dataclass(frozen=True)
class NeedleCase:
    """One prompt and the number it asks for.

    Attributes:
        context: introduction, filler and needles, without trailing whitespace.
        question: the question, without surrounding whitespace.
        answer_prefix: how the answer begins, with one leading space; the answer goes on with " VALUE".
        prompt: the finished prompt as it was counted, answer prefix included.
        key: the key asked for.
        value: the number asked for, as text.
        others: (key, value) of the needles that are not asked for, in their order in the context.
        depth: share of the prompt's tokens before the asked needle, 0 to 1.
        needles_end: tokens up to the end of the last needle.
        tokens: tokens of `prompt`.
        haystack: name of the haystack.
    """

    context: str
    question: str
    answer_prefix: str
    prompt: str
    key: str
    value: str
    others: tuple[tuple[str, str], ...]
    depth: float
    needles_end: int
    tokens: int
    haystack: str


def build_case(
    rng: random.Random,
    *,
    needles: int,
    haystack: Haystack,
    fits: Callable[[str], int],
    budget: int,
    filled_until: int,
    render: Render | None = None,
) -> NeedleCase:
    """A prompt as close below `budget` tokens as whole filler units allow, its needles all early enough.

    Every search is a bisection or a countdown over a known range, so the construction ends for any tokenizer.

    Args:
        rng: source of keys, values, filler start and positions; equal states give equal cases.
        needles: keys in the context, of which one (drawn) is asked for.
        haystack: filler.
        fits: token count of a text, with whatever special tokens the caller's prompt will have.
        budget: most tokens of the finished prompt; leave room for the answer beside it.
        filled_until: in a prompt of exactly `budget` tokens all needles end within the first `filled_until`.
            A prompt k tokens shorter gets its limit lowered by k, so that the distance to its end never
            shrinks: `filled_until = budget - tail` keeps every needle out of the last `tail` tokens.
        render: how user text and answer prefix become the prompt; by default plain concatenation.

    Raises:
        BadInput: no needle is wanted, or `budget` or `filled_until` cannot hold the needles and the question.
    """
    if not 1 <= needles <= len(ADJECTIVES):
        raise BadInput(
            f"a needle prompt with {needles} needles cannot be built", f"use 1 to {len(ADJECTIVES)}"
        )
    keys, values = draw_keys(rng, needles), draw_values(rng, needles)
    asked = rng.randrange(needles)
    lines = [needle_sentence(key, value) for key, value in zip(keys, values, strict=True)]
    layout = _Layout(lines, _Units(haystack.units(rng)), keys[asked], render or plain)
    most = _most(lambda n: fits(layout.prompt(n, [0] * needles)) <= budget, budget)
    if most is None:
        raise BadInput(
            f"{needles} needles and their question do not fit into {budget} tokens",
            "raise the prompt length or use fewer needles",
        )
    size: int = most
    limit = filled_until - (budget - fits(layout.prompt(size, [0] * needles)))
    last = _most(lambda gap: fits(layout.head(size, [gap] * needles, needles)) <= limit, size)
    if last is None:
        raise BadInput(
            f"{needles} needles do not fit into the first {filled_until} of {budget} tokens",
            "raise the prompt length, shorten the tail or use fewer needles",
        )
    draw = (
        rng.sample(range(last + 1), needles)
        if last + 1 >= needles
        else rng.choices(range(last + 1), k=needles)
    )
    size, gaps, tokens = _settle(layout, size, sorted(draw), fits, budget, filled_until)
    return NeedleCase(
        context=layout.context(size, gaps),
        question=question(keys[asked]),
        answer_prefix=answer_prefix(keys[asked]),
        prompt=layout.prompt(size, gaps),
        key=keys[asked],
        value=values[asked],
        others=tuple(pair for i, pair in enumerate(zip(keys, values, strict=True)) if i != asked),
        depth=fits(layout.head(size, gaps, asked)) / tokens,
        needles_end=fits(layout.head(size, gaps, needles)),
        tokens=tokens,
        haystack=haystack.name,
    )


def needle_sentence(key: str, value: str) -> str:
    """The sentence that hides `value` under `key`."""
    return f"One of the special magic numbers for {key} is: {value}."


def question(key: str) -> str:
    """The question for `key`'s number."""
    return f"What is the special magic number for {key} mentioned in the provided text?"


def answer_prefix(key: str) -> str:
    """How the answer begins; it is part of the prompt."""
    return f" The special magic number for {key} mentioned in the provided text is"


def plain(user: str, prefix: str) -> str:
    """The prompt of a model without a chat template."""
    return user + prefix


def draw_keys(rng: random.Random, count: int) -> list[str]:
    """`count` different adjective-noun keys; no two share an adjective or a noun while the lists last."""
    return [f"{a}-{n}" for a, n in zip(rng.sample(ADJECTIVES, count), rng.sample(NOUNS, count), strict=True)]


def draw_values(rng: random.Random, count: int) -> list[str]:
    """`count` different seven-digit numbers, the first digit not zero."""
    return [str(value) for value in rng.sample(range(10 ** (VALUE_DIGITS - 1), 10**VALUE_DIGITS), count)]


def sentences(text: str) -> list[str]:
    """`text` cut after sentences, lines and, where neither comes in time, 240 characters.

    Nothing is lost but whitespace at the ends of the document: a unit keeps the whitespace that follows it.
    """
    units: list[str] = []
    start = 0
    body = text.strip() + "\n"
    for match in _SENTENCE_END.finditer(body):
        units += _cut(body[start : match.end()])
        start = match.end()
    return [unit for unit in units if not unit.isspace()]


def strict(answer: str, value: str) -> bool:
    """Whether the answer contains the number (RULER's rule: a substring anywhere counts)."""
    return value in answer


def digit_share(answer: str, value: str) -> float:
    """Share of the positions of `value` where the answer's first run of digits has the right digit."""
    run = re.search(r"[0-9]+", answer)
    given = run.group() if run else ""
    return sum(a == b for a, b in zip(given, value, strict=False)) / len(value)


class _Units:
    """An endless stream whose beginning can be read again."""

    def __init__(self, stream: Iterator[str]) -> None:
        self._stream = stream
        self._read: list[str] = []

    def first(self, count: int) -> list[str]:
        self._read += islice(self._stream, max(0, count - len(self._read)))
        return self._read[:count]


@dataclass(frozen=True)
class _Layout:
    """The texts of one case for any number of units and any gaps (needle i comes after gaps[i] units)."""

    lines: list[str]
    units: _Units
    key: str
    render: Render

    def context(self, size: int, gaps: list[int]) -> str:
        return self._text(size, gaps, len(self.lines)).rstrip()

    def prompt(self, size: int, gaps: list[int]) -> str:
        return self.render(f"{self.context(size, gaps)}\n{question(self.key)}", answer_prefix(self.key))

    def head(self, size: int, gaps: list[int], needle: int) -> str:
        """The prompt up to the start of a needle; for `needle` = their number, up to the end of the last."""
        through_end = needle == len(self.lines)
        stop = self._text(gaps[-1] if through_end else gaps[needle], gaps, needle).rstrip()
        whole = self.prompt(size, gaps)
        return whole[: whole.index(INTRODUCTION) + len(stop)]

    def _text(self, size: int, gaps: list[int], needles: int) -> str:
        """Introduction, `size` units and those of the first `needles` needles that lie among them."""
        parts = [INTRODUCTION + "\n"]
        units = self.units.first(size)
        done = 0
        for gap, line in zip(gaps[:needles], self.lines, strict=False):
            parts += units[done:gap]
            done = max(done, gap)
            parts.append(line + ("\n" if "\n" in parts[-1][len(parts[-1].rstrip()) :] else " "))
        return "".join(parts + units[done:size])


def _settle(
    layout: _Layout,
    size: int,
    gaps: list[int],
    fits: Callable[[str], int],
    budget: int,
    filled_until: int,
) -> tuple[int, list[int], int]:
    """Take back what tokens merged across unit borders may have cost: a unit or two, a gap or two."""
    tokens = fits(layout.prompt(size, gaps))
    while tokens > budget and size > 0:  # `size` falls in every round
        size -= 1
        gaps = [min(gap, size) for gap in gaps]
        tokens = fits(layout.prompt(size, gaps))
    limit = filled_until - (budget - tokens)
    while fits(layout.head(size, gaps, len(gaps))) > limit and gaps[-1] > 0:  # gaps[-1] falls in every round
        gaps = [max(0, gap - 1) for gap in gaps]
        tokens = fits(layout.prompt(size, gaps))
        limit = filled_until - (budget - tokens)
    if tokens > budget or fits(layout.head(size, gaps, len(gaps))) > limit:
        raise BadInput(
            f"no placement of {len(gaps)} needles fits into {filled_until} of {budget} tokens",
            "raise the prompt length or use fewer needles",
        )
    return size, gaps, tokens


def _most(holds: Callable[[int], bool], limit: int) -> int | None:
    """The largest n in 0..limit with holds(n), for a condition that stops holding once; None if none."""
    if not holds(0):
        return None
    low, step = 0, 1
    while low + step <= limit and holds(low + step):
        low += step
        step *= 2
    high = min(low + step, limit + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _cut(unit: str) -> list[str]:
    """Pieces of at most 240 characters, cut after a space where there is one."""
    pieces: list[str] = []
    while len(unit) > _UNIT_CHARACTERS:
        space = unit.rfind(" ", 1, _UNIT_CHARACTERS) + 1
        if space <= 0:
            pieces.append(unit[:_UNIT_CHARACTERS] + " ")
            unit = unit[_UNIT_CHARACTERS:]
        else:
            pieces.append(unit[:space])
            unit = unit[space:]
    return [*pieces, unit]
