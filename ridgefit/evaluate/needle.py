"""Retrieval of numbers that lie in the filled region, and nowhere else (paper section 3.1)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ridgefit.corpus import read_documents
from ridgefit.corpus.encoding import dated_template
from ridgefit.errors import BadInput
from ridgefit.evaluate import needle_text
from ridgefit.evaluate.samples import Apply, Measure, Reach, Sample, SampleSet, Scored
from ridgefit.evaluate.scoring import (
    Predictions,
    Prefilled,
    answers,
    end_tokens,
    predictions,
    prefill,
)
from ridgefit.models import LoadedModel
from ridgefit.recipe import NeedleSettings, NeedleTwoTurnSettings
from ridgefit.tokens import opening_ids


class NeedleTask:
    """Share of hidden numbers that a greedy answer contains, of right digits, and loss of the number.

    Every needle lies before the longest tail and behind the last sink row of any arm, so each arm has
    to bring it through its fill. The loss is a smooth score where strict retrieval is all or nothing.
    """

    measures = (
        Measure("strict", "needles found", "share", "higher", binary=True),
        Measure("digits", "digits right", "share", "higher"),
        Measure("value_nll", "NLL of the number", "nats", "lower"),
    )

    def __init__(self, settings: NeedleSettings) -> None:
        self.settings = settings
        self.tail = settings.tail

    def samples(self, loaded: LoadedModel, reach: Reach, seed: int, /) -> SampleSet:
        """`samples` prompts; sample i is the same whatever their number.

        Raises:
            BadInput: the needles do not fit between sink rows and tail, or the haystack has no text.
        """
        cases = hidden_numbers(self.settings, loaded.tokenizer, reach, seed)
        prompts = Prompts(loaded.tokenizer, self.settings.chat)
        return SampleSet(tuple(_sample(index, case, prompts) for index, case in enumerate(cases)))

    def score(
        self, loaded: LoadedModel, samples: Sequence[Sample], apply: Apply, _exact: Sequence[Any] | None, /
    ) -> list[Scored]:
        """The arm's greedy answers and its loss on the right ones, from one prefill."""
        values = [sample.facts["value"] for sample in samples]
        with apply():
            state = prefill(loaded.model, [sample.prompt for sample in samples])
            found = predictions(state.fork(), [sample.target for sample in samples])
            given = answered(loaded, state, self.settings.new_tokens, values)
        return [_scored(*row) for row in zip(samples, given, found, strict=True)]


def hidden_numbers(
    settings: NeedleSettings | NeedleTwoTurnSettings, tokenizer: Any, reach: Reach, seed: int
) -> Iterator[needle_text.NeedleCase]:
    """`samples` prompts of a task that hides numbers; number i is the same whatever their count.

    Raises:
        BadInput: the needles do not fit between sink rows and tail, or the haystack has no text.
    """
    prompts = Prompts(tokenizer, settings.chat)
    haystack = _haystack(settings.haystack)
    for index in range(settings.samples):
        # Text is hashed the same way everywhere; the numbers hidden in a prompt are no secret (S311).
        rng = random.Random(f"needle {seed} {index}")  # noqa: S311
        case = needle_text.build_case(
            rng,
            needles=settings.needles,
            haystack=haystack,
            fits=prompts.count,
            budget=settings.prompt,
            filled_until=settings.prompt - reach.tail,
            render=prompts.render,
        )
        first = min(case.prompt.index(value) for value in (case.value, *(v for _, v in case.others)))
        if prompts.count(case.prompt[:first]) < reach.sink_rows:
            raise BadInput(
                f"a needle of sample {index} lies within the {reach.sink_rows} sink rows",
                "use fewer sink rows",
            )
        yield case


