"""Sentences that share words in a row with the question, one of them rare (RidgeFill section 2.4).

The paper's normalisation is not public; this is ours. Text is what the tokens spell, special tokens taken as
line breaks. Words are the longest runs of letters, digits and underscores, compared without case (casefold
of NFKC). A sentence ends after `.`, `!`, `?` or their full-width forms and any closing quotes or brackets,
where white space follows, and at a line break. A row belongs to every sentence of which it completes a
character.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ridgefit.errors import BadInput
from ridgefit.runtime.selectors.prompt import Prompt, Selector, Taken, require_share
from ridgefit.runtime.vocabulary import Vocabulary

_WORD = re.compile(r"\w+")
_CLOSING = "\"')\\]\u201d\u2019"
_END = re.compile(f"[.!?]+[{_CLOSING}]*(?=\\s)|[\u3002\uff01\uff1f]+|\\n")


@dataclass(frozen=True)
class LexicalNet(Selector):
    """Sentences of the prefix that the end of the prompt quotes.

    Attributes:
        run: words in a row that must be shared.
        window: last content tokens of the prompt that may quote: neither special tokens nor those with which
            the chat template opens the answer count.
        rare: most times that one of those words may occur in the prefix.
        sentence_rows: first rows kept of a sentence.
        share: most rows kept, of the prefix, rounded down; earlier sentences come first.
    """

    run: int = 4
    window: int = 64
    rare: int = 2
    sentence_rows: int = 80
    share: float = 0.05

    name = "lexical_net"

    @property
    def reads_tokens(self) -> bool:
        """It does."""
        return True

    def __post_init__(self) -> None:
        """Refuse counts and shares that catch nothing."""
        require_share(self.name, self.share)
        for name in ("run", "window", "rare", "sentence_rows"):
            if getattr(self, name) < 1:
                raise BadInput(
                    f"a lexical net with {name} {getattr(self, name)} catches nothing", "use 1 or more"
                )

    def choose(self, prompt: Prompt, split: int, taken: Taken) -> list[int]:
        """Rows of the sentences that are caught, in order."""
        del split, taken
        ids, vocabulary = prompt.tokens()
        asked = _runs(self._question(ids, vocabulary), self.run)
        text, spans = vocabulary.spans(ids[: prompt.prefix])
        counts = Counter(_words(text))
        limit = int(self.share * prompt.prefix)
        rows: list[int] = []
        for start, stop in _sentences(text):
            shared = _runs(_words(text[start:stop]), self.run) & asked
            if any(counts[word] <= self.rare for run in shared for word in run):
                first = _rows_of(spans, start, stop)[: self.sentence_rows]
                new = first[1:] if rows and first[0] == rows[-1] else first
                rows += new[: limit - len(rows)]
        return rows

    def _question(self, ids: Sequence[int], vocabulary: Vocabulary) -> list[str]:
        content = [token for token in vocabulary.without_header(ids) if not vocabulary.is_special(token)]
        return _words(vocabulary.spans(content[-self.window :])[0])


def _words(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def _runs(words: Sequence[str], length: int) -> set[tuple[str, ...]]:
    """Every `length` words in a row; a longer shared run holds one of these with any of its words."""
    return {tuple(words[place : place + length]) for place in range(len(words) - length + 1)}


def _sentences(text: str) -> Iterator[tuple[int, int]]:
    """Where each sentence starts and stops, in characters."""
    start = 0
    for end in _END.finditer(text):
        yield start, end.end()
        start = end.end()
    if start < len(text):
        yield start, len(text)


def _rows_of(spans: Sequence[range], start: int, stop: int) -> list[int]:
    return [row for row, span in enumerate(spans) if span.start < stop and span.stop > start]
