"""One document of a corpus, its hash, and how a row of a table becomes one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ridgefit.errors import BadInput
from ridgefit.files import canonical_json, sha256_bytes

_JSON_NAMES = {bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}
_FIELDS_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Document:
    """Text, or a chat, as its source holds it; exactly one of `text` and `messages` is set.

    Attributes:
        text: plain text; "" is legal and is dropped and counted later.
        messages: chat turns, each with a string `role` and a string `content`.
        domain: stratum for intervals and reports, part of the manifest's identity.
        source: where it came from, for people; not part of any identity.
        sha256: hash of the text's UTF-8 bytes, or of the chat's canonical JSON.
    """

    text: str | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    domain: str = ""
    source: str = ""
    sha256: str = field(init=False)

    def __post_init__(self) -> None:
        if (self.text is None) == (self.messages is None):
            raise ValueError("a document is either text or messages")
        try:
            canonical = self.text.encode() if self.text is not None else canonical_json(self.messages)
        except UnicodeEncodeError as error:
            raise BadInput(
                f"{self.source or 'a document'} holds half of a UTF-16 pair, which no UTF-8 text can",
                "replace the escape \\ud800-\\udfff in that row",
            ) from error
        object.__setattr__(self, "sha256", sha256_bytes(canonical))

    @property
    def empty(self) -> bool:
        """No turns, or nothing but white space."""
        return not (self.messages if self.text is None else self.text.strip())


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of the columns that hold a document.

    Attributes:
        text: column of plain text.
        messages: column of chat turns; where a row has both, the chat is taken.
    """

    text: str = "text"
    messages: str = "messages"

    def require_any(self, names: Iterable[str], where: str) -> None:
        """Refuse a row or table with neither column.

        Raises:
            BadInput: naming the fields that are there.
        """
        found = list(names)
        if self.text in found or self.messages in found:
            return
        shown = ", ".join(f"'{name}'" for name in found[:_FIELDS_SHOWN]) or "none"
        more = f" and {len(found) - _FIELDS_SHOWN} more" if len(found) > _FIELDS_SHOWN else ""
        raise BadInput(
            f"{where} has no field '{self.text}'; its fields are {shown}{more}", "name one with --text-field"
        )

    def document(self, row: Mapping[str, Any], where: str, source: str) -> Document:
        """The document that a row holds.

        A null text or chat counts as empty. The row's own string fields `source` and `domain` are kept.

        Args:
            row: column name -> value.
            where: file and line, or data set and row, for the sentence of an error.
            source: label used when the row names no source.

        Raises:
            BadInput: no text field, or a value of another type.
        """
        self.require_any(row, where)
        domain = _label(row.get("domain"), "")
        source = _label(row.get("source"), source)
        turns = row.get(self.messages)
        if turns is not None:
            return Document(messages=self._turns(turns, where), domain=domain, source=source)
        text = row.get(self.text)
        if text is not None and not isinstance(text, str):
            kind = _JSON_NAMES.get(type(text), type(text).__name__)
            raise BadInput(
                f"field '{self.text}' of {where} is {kind} and not a string", "name another with --text-field"
            )
        return Document(text=text or "", domain=domain, source=source)

    def _turns(self, turns: Any, where: str) -> tuple[dict[str, Any], ...]:
        fix = "write each turn as an object with a string 'role' and a string 'content'"
        if not isinstance(turns, list):
            raise BadInput(f"field '{self.messages}' of {where} is not a list of turns", fix)
        for number, turn in enumerate(turns, start=1):
            if not isinstance(turn, dict):
                raise BadInput(f"turn {number} in '{self.messages}' of {where} is not an object", fix)
            for key in ("role", "content"):
                if not isinstance(turn.get(key), str):
                    raise BadInput(
                        f"turn {number} in '{self.messages}' of {where} has no string '{key}'", fix
                    )
        # Columnar files fill the keys that a turn lacks with null; a template must not see those.
        return tuple({key: value for key, value in turn.items() if value is not None} for turn in turns)


def _label(value: Any, otherwise: str) -> str:
    return value if isinstance(value, str) and value else otherwise