def answered(loaded: LoadedModel, state: Prefilled, most: int, values: Sequence[str]) -> list[str]:
    """Greedy answers, each up to where its scores are final: an end token, the budget, or the number itself.

    Args:
        loaded: model and tokenizer.
        state: the questions' prefill; its cache is used up.
        most: budget of tokens.
        values: the number that each answer should hold.
    """

    def read(ids: list[int]) -> str:
        return str(loaded.tokenizer.decode(ids, skip_special_tokens=True))

    def enough(row: int, ids: list[int]) -> bool:
        return needle_text.strict(read(ids), values[row])

    return [read(ids) for ids in answers(state, most, end_tokens(loaded.model), enough)]


def _haystack(name: str) -> needle_text.Haystack:
    if name == "noise":
        return needle_text.NoiseHaystack()
    return needle_text.TextHaystack([document.text for document in read_documents([name]) if document.text])


def _sample(index: int, case: needle_text.NeedleCase, prompts: Prompts) -> Sample:
    prompt, target = prompts.ids(case.prompt, f" {case.value}")
    return Sample(
        id=f"needle {index:05d}",
        group=case.haystack,
        prompt=torch.tensor(prompt),
        target=torch.tensor(target),
        facts={"value": case.value, "depth": round(case.depth, 4)},
    )


def _scored(sample: Sample, answer: str, found: Predictions) -> Scored:
    value = sample.facts["value"]
    scores = {
        "strict": float(needle_text.strict(answer, value)),
        "digits": needle_text.digit_share(answer, value),
        "value_nll": float(found.losses.double().mean()),
    }
    return Scored(scores, {"answer": answer, "value": value, "depth": sample.facts["depth"]}, carry=True)


class Prompts:
    """How a tokenizer wants a question with the beginning of its answer.

    Args:
        tokenizer: transformers tokenizer.
        chat: put the text into the chat template; None does so where there is one.

    Raises:
        BadInput: a chat is wanted and the tokenizer has no template.
    """

    def __init__(self, tokenizer: Any, chat: bool | None) -> None:
        has_template = bool(getattr(tokenizer, "chat_template", None))
        if chat and not has_template:
            raise BadInput("the tokenizer has no chat template", "leave `chat` out or set it to false")
        self._tokenizer = tokenizer
        self._chat = has_template if chat is None else chat
        self._template = dated_template(tokenizer) if self._chat else None
        # A template writes its own BOS; the tokenizer's would be a second one.
        self._opening = [] if self._chat else list(opening_ids(tokenizer))

    def render(self, user: str, prefix: str) -> str:
        """The prompt's text; the answer prefix follows the assistant's header (as in RULER)."""
        if not self._chat:
            return needle_text.plain(user, prefix)
        # Thinking is off (paper section 3.2); templates that know no such switch ignore it.
        header = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": user}],
            chat_template=self._template,
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=False,
        )
        return str(header) + (prefix.lstrip() if header[-1:].isspace() else prefix)

    def next_turn(self, user: str, prefix: str) -> str:
        """What follows an answer when `user` is asked next and the answer to that begins with `prefix`.

        Raises:
            BadInput: the chat template leaves earlier answers out.
        """
        if not self._chat:
            return f"\n{needle_text.plain(user, prefix)}"
        mark = "1234567"
        header = self._tokenizer.apply_chat_template(
            [
                {"role": "user", "content": "?"},
                {"role": "assistant", "content": mark},
                {"role": "user", "content": user},
            ],
            chat_template=self._template,
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=False,
        )
        _, found, turn = str(header).partition(mark)
        if not found:
            raise BadInput("the chat template leaves earlier answers out", "set `chat` to false")
        return turn + (prefix.lstrip() if turn[-1:].isspace() else prefix)

    def count(self, text: str) -> int:
        """Tokens of a rendered prompt or of its beginning."""
        return len(self._opening) + len(self._encode(text))

    def ids(self, prompt: str, answer: str) -> tuple[list[int], list[int]]:
        """Ids of a prompt and of the answer that continues it.

        The answer's ids are those of the joined text where the prompt's ids are its beginning, so that
        no tokenizer puts a word boundary of its own between them.
        """
        head, joined = self._encode(prompt), self._encode(prompt + answer)
        tail = joined[len(head) :] if joined[: len(head)] == head else self._encode(answer)
        return [*self._opening, *head], tail

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
