"""One stream of documents from any mix of files, folders and Hub data sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from ridgefit.corpus.documents import Columns, Document
from ridgefit.corpus.hub import PREFIX, HubSource, read_hub
from ridgefit.corpus.local import local_files, read_file
from ridgefit.errors import BadInput


def read_documents(
    sources: Sequence[str], *, text_field: str = "text", messages_field: str = "messages"
) -> Iterator[Document]:
    """Stream documents; every source is looked up before the first one is read.

    Args:
        sources: `.jsonl`, `.ndjson`, `.txt`, `.text`, `.md`, `.rst` or `.parquet` files, folders of them, or
            `hub:org/name[@revision][:config][:split]`. A text file is one document.
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
            readers += [partial(read_file, file, columns) for file in local_files(Path(source))]
    return (document for reader in readers for document in reader())
