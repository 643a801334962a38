"""A target and a draft, loaded once per process, and processes that share work on prompts."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from queue import Empty
from typing import Any, TypeVar

import torch

from ridgefit.errors import BadInput, RidgefitError
from ridgefit.models.decoder import LoadedDecoder, require_one_tokenizer
from ridgefit.models.load import load_decoder
from ridgefit.runtime.speculative.generate import require_one_vocabulary
from ridgefit.runtime.speculative.loop import Stop

SELF = "self"
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Pair:
    """A target and what drafts for it; one object twice for self-speculation."""

    target: LoadedDecoder
    draft: LoadedDecoder


def load_pair(target: dict[str, Any], draft: str) -> Pair:
    """Load both by the target's load options.

    Args:
        target: keyword arguments of `load_decoder`.
        draft: reference of the draft, or "self".

    Raises:
        BadInput: as `load_decoder`, or the two do not share their vocabulary.
    """
    own = load_decoder(**target)
    if draft == SELF:
        return Pair(own, own)
    other = load_decoder(**{**target, "ref": draft})
    require_one_tokenizer(own, other)
    require_one_vocabulary(own.model, other.model)
    return Pair(own, other)


def require_positions(pair: Pair, prompt: str, tokens: int) -> None:
    """Refuse texts that are longer than either model was made for.

    Args:
        pair: both models.
        prompt: whose text it is.
        tokens: of the prompt and its output.

    Raises:
        BadInput: how many there are and how many fit.
    """
    for role, model in (("target", pair.target), ("draft", pair.draft)):
        if model.positions is not None and tokens > model.positions:
            raise BadInput(
                f"prompt {prompt} needs {tokens} positions, the {role} has {model.positions}",
                "shorten --prompt or --new-tokens",
            )


def end_tokens(decoder: LoadedDecoder) -> frozenset[int]:
    """Ids that end an output."""
    found = getattr(decoder.model.generation_config, "eos_token_id", None)
    if found is None:
        found = decoder.tokenizer.eos_token_id
    if found is None:
        return frozenset()
    return frozenset(found if isinstance(found, list) else [int(found)])


def stop_at(ends: frozenset[int]) -> Stop:
    """Stops after an end token."""
    return lambda tokens: tokens[-1] in ends


class PairPool:
    """Runs `function(pair, item)` for many items, in this process or in several.

    Args:
        target: keyword arguments of `load_decoder`.
        draft: reference of the draft, or "self".
        pair: the two, already loaded, for work in this process.
        workers: processes; each loads the models itself and uses one thread.
    """

    def __init__(self, target: dict[str, Any], draft: str, pair: Pair, workers: int = 1) -> None:
        self._load = (target, draft)
        self._pair = pair
        self._workers = workers

    def map(
        self, function: Callable[[Pair, Item], Result], items: Sequence[Item]
    ) -> Iterator[tuple[int, Result]]:
        """Index and result of every item, as they are done; `function` must be importable by name.

        Raises:
            RidgefitError: what a process raised; the others are ended.
        """
        if self._workers == 1 or len(items) < 2:
            for index, item in enumerate(items):
                yield index, function(self._pair, item)
            return
        context = multiprocessing.get_context("spawn")
        tasks, results = context.Queue(), context.Queue()
        for task in enumerate(items):
            tasks.put(task)
        processes = [
            context.Process(target=_serve, args=(self._load, function, tasks, results), daemon=True)
            for _ in range(min(self._workers, len(items)))
        ]
        for process in processes:
            process.start()
        try:
            for _ in items:
                index, result, error = _next(results, processes)
                if error is not None:
                    raise error
                yield index, result
        finally:
            for process in processes:
                process.terminate()
                process.join()


def _next(results: Any, processes: Sequence[Any]) -> tuple[int, Any, Exception | None]:
    while True:
        try:
            found: tuple[int, Any, Exception | None] = results.get(timeout=2)
        except Empty:
            if any(process.exitcode not in (None, 0) for process in processes):
                raise RidgefitError("a worker process ended early", "use --workers 1 to see why") from None
            continue
        return found


def _serve(
    load: tuple[dict[str, Any], str], function: Callable[[Pair, Any], Any], tasks: Any, results: Any
) -> None:
    torch.set_num_threads(1)
    try:
        pair = load_pair(*load)
    except Exception as error:
        results.put((-1, None, error))
        return
    while True:
        try:
            index, item = tasks.get(timeout=1)
        except Empty:
            return
        try:
            results.put((index, function(pair, item), None))
        except Exception as error:
            results.put((index, None, error))
