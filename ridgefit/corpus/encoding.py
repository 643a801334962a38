"""From a document to token ids: the chat template, one BOS and never two, a longest length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ridgefit.corpus.documents import Document
from ridgefit.errors import BadInput
from ridgefit.tokens import opening_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Ids = NDArray[np.int32]
Opened = Literal["added", "in_text", "by_template", "absent"]

# A token holds about four characters of prose; text is cut here before it costs memory in the tokenizer.
_CHARACTERS_PER_TOKEN = 16
# Some templates print today's date, which would change the ids from day to day. They get this day instead.
CHAT_DATE = "2024-07-26"
_DATE_FORMATS = {
    "%-d": "26", "%d": "26", "%B": "July", "%b": "Jul", "%m": "07", "%Y": "2024", "%y": "24",
    "%A": "Friday", "%a": "Fri", "%H": "00", "%I": "12", "%M": "00", "%S": "00", "%p": "AM", "%j": "208",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Encoded:
    """A document's ids as the model reads them.

    Attributes:
        ids: int32 [tokens].
        bos: how many of the first ids open the sequence (0 or 1 nearly always); windows that start later in
            the document repeat them, because a model that expects a BOS is far off its path without one.
        opened: who wrote the opening ids.
        capped: the document was longer than allowed and its end was cut off.
    """

    ids: Ids
    bos: int
    opened: Opened
    capped: bool


class Encoder:
    """Tokenises documents in batches, with truncation and padding off.

    Plain text gets the ids that `tokenizer(text)` would put in front (an EOS that some tokenizers append is
    left off: a window is a piece of text, not the end of one); text that already starts with them gets no
    second copy. Chats are rendered by the template and tokenised with `add_special_tokens=False`, so that the
    template alone decides about BOS.

    Args:
        tokenizer: of the model that will read the ids.
        longest: tokens of a document at most.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, longest: int) -> None:
        self.tokenizer = tokenizer
        self.longest = longest
        self.opening = opening_ids(tokenizer)
        self._template: str | None = None

    def encode(self, documents: Sequence[Document]) -> list[Encoded]:
        """Ids of each document, in order.

        Raises:
            BadInput: a chat without a template, a template that refuses it or writes BOS twice.
        """
        limit = self.longest * _CHARACTERS_PER_TOKEN
        texts = [self._render(d) if d.text is None else d.text for d in documents]
        if not texts:
            return []
        rows = self.tokenizer(
            [text[:limit] for text in texts],
            add_special_tokens=False,
            padding=False,
            truncation=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )["input_ids"]
        return [
            self._opened(document, row, cut=len(text) > limit)
            for document, row, text in zip(documents, rows, texts, strict=True)
        ]

    def _opened(self, document: Document, row: Sequence[int], *, cut: bool) -> Encoded:
        opening = list(self.opening)
        ids = list(row)
        opened: Opened
        if document.text is None:
            own = opening or _template_bos(self.tokenizer, self._chat_template())
            written = bool(own) and ids[: len(own)] == own
            if written and ids[len(own) : 2 * len(own)] == own:
                raise BadInput(
                    f"the chat template writes the BOS token twice (in {document.source or 'a chat'})",
                    "use a tokenizer with a mended template",
                )
            opened, bos = ("by_template", len(own)) if written else ("absent", 0)
        else:
            opened, bos = ("added", len(opening)) if opening else ("absent", 0)
            while opening and ids[: len(opening)] == opening:
                opened, ids = "in_text", ids[len(opening) :]
            ids = opening + ids
        capped = cut or len(ids) > self.longest
        return Encoded(np.asarray(ids[: self.longest], dtype=np.int32), bos, opened, capped)

    def _render(self, document: Document) -> str:
        return render_chat(self.tokenizer, document.messages or (), document.source, self._chat_template())

    def _chat_template(self) -> str:
        if self._template is None:
            self._template = dated_template(self.tokenizer)
        return self._template


def dated_template(tokenizer: PreTrainedTokenizerBase) -> str:
    """The tokenizer's chat template, with today's date fixed to `CHAT_DATE` where it prints one.

    Raises:
        BadInput: the tokenizer has none.
    """
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, Mapping):
        template = template.get("default")
    if not isinstance(template, str):
        raise BadInput("the tokenizer has no chat template", "give plain text, or a model tuned for chat")
    if "strftime_now" not in template:
        return template
    replaced = "".join(f" | replace('{code}', '{value}')" for code, value in _DATE_FORMATS.items())
    # The line break belongs to the macro's block and is trimmed with it: the template starts as it did.
    return "{%- macro strftime_now(format) %}{{ format" + replaced + " }}{%- endmacro %}\n" + template


def render_chat(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, Any]], source: str, template: str
) -> str:
    """Text of a chat as the model's template writes it, without a prompt for a further turn.

    Raises:
        BadInput: the template refuses the turns, for instance because roles do not alternate.
    """
    from jinja2 import TemplateError

    try:
        text = tokenizer.apply_chat_template(
            [dict(turn) for turn in messages], chat_template=template, tokenize=False
        )
    except (TemplateError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise BadInput(
            f"the chat template refuses the turns of {source or 'a chat'} ({reason})",
            "mend the row or drop it",
        ) from error
    return str(text)


def template_doubles_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether tokenising templated text with default settings would begin with two BOS (ids[:2] alike).

    True for many chat models; harmless here, because `Encoder` tokenises templated text without special
    tokens, and a trap for any other code that reads the same text.
    """
    if getattr(tokenizer, "chat_template", None) is None:
        return False
    template = dated_template(tokenizer)
    text = render_chat(tokenizer, ({"role": "user", "content": "a"},), "", template)
    ids = list(tokenizer(text)["input_ids"])
    opening = list(opening_ids(tokenizer)) or _template_bos(tokenizer, template)
    return bool(opening) and ids[: 2 * len(opening)] == 2 * opening


def _template_bos(tokenizer: PreTrainedTokenizerBase, template: str) -> list[int]:
    """BOS of a tokenizer that adds none itself, if the template names it.

    Where it does not, the same token may mark every turn (`<|im_start|>`), which opens nothing.
    """
    bos = getattr(tokenizer, "bos_token_id", None)
    return [] if bos is None or "bos_token" not in template else [int(bos)]
