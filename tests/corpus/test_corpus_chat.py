"""Chats through the template: one BOS, never two, and the same text on every day."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import pytest
from transformers import PreTrainedTokenizerFast

from ridgefit.corpus import Document, build_store, template_doubles_bos
from ridgefit.corpus.encoding import dated_template, render_chat
from ridgefit.errors import BadInput

Make = Callable[..., PreTrainedTokenizerFast]
CHATS = [
    ({"role": "user", "content": "the cat ran"}, {"role": "assistant", "content": "not here"}),
    ({"role": "user", "content": "it was the dog"},),
    ({"role": "user", "content": "the river"}, {"role": "assistant", "content": "a hill"}),
]
DOCUMENTS = [Document(messages=chat, source=f"chat {n}") for n, chat in enumerate(CHATS)]
NO_BOS = "{% for turn in messages %}{{ turn.role }} : {{ turn.content }} .{{ eos_token }}{% endfor %}"


def stored_ids(documents: list[Document], tokenizer: PreTrainedTokenizerFast) -> dict[str, list[int]]:
    store = build_store(documents, tokenizer, window=64, min_tokens=2)
    return {record.sha256: store.document(n).tolist() for n, record in enumerate(store.manifest.documents)}


def test_a_chat_is_what_the_template_tokenises_to(chat_tokenizer: PreTrainedTokenizerFast) -> None:
    found = stored_ids(DOCUMENTS, chat_tokenizer)
    for document, chat in zip(DOCUMENTS, CHATS, strict=True):
        own = chat_tokenizer.apply_chat_template(list(chat), tokenize=True, return_dict=False)
        assert found[document.sha256] == own
        assert own.count(1) == 1
    # By hand: <s> user : the cat ran . </s> assistant : not here . </s>
    assert found[DOCUMENTS[0].sha256] == [1, 19, 21, 3, 5, 8, 22, 2, 20, 21, 17, 18, 22, 2]


def test_the_trap_is_there_and_seen(chat_tokenizer: PreTrainedTokenizerFast, make_tokenizer: Make) -> None:
    text = chat_tokenizer.apply_chat_template(list(CHATS[0]), tokenize=False)
    assert chat_tokenizer(text)["input_ids"][:2] == [1, 1]
    assert template_doubles_bos(chat_tokenizer)
    assert not template_doubles_bos(make_tokenizer())
    assert not template_doubles_bos(make_tokenizer(chat=NO_BOS))
    assert not template_doubles_bos(make_tokenizer(bos=False, chat="{{ bos_token }}" + NO_BOS))
    assert template_doubles_bos(make_tokenizer(bos=False, chat="{{ bos_token }}{{ bos_token }}" + NO_BOS))


def test_the_policy_is_recorded(chat_tokenizer: PreTrainedTokenizerFast, make_tokenizer: Make) -> None:
    plain = [
        Document("the cat ran on"),
        Document("<s> the dog ran"),
        Document("<s><s> a dog ran"),
        Document(""),
    ]
    opening = build_store([*DOCUMENTS, *plain], chat_tokenizer, window=64, min_tokens=2).manifest.opening
    assert opening.model_dump() == {
        "ids": (1,), "added": 1, "in_text": 2, "by_template": 3, "absent": 0, "chat_date": "2024-07-26",
    }  # fmt: skip
    silent = build_store(DOCUMENTS, make_tokenizer(chat=NO_BOS), window=64, min_tokens=2)
    assert silent.manifest.opening.absent == 3
    assert all(silent.document(n)[0] != 1 for n in range(3))
    assert [record.bos for record in silent.manifest.documents] == [0, 0, 0]
    own = build_store(
        DOCUMENTS, make_tokenizer(bos=False, chat="{{ bos_token }}" + NO_BOS), window=64, min_tokens=2
    )
    assert own.manifest.opening.by_template == 3
    assert [record.bos for record in own.manifest.documents] == [1, 1, 1]


def test_text_that_brings_its_bos_gets_no_second_one(tokenizer: PreTrainedTokenizerFast) -> None:
    documents = [Document("<s> the dog ran"), Document("<s><s> the cat ran"), Document("it was not here")]
    found = stored_ids(documents, tokenizer)
    assert [found[document.sha256] for document in documents] == [
        [1, 3, 6, 8],
        [1, 3, 5, 8],
        [1, 15, 16, 17, 18],
    ]


def test_later_windows_of_a_chat_repeat_its_bos(chat_tokenizer: PreTrainedTokenizerFast) -> None:
    store = build_store(DOCUMENTS, chat_tokenizer, window=5, min_tokens=2)
    windows = [store.window(number).tolist() for number in range(len(store))]
    assert all(window[0] == 1 and 1 not in window[1:] and len(window) <= 5 for window in windows)
    whole = store.document(0).tolist()
    mine = [store.window(n).tolist() for n, w in enumerate(store.manifest.windows) if w.document == 0]
    assert [token for number, window in enumerate(mine) for token in window[number > 0 :]] == whole


def test_a_token_that_marks_every_turn_opens_nothing(make_tokenizer: Make) -> None:
    """Some tokenizers call the mark of a turn their BOS and add none; later windows must not repeat it."""
    marks = "{% for turn in messages %}<s> {{ turn.content }}{% endfor %}"
    store = build_store(DOCUMENTS, make_tokenizer(bos=False, chat=marks), window=64, min_tokens=2)
    assert [record.bos for record in store.manifest.documents] == [0, 0, 0]
    assert store.manifest.opening.absent == 3


def test_a_template_that_doubles_by_itself_is_refused(make_tokenizer: Make) -> None:
    twice = make_tokenizer(chat="{{ bos_token }}{{ bos_token }}" + NO_BOS)
    with pytest.raises(BadInput, match=r"the chat template writes the BOS token twice \(in chat 0\)"):
        build_store(DOCUMENTS, twice, window=64, min_tokens=2)


def test_a_chat_without_template_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(BadInput, match="the tokenizer has no chat template: give plain text"):
        build_store(DOCUMENTS, tokenizer, window=64, min_tokens=2)


@pytest.mark.parametrize(
    "template",
    ["{{ raise_exception('roles must\n alternate') }}", "{{ messages[0].content + 1 }}", "{{ 1 / x.y }}"],
)
def test_a_template_that_refuses_the_turns(template: str, make_tokenizer: Make) -> None:
    with pytest.raises(
        BadInput, match=r"the chat template refuses the turns of chat 0 \(.*\): mend"
    ) as caught:
        build_store(DOCUMENTS, make_tokenizer(chat=template), window=64, min_tokens=2)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("before", ["", "\n", "  ", "x\n"])
@pytest.mark.parametrize("written", ["%d %B %Y", "%Y-%m-%d", "%b %-d, %y (%A, %a) day %j %H:%M:%S %I%p"])
def test_templates_that_print_the_date_get_a_fixed_one(
    written: str, before: str, make_tokenizer: Make
) -> None:
    """Against the same template with the date written out, so that white space is left as it was."""
    fixed = datetime(2024, 7, 26).strftime(written)
    after = "  {% if true %}\n {%- for turn in messages %}{{ turn.content }}{% endfor %}{% endif %}\n"
    shown = make_tokenizer(chat=before + "{{ strftime_now('" + written + "') }}" + after)
    plain = make_tokenizer(chat=before + "{{ '" + fixed + "' }}" + after)
    text = render_chat(shown, CHATS[0], "", dated_template(shown))
    assert text == plain.apply_chat_template(list(CHATS[0]), tokenize=False)
    assert fixed in text


def test_the_date_is_also_fixed_where_a_template_asks_whether_it_can_know_it(make_tokenizer: Make) -> None:
    template = "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}never{% endif %}"
    tokenizer = make_tokenizer(chat=template)
    assert render_chat(tokenizer, CHATS[0], "", dated_template(tokenizer)) == "2024"
