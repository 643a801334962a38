"""Documents from a Hub data set, and what its failures mean in one sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ridgefit.corpus.documents import Columns, Document
from ridgefit.errors import BadInput

PREFIX = "hub:"
_FORM = re.compile(
    r"(?P<name>\w[\w.-]*/\w[\w.-]*)(?:@(?P<revision>[^:@]+))?"
    r"(?::(?P<config>[^:\[\]]*)(?::(?P<split>[^:]+(?:\[[^\]]*\])?))?)?"
)
_UNREACHABLE = {"ConnectionError", "TransportError", "TimeoutException", "LocalEntryNotFoundError"}


@dataclass(frozen=True, slots=True)
class HubSource:
    """`hub:org/name[@revision][:config][:split]`, read once.

    Attributes:
        name: `org/name`.
        revision: branch, tag or commit; None is the main branch.
        config: subset; None is the data set's default.
        split: `train` unless named; slices such as `train[:1000]` are allowed.
    """

    name: str
    revision: str | None = None
    config: str | None = None
    split: str = "train"

    @classmethod
    def parse(cls, source: str) -> Self:
        """Read the written form.

        Raises:
            BadInput: it has another form.
        """
        match = _FORM.fullmatch(source.removeprefix(PREFIX))
        if not match:
            raise BadInput(
                f"'{source}' does not name a Hub data set", "write hub:org/name[@revision][:config][:split]"
            )
        parts = match.groupdict()
        return cls(parts["name"], parts["revision"], parts["config"] or None, parts["split"] or "train")


def read_hub(source: HubSource, columns: Columns) -> Iterator[Document]:
    """Fetch one split, at one commit, and stream its documents.

    The commit goes into each document's `source`. With `HF_HUB_OFFLINE=1` the local cache is read.

    Raises:
        BadInput: offline, gated, missing, not public, a script data set, an unknown subset or split, no text.
    """
    if Path(source.name).exists():
        raise BadInput(
            f"a local folder hides the Hub data set {source.name}",
            f"write '{source.name}' without '{PREFIX}'",
        )
    revision = _commit(source)
    yield from read_table(source, revision, columns)


def read_table(source: HubSource, revision: str | None, columns: Columns) -> Iterator[Document]:
    """Load a split through `datasets`, without streaming, and turn its rows into documents.

    Args:
        source: which data set; its name may be a local folder of parquet or JSONL files.
        revision: the commit to load, or None for whatever the cache holds.
        columns: which columns to read; no other is decoded.

    Raises:
        BadInput: as `read_hub`.
    """
    import datasets

    where = f"data set {source.name}"
    try:
        builder = datasets.load_dataset_builder(source.name, source.config, revision=revision)
        builder.download_and_prepare()
        table = builder.as_dataset(split=source.split)
    except Exception as error:
        raise _translated(error, source) from error
    commit = str(builder.hash)
    if revision and _is_commit(revision) and _is_commit(commit) and commit != revision:
        raise BadInput(
            f"{where} is cached at {commit[:12]} and not at {revision[:12]}", "go online or ask for that one"
        )
    columns.require_any(table.column_names, where)
    # Not a `source` column: the commit is the better label.
    wanted = [n for n in (columns.text, columns.messages, "domain") if n in table.column_names]
    pinned = f"{PREFIX}{source.name}@{commit}:{builder.config.name}:{source.split}"
    for number, row in enumerate(table.select_columns(wanted), start=1):
        yield columns.document(row, f"{where} row {number}", f"{pinned}#{number}")


def _commit(source: HubSource) -> str | None:
    """The commit behind a revision: one cheap request that also tests access before any download."""
    import huggingface_hub

    if huggingface_hub.is_offline_mode():
        return source.revision
    try:
        info = huggingface_hub.HfApi().dataset_info(source.name, revision=source.revision)
    except Exception as error:
        raise _translated(error, source) from error
    return info.sha


def _translated(error: Exception, source: HubSource) -> Exception:
    """The sentence for a failure of the Hub client or `datasets`; an unknown failure comes back as it is."""
    names = {cls.__name__ for cls in type(error).__mro__}
    text = str(error)
    where = f"Hub data set {source.name}"
    if "GatedRepoError" in names or "gated dataset" in text:
        page = f"https://huggingface.co/datasets/{source.name}"
        return BadInput(f"{where} is gated", f"accept its terms at {page}, then run `hf auth login`")
    if "scripts are no longer supported" in text:
        return BadInput(
            f"{where} is a loading script, which is never run",
            "use a copy in parquet (revision refs/convert/parquet)",
        )
    if "RevisionNotFoundError" in names or text.startswith("Revision "):
        return BadInput(f"{where} has no revision '{source.revision}'", "name a branch, a tag or a commit")
    if names & {"RepositoryNotFoundError", "DatasetNotFoundError", "HFValidationError"}:
        return BadInput(f"{where} does not exist or is private", "check the name, or run `hf auth login`")
    if "OfflineModeIsEnabled" in names or "OfflineModeIsEnabled" in text:
        return BadInput(
            f"{where} is not in the cache and HF_HUB_OFFLINE is set", "unset it or give local files"
        )
    if names & _UNREACHABLE or "Couldn't reach" in text:
        return BadInput(
            f"the Hub cannot be reached for {source.name}",
            "check the network, set HF_HUB_OFFLINE=1 to read the cache, or give local files",
        )
    if "EmptyDatasetError" in names or "DataFilesNotFoundError" in names:
        return BadInput(f"{where} holds no file that `datasets` can read", "choose another data set")
    if isinstance(error, ValueError) and ("BuilderConfig" in text or "Config name is missing" in text):
        return BadInput(
            f"{where} has no subset '{source.config}' ({_short(text)})", "write hub:org/name:subset:split"
        )
    if isinstance(error, ValueError) and "split" in text.lower():
        return BadInput(
            f"{where} has no split '{source.split}' ({_short(text)})", "write hub:org/name::split"
        )
    if names & {"DatasetsError", "HfHubHTTPError", "OSError"}:
        return BadInput(f"{where} cannot be read ({_short(text)})", "look at its page, or give local files")
    return error


def _is_commit(revision: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{40}", revision) is not None


def _short(text: Any) -> str:
    return " ".join(str(text).split())[:200]
