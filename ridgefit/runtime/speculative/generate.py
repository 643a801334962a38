"""Speculative decoding as a call of one's own, and inside `target.generate(..., custom_generate=…)`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ridgefit.errors import BadInput
from ridgefit.runtime.draft.controllers import Controller
from ridgefit.runtime.draft.drafter import Choose, Drafter
from ridgefit.runtime.draft.policy import Policy
from ridgefit.runtime.draft.settings import CacheSettings
from ridgefit.runtime.speculative.choose import Chooser
from ridgefit.runtime.speculative.known import Known
from ridgefit.runtime.speculative.loop import Round, Speculation, Stop
from ridgefit.runtime.speculative.verify import StoredVerifier, TargetVerifier, Verifier

Emit = Callable[[list[int]], None]
"""Called with the tokens that were just added."""


@dataclass(frozen=True)
class Decoded:
    """One request's output and what it took.

    Attributes:
        tokens: output ids.
        rounds: every verification of at least one drafted token.
        refreshes: re-selections of the draft cache.
        selections: all of them, the first one included.
        score_seconds: time spent on selections.
        changed: share of selected columns replaced, per refresh.
        widest: most columns that draft attention saw while decoding.
        budget: most it may see; None without compression.
        repeated: draft tokens run again to take recurrent states back.
        prefill_seconds: reading the prompt, on both sides, with the first selection.
        seconds: everything after it, measurements of attention mass left out.
    """

    tokens: list[int]
    rounds: list[Round]
    refreshes: int
    selections: int
    score_seconds: float
    changed: list[float]
    widest: int
    budget: int | None
    repeated: int
    prefill_seconds: float
    seconds: float


@dataclass(frozen=True)
class Draft:
    """A draft model and how its cache is kept small.

    Attributes:
        model: draft model; the target itself for self-speculation.
        policy: see `ridgefit.runtime.draft.POLICIES`.
        settings: sizes of the cache.
        controller: makes a new controller for each request; None takes the policy's own.
        drafted: tokens drafted per round.
    """

    model: Any
    policy: Policy
    settings: CacheSettings | None = None
    controller: Callable[[], Controller] | None = None
    drafted: int = 5


def decode(
    target: Any,
    draft: Draft,
    prompt: Sequence[int],
    new_tokens: int,
    *,
    stop: Stop = lambda _: False,
    chooser: Chooser | None = None,
    measure_every: int | None = None,
    emit: Callable[[list[int]], None] = lambda _: None,
) -> Decoded:
    """Decode one prompt with a target model; the output is the target's own.

    Args:
        target: model whose output it is.
        draft: what drafts for it.
        prompt: token ids.
        new_tokens: most output tokens.
        stop: whether decoding ends with the last of these tokens.
        chooser: how logits become tokens; greedy if absent.
        measure_every: tokens between measurements of attention mass in sight.
        emit: called with the tokens that each round adds.

    Raises:
        BadInput: vocabularies of different sizes; a draft that has no cache to compress; sizes that do not
            fit.
    """
    require_one_vocabulary(target, draft.model)
    picked = chooser or Chooser()
    return _run(TargetVerifier(target, picked), draft, picked, prompt, new_tokens, stop, measure_every, emit)


def replay(
    draft: Draft,
    prompt: Sequence[int],
    continuation: Sequence[int],
    *,
    stop: Stop = lambda _: False,
    measure_every: int | None = None,
) -> Decoded:
    """What greedy decoding would have been with this draft, given the target's greedy continuation."""
    verifier = StoredVerifier(continuation)
    return _run(verifier, draft, Chooser(), prompt, len(continuation), stop, measure_every, lambda _: None)


def replay_known(
    draft: Draft,
    known: Known,
    new_tokens: int,
    *,
    stop: Stop = lambda _: False,
    measure_every: int | None = None,
) -> Decoded:
    """Decoding with this draft, given the text that the target chose by itself.

    Greedy text: the real loop's rounds. Sampled text: rounds distributed as those of the real loop that
    committed this text.

    Args:
        draft: what drafts.
        known: of `known_text`, with at least as many tokens beyond its end as are drafted.
        new_tokens: most output tokens, as when the text was made.
        stop: as when the text was made.
        measure_every: as in `decode`.
    """
    verifier = StoredVerifier(known.tokens)
    return _run(
        verifier, draft, known.drafts(), known.prompt, new_tokens, stop, measure_every, lambda _: None
    )


