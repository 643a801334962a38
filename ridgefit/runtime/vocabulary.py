"""What a token is, from its text: special, digit, word start, word piece (RidgeFill sections 2.4 and 5)."""

from __future__ import annotations

import codecs
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Literal

TokenClass = Literal[
    "special",
    "space",
    "newline",
    "number",
    "punct",
    "word-start",
    "word-start-cap",
    "word-piece",
    "word-piece-cap",
    "mixed",
]


class Vocabulary:
    """Token texts and classes of one tokenizer, looked up as they are needed.

    Args:
        tokenizer: a transformers tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        added = getattr(tokenizer, "added_tokens_decoder", {}) or {}
        self._special = frozenset(tokenizer.all_special_ids) | frozenset(added)
        self._byte_level = _spells_bytes(tokenizer)
        self._pieces: dict[int, bytes] = {}
        self._header: tuple[int, ...] | None = None
        self._classes: dict[int, TokenClass] = {}

    def is_special(self, token: int) -> bool:
        """Whether it is a control, unknown or user-defined token."""
        return token in self._special

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for; a token may hold part of a character."""
        if token not in self._pieces:
            spelled = str(self.tokenizer.convert_ids_to_tokens(token) or "")
            self._pieces[token] = _bytes_of(spelled, byte_level=self._byte_level)
        return self._pieces[token]

    def text(self, token: int) -> str:
        """A token by itself; bytes that are no character become U+FFFD."""
        return self.piece(token).decode("utf-8", errors="replace")

    def has_digit(self, token: int) -> bool:
        """Whether an ordinary token's text holds a digit."""
        return not self.is_special(token) and any(char.isdigit() for char in self.text(token))

    def class_of(self, token: int) -> TokenClass:
        """Class of a token."""
        if token not in self._classes:
            self._classes[token] = "special" if self.is_special(token) else text_class(self.text(token))
        return self._classes[token]

    def without_header(self, ids: Sequence[int]) -> list[int]:
        """A prompt without the last piece with which a chat template opens the answer, where it has one."""
        if self._header is None:
            self._header = _header(self.tokenizer)
        size = len(self._header)
        for start in range(len(ids) - size, -1, -1) if size else ():
            if tuple(ids[start : start + size]) == self._header:
                return [*ids[:start], *ids[start + size :]]
        return list(ids)

    def spans(self, ids: Iterable[int]) -> tuple[str, list[range]]:
        """Text of tokens in a row, and which of its characters each token completes.

        A special token is a line break, so that no word or sentence reaches across one.
        """
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        spans: list[range] = []
        parts: list[str] = []
        length = 0
        for token in ids:
            if self.is_special(token):
                part = decoder.decode(b"", final=True) + "\n"
                decoder.reset()
            else:
                part = decoder.decode(self.piece(token))
            parts.append(part)
            spans.append(range(length, length + len(part)))
            length += len(part)
        return "".join(parts), spans


def text_class(text: str) -> TokenClass:
    """Class of a token's text.

    Stripped of white space: nothing left is space or newline; digits, alone or with punctuation, a number;
    only punctuation or symbols, punct; only letters, a word start where white space stood before them, else
    a word piece, `-cap` where the first letter is upper case; anything else is mixed.
    """
    bare = text.strip()
    if not bare:
        return "newline" if "\n" in text else "space"
    marks = [_is_mark(char) for char in bare]
    digits = [char.isdigit() for char in bare]
    if any(digits) and all(mark or digit for mark, digit in zip(marks, digits, strict=True)):
        return "number"
    if all(marks):
        return "punct"
    if bare.isalpha():
        upper = bare[0].isupper()
        if text[0].isspace():
            return "word-start-cap" if upper else "word-start"
        return "word-piece-cap" if upper else "word-piece"
    return "mixed"


def _is_mark(char: str) -> bool:
    """Punctuation or a symbol; the stand-in for part of a character is neither."""
    return char != "\ufffd" and unicodedata.category(char)[0] in "PS"


def _header(tokenizer: Any) -> tuple[int, ...]:
    """What the chat template adds to open the answer; nothing without a template."""
    if not getattr(tokenizer, "chat_template", None):
        return ()
    turn = [{"role": "user", "content": "a"}]
    closed, opened = (
        str(tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=opens))
        for opens in (False, True)
    )
    added = opened.removeprefix(closed) if opened.startswith(closed) else ""
    return tuple(tokenizer(added, add_special_tokens=False)["input_ids"]) if added else ()


def _spells_bytes(tokenizer: Any) -> bool:
    """Whether the tokenizer spells every byte as a printable character, as GPT-2's does."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return "ByteLevel" in repr(getattr(backend, "decoder", None))


def _bytes_of(spelled: str, *, byte_level: bool) -> bytes:
    """Bytes of a token as its tokenizer spells it: byte-level BPE, or SentencePiece."""
    if byte_level:
        known = _byte_of_char()
        return b"".join(bytes([known[char]]) if char in known else char.encode() for char in spelled)
    if len(spelled) == 6 and spelled.startswith("<0x") and spelled.endswith(">"):
        return bytes([int(spelled[3:5], 16)])
    return spelled.replace("\u2581", " ").encode()


@cache
def _byte_of_char() -> dict[str, int]:
    """Byte-level BPE's spelling: printable bytes as themselves, the others as characters from U+0100 on."""
    printable: Sequence[int] = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
