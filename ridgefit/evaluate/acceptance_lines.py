"""Records of finished prompts in a JSONL file: a killed evaluation goes on after the last whole one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ridgefit.errors import BadInput
from ridgefit.files import write_text
from ridgefit.runtime.speculative.pair import Pair, PairPool

Record = dict[str, Any]
Progress = Callable[[int, int, str], None]
Item = TypeVar("Item", bound="_Named")


class _Named(Protocol):
    """A job that knows the id of its prompt."""

    @property
    def id(self) -> str: ...


def scored(
    path: Path,
    jobs: Sequence[Item],
    function: Callable[[Pair, Item], list[Record]],
    pool: PairPool,
    *,
    policies: int,
    progress: Progress | None = None,
) -> list[Record]:
    """Records of all jobs in their order; those in the file are not run again, those that are run join it.

    Args:
        path: the file; may be missing.
        jobs: one per prompt.
        function: job -> one record per policy; importable by name.
        pool: where it runs.
        policies: records of a finished prompt.
        progress: called after each prompt.

    Raises:
        BadInput: a line of the file is damaged.
    """
    done = _finished(path, policies)
    waiting = [job for job in jobs if job.id not in done]
    with path.open("a", encoding="utf-8") as stream:
        for index, records in pool.map(function, waiting):
            stream.write("".join(json.dumps(record) + "\n" for record in records))
            stream.flush()
            done[waiting[index].id] = records
            if progress:
                progress(len(done), len(jobs), waiting[index].id)
    return [record for job in jobs for record in done[job.id]]


def _finished(path: Path, policies: int) -> dict[str, list[Record]]:
    """Whole prompts of the file; the file is cut to them, so that what follows does not join half a line.

    Raises:
        BadInput: a line before the last one is damaged.
    """
    if not path.is_file():
        return {}
    text = path.read_text(encoding="utf-8")
    found: dict[str, list[Record]] = {}
    for number, line in enumerate(text[: text.rfind("\n") + 1].splitlines(), 1):
        record = _parsed(path, number, line)
        found.setdefault(record["prompt"], []).append(record)
    whole = {prompt: records for prompt, records in found.items() if len(records) == policies}
    kept = "".join(json.dumps(record) + "\n" for records in whole.values() for record in records)
    if kept != text:
        write_text(path, kept)
    return whole


def _parsed(path: Path, number: int, line: str) -> Record:
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    if not isinstance(record, dict) or not {"prompt", "policy"} <= record.keys():
        raise BadInput(f"line {number} of {path} is damaged", "remove the line, and its prompt is run again")
    return record