def drafting(
    draft: Draft, report: Callable[[Decoded], None] = lambda _: None, *, streamer: Any = None
) -> Callable[..., Tensor]:
    """A decoding method for transformers: `target.generate(ids, custom_generate=drafting(draft))`.

    Processors, stopping criteria and end tokens are those of the call. Batch 1.

    Args:
        draft: what drafts.
        report: called with what it took.
        streamer: gets every new token; transformers hands the call's own only the prompt, because it does not
            pass it on to a method of one's own.
    """

    def run(
        model: Any, prompt: list[int], new_tokens: int, stop: Stop, chooser: Chooser, emit: Emit
    ) -> list[int]:
        decoded = decode(model, draft, prompt, new_tokens, stop=stop, chooser=chooser, emit=emit)
        report(decoded)
        return decoded.tokens

    return inside_generate(run, streamer=streamer)


def inside_generate(
    run: Callable[[Any, list[int], int, Stop, Chooser, Emit], list[int]], *, streamer: Any = None
) -> Callable[..., Tensor]:
    """A decoding loop as transformers' `custom_generate`.

    Args:
        run: model, prompt, most new tokens, stop, chooser, called with new tokens -> all new tokens.
        streamer: gets every new token.
    """

    def custom_generate(
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        synced_gpus: bool = False,
        **model_kwargs: Any,
    ) -> Tensor:
        del synced_gpus
        _require_one_row(input_ids, model_kwargs)

        def stop(tokens: Sequence[int]) -> bool:
            ids = torch.tensor([list(tokens)], device=input_ids.device)
            return bool(stopping_criteria(ids, None)[0])

        def emit(tokens: list[int]) -> None:
            for token in tokens:
                if streamer is not None:
                    streamer.put(torch.tensor([token]))

        prompt = input_ids[0].tolist()
        processor = logits_processor if len(logits_processor) else None
        chooser = Chooser(sample=bool(generation_config.do_sample), process=processor)
        tokens = run(model, prompt, generation_config.max_length - len(prompt), stop, chooser, emit)
        if streamer is not None:
            streamer.end()
        new = torch.tensor([tokens], dtype=input_ids.dtype, device=input_ids.device)
        return torch.cat([input_ids, new], dim=1)

    return custom_generate


def require_one_vocabulary(target: Any, draft: Any) -> None:
    """Refuse models whose token ids cannot mean the same.

    Raises:
        BadInput: both sizes.
    """
    sizes = [int(model.config.get_text_config(decoder=True).vocab_size) for model in (target, draft)]
    if sizes[0] != sizes[1]:
        raise BadInput(
            f"the target has a vocabulary of {sizes[0]} tokens and the draft one of {sizes[1]}",
            "use a draft with the target's tokenizer",
        )


def require_whole_round(drafted: int, new_tokens: int) -> None:
    """Refuse outputs so short that no round drafts the full number, on which acceptance lengths rest.

    Raises:
        BadInput: both numbers.
    """
    if new_tokens <= drafted:
        raise BadInput(
            f"in {new_tokens} new tokens no round can draft {drafted}",
            f"give at least {drafted + 1} new tokens, or draft fewer",
        )


def _require_one_row(input_ids: Tensor, model_kwargs: dict[str, Any]) -> None:
    if input_ids.shape[0] != 1:
        raise BadInput(
            f"drafting works on one prompt at a time, and {input_ids.shape[0]} were given",
            "call generate once for each",
        )
    mask = model_kwargs.get("attention_mask")
    if mask is not None and not bool(mask.bool().all()):
        raise BadInput("the prompt is padded, and drafting works on plain prompts", "leave padding out")


def _run(
    verifier: Verifier,
    draft: Draft,
    chooser: Choose,
    prompt: Sequence[int],
    new_tokens: int,
    stop: Stop,
    measure_every: int | None,
    emit: Callable[[list[int]], None],
) -> Decoded:
    drafter = Drafter(draft.model, draft.policy, draft.settings)
    controller = draft.controller() if draft.controller else None
    speculation = Speculation(
        verifier, drafter, chooser, controller, drafted=draft.drafted, measure_every=measure_every
    )
    started = time.perf_counter()
    decoding = speculation.start(prompt)
    drafter.wait()
    read = time.perf_counter()
    for tokens in speculation.rounds(decoding, new_tokens, stop):
        emit(tokens)
    drafter.wait()
    spent, ended = drafter.spent, time.perf_counter()
    return Decoded(
        tokens=decoding.generated,
        rounds=decoding.rounds,
        refreshes=spent.refreshes,
        selections=spent.selections,
        score_seconds=spent.score_seconds,
        changed=spent.changed,
        widest=drafter.widest,
        budget=drafter.budget,
        repeated=spent.repeated,
        prefill_seconds=read - started,
        seconds=ended - read - spent.measure_seconds,
    )
