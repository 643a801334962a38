"""What becomes a document, and the sentence for everything that does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from ridgefit.corpus import Document, local, read_documents
from ridgefit.errors import BadInput

CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]


def lines(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_every_kind_of_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        lines({"text": "one", "domain": "d", "source": "s", "n": 1}, {"messages": CHAT})
        + "\n"
        + lines({"text": None})
    )
    (tmp_path / "b.txt").write_bytes("\ufeffzwei\r\nZeilen ü".encode())
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "c.md").write_text("# three")
    table = pyarrow.table({"text": ["four", None], "domain": [None, "e"], "n": [1, 2]})
    pyarrow.parquet.write_table(table, tmp_path / "sub" / "d.parquet")
    for ignored in ("sub/.hidden.txt", "README.md", "sub/picture.png"):
        (tmp_path / ignored).write_text("not data")
    found = list(read_documents([str(tmp_path)]))
    assert found == [
        Document("one", None, "d", "s"),
        Document(None, tuple(CHAT), "", "a.jsonl:2"),
        Document("", None, "", "a.jsonl:4"),
        Document("zwei\r\nZeilen ü", None, "", "b.txt"),
        Document("# three", None, "", "c.md"),
        Document("four", None, "", "d.parquet:1"),
        Document("", None, "e", "d.parquet:2"),
    ]
    assert [document.empty for document in found] == [False, False, True, False, False, False, True]
    assert found[3].sha256 == sha256("zwei\r\nZeilen ü".encode()).hexdigest()
    chat = b'[{"content":"hi","role":"user"},{"content":"ho","role":"assistant"}]'
    assert found[1].sha256 == sha256(chat).hexdigest()


def test_other_columns_and_a_row_with_both(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(lines({"body": "one", "text": "no"}, {"body": "two", "turns": CHAT}, {"turns": []}))
    one, both, none = read_documents([str(path)], text_field="body", messages_field="turns")
    assert (one.text, both.messages, none.empty) == ("one", tuple(CHAT), True)


def test_files_are_streamed(tmp_path: Path) -> None:
    """The first document is there before the broken last line is met."""
    path = tmp_path / "a.jsonl"
    path.write_text(lines({"text": "one"}) + "{broken\n")
    stream = read_documents([str(path)])
    assert next(stream).text == "one"
    with pytest.raises(BadInput, match=r"a.jsonl line 2 is not JSON"):
        next(stream)


def a_file(name: str, content: str | bytes) -> Callable[[Path], str]:
    def write(folder: Path) -> str:
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return str(folder / name)

    return write


def a_parquet(columns: dict[str, object], *, cut: int = 0, spoil: bytes = b"") -> Callable[[Path], str]:
    def write(folder: Path) -> str:
        path = folder / "a.parquet"
        pyarrow.parquet.write_table(pyarrow.table(columns), path, compression="none", use_dictionary=False)
        data = path.read_bytes()
        if spoil:
            assert spoil in data
            data = data.replace(spoil, b"\xff" * len(spoil))
        path.write_bytes(data[: len(data) - cut])
        return str(path)

    return write


def a_folder(folder: Path) -> str:
    (folder / "picture.png").write_bytes(b"x")
    return str(folder)


GOOD = lines({"text": "good"})
BAD = {
    "missing path": (lambda folder: str(folder / "no.jsonl"), r"no.jsonl does not exist"),
    "empty file": (a_file("a.jsonl", ""), r"a.jsonl is empty"),
    "unknown suffix": (a_file("a.csv", "x"), r"a.csv is none of .jsonl, .md, .ndjson, .parquet"),
    "folder without files": (a_folder, r"folder .* holds no .jsonl, .* file"),
    "text not UTF-8": (a_file("a.txt", b"abc\xe4d"), r"a.txt is not UTF-8 at byte 3"),
    "text not UTF-8 behind a BOM": (a_file("a.txt", b"\xef\xbb\xbfab\xe4d"), r"a.txt is not UTF-8 at byte 5"),
    "row not UTF-8": (a_file("a.jsonl", GOOD.encode() + b'{"text": "\xe4"}\n'), r"not UTF-8 at byte 27"),
    "broken JSON": (a_file("a.jsonl", GOOD + '{"text": "x"\n'), r"a.jsonl line 2 is not JSON \("),
    "JSON too deep": (a_file("a.jsonl", "[" * 100_000 + "\n"), r"a.jsonl line 1 is not JSON \("),
    "number too long": (a_file("a.jsonl", '{"n": ' + "1" * 5000 + "}\n"), r"a.jsonl line 1 is not JSON \("),
    "not an object": (a_file("a.jsonl", GOOD + '["x"]\n'), r"a.jsonl line 2 is not a JSON object"),
    "half a pair": (a_file("a.jsonl", '{"text": "\\ud800"}\n'), r"a.jsonl:1 holds half of a UTF-16 pair"),
    "no text field": (
        a_file("a.jsonl", lines({"body": "x", "id": 1})),
        r"a.jsonl line 1 has no field 'text'; its fields are 'body', 'id': name one with --text-field",
    ),
    "no fields": (a_file("a.jsonl", "{}\n"), r"line 1 has no field 'text'; its fields are none"),
    "many fields": (a_file("a.jsonl", lines({f"f{n}": n for n in range(20)})), r"'f11' and 8 more"),
    "text a number": (
        a_file("a.jsonl", GOOD + lines({"text": 7})),
        r"field 'text' of .*a.jsonl line 2 is a number and not a string",
    ),
    "text a list": (a_file("a.jsonl", lines({"text": ["x"]})), r"is a list and not a string"),
    "chat not a list": (
        a_file("a.jsonl", lines({"messages": "hi"})),
        r"'messages' of .* is not a list of turns",
    ),
    "turn not an object": (a_file("a.jsonl", lines({"messages": ["hi"]})), r"turn 1 in .* is not an object"),
    "turn without content": (
        a_file("a.jsonl", lines({"messages": [*CHAT, {"role": "user"}]})),
        r"turn 3 in 'messages' of .*a.jsonl line 1 has no string 'content'",
    ),
    "not parquet": (a_file("a.parquet", b"PAR1" + b"x" * 64), r"a.parquet is not a whole parquet file"),
    "parquet cut short": (
        a_parquet({"text": ["x" * 99] * 99}, cut=40),
        r"a.parquet is not a whole parquet file",
    ),
    "parquet not UTF-8": (
        a_parquet({"text": ["kitten"]}, spoil=b"kitten"),
        r"not a whole parquet file of UTF-8",
    ),
    "parquet without text": (a_parquet({"n": [1]}), r"a.parquet has no field 'text'; its fields are 'n'"),
    "parquet text a number": (a_parquet({"text": [1]}), r"field 'text' of .*a.parquet row 1 is a number"),
    "nothing named": (lambda folder: "", r"no text was named"),
}


@pytest.mark.parametrize(("make", "said"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_sentence(make: Callable[[Path], str], said: str, tmp_path: Path) -> None:
    source = make(tmp_path)
    with pytest.raises(BadInput, match=said) as caught:
        list(read_documents([source] if source else []))
    assert caught.value.exit_status == 2
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


def test_every_source_is_looked_up_before_the_first_is_read(tmp_path: Path) -> None:
    good = a_file("a.jsonl", GOOD)(tmp_path)
    with pytest.raises(BadInput, match=r"no.jsonl does not exist"):
        read_documents([good, str(tmp_path / "no.jsonl")])


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_a_document_that_would_fill_the_memory_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_LARGEST", 1 << 20)
    whole = a_file(name, lines({"text": "x" * 1000}) * 2000)(tmp_path)
    if name == "a.jsonl":
        assert sum(1 for _ in read_documents([whole])) == 2000  # a large file of small documents is fine
    large = a_file(name, lines({"text": "x" * (1 << 20)}))(tmp_path)
    with pytest.raises(BadInput, match=r"a document in .* is larger than 1 MiB"):
        list(read_documents([large]))
