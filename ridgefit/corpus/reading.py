"""One stream of documents from any mix of files, folders and Hub data sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from ridgefit.corpus.documents import Columns, Document
from ridgefit.corpus.hub import PREFIX, HubSource, read_hub
from ridgefit.corpus.local import local_files, read_file
from ridgefit.errors import BadInput

_BUNDLED = "bundled:"
_FOLDER = Path(__file__).parents[1] / "bundled"


def read_documents(
    sources: Sequence[str], *, text_field: str = "text", messages_field: str = "messages"
) -> Iterator[Document]:
    """Stream documents; every source is looked up before the first one is read.

    Args:
        sources: `.jsonl`, `.ndjson`, `.txt`, `.text`, `.md`, `.rst` or `.parquet` files, folders of them,
            `hub:org/name[@revision][:config][:split]`, or `bundled:NAME`. A text file is one document.
        text_field: column of plain text.
        messages_field: column of chat turns `{role, content}`; where a row has both, the chat is taken.

    Raises:
        BadInput: at once for a source that cannot be there, while reading for a row that cannot be read.
    """
    columns = Columns(text_field, messages_field)
    if not sources:
        raise BadInput("no text was named", "name files, folders or Hub data sets with --data")
    readers: list[Callable[[], Iterator[Document]]] = []
    for source in sources:
        if source.startswith(PREFIX):
            readers.append(partial(read_hub, HubSource.parse(source), columns))
        else:
            path = _bundled(source) if source.startswith(_BUNDLED) else Path(source)
            readers += [partial(read_file, file, columns) for file in local_files(path)]
    return (document for reader in readers for document in reader())


def _bundled(source: str) -> Path:
    """The text that comes with ridgefit under this name."""
    known = {path.stem: path for path in sorted(_FOLDER.glob("*.jsonl"))}
    name = source.removeprefix(_BUNDLED)
    if name not in known:
        raise BadInput(f"there is no bundled text {name!r}", f"bundled are: {', '.join(known) or 'none'}")
    return known[name]
