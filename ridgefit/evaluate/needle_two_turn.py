"""A second question to a cache that was filled once, for the first (paper section 6.2, appendix D).

Rows that a selector chose for the first question may not serve the second, and whatever a fill lost is lost
for both. Every arm is told the right first answer before it is asked again, so that all go on from one text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ridgefit.evaluate import needle_text
from ridgefit.evaluate.needle import Prompts, answered, hidden_numbers
from ridgefit.evaluate.samples import Apply, Measure, Reach, Sample, SampleSet, Scored
from ridgefit.evaluate.scoring import predictions, prefill
from ridgefit.models import LoadedModel
from ridgefit.recipe import NeedleTwoTurnSettings


class NeedleTwoTurnTask:
    """Share of second numbers found, of their right digits, their loss; share of first numbers found.

    All needles lie in the region that every arm fills. The second question is another turn on the same
    cache, whose rows run stock; nothing of the prompt is read again.
    """

    measures = (
        Measure("strict", "second needles found", "share", "higher", binary=True),
        Measure("digits", "digits right", "share", "higher"),
        Measure("value_nll", "NLL of the second number", "nats", "lower"),
        Measure("first", "first needles found", "share", "higher", binary=True),
    )

    def __init__(self, settings: NeedleTwoTurnSettings) -> None:
        self.settings = settings
        self.tail = settings.tail

    def samples(self, loaded: LoadedModel, reach: Reach, seed: int, /) -> SampleSet:
        """`samples` prompts; sample i is the same whatever their number.

        Raises:
            BadInput: the needles do not fit between sink rows and tail, or the haystack has no text.
        """
        prompts = Prompts(loaded.tokenizer, self.settings.chat)
        cases = hidden_numbers(self.settings, loaded.tokenizer, reach, seed)
        return SampleSet(tuple(_sample(index, case, prompts) for index, case in enumerate(cases)))

    def score(
        self, loaded: LoadedModel, samples: Sequence[Sample], apply: Apply, _exact: Sequence[Any] | None, /
    ) -> list[Scored]:
        """Both answers and the loss of the second number, from one prefill.

        Samples whose second turns have one length go together: padding between two turns would count as rows
        in a layer with a window.
        """
        found: dict[str, Scored] = {}
        for length in sorted({sample.facts["turn"] for sample in samples}):
            alike = [sample for sample in samples if sample.facts["turn"] == length]
            found |= zip((sample.id for sample in alike), self._score(loaded, alike, apply), strict=True)
        return [found[sample.id] for sample in samples]

    def _score(self, loaded: LoadedModel, samples: Sequence[Sample], apply: Apply) -> list[Scored]:
        turn, most = samples[0].facts["turn"], self.settings.new_tokens
        values = [[sample.facts[name] for sample in samples] for name in ("first", "second")]
        with apply():
            state = prefill(loaded.model, [sample.prompt for sample in samples])
            first = answered(loaded, state.fork(), most, values[0])
            state.advance(torch.stack([sample.target[:turn] for sample in samples]))
            losses = predictions(state.fork(), [sample.target[turn:] for sample in samples])
            second = answered(loaded, state, most, values[1])
        rows = zip(samples, first, second, losses, strict=True)
        return [_scored(sample, a, b, loss.losses) for sample, a, b, loss in rows]


def _sample(index: int, case: needle_text.NeedleCase, prompts: Prompts) -> Sample:
    """`target` holds what is told and asked after the first question, then the second number."""
    key, value = case.others[0]
    asked = prompts.next_turn(needle_text.question(key), needle_text.answer_prefix(key))
    turn = f" {case.value}.{asked}"
    prompt, told = prompts.ids(case.prompt, turn)
    _, target = prompts.ids(case.prompt + turn, f" {value}")
    return Sample(
        id=f"needle {index:05d}",
        group=case.haystack,
        prompt=torch.tensor(prompt),
        target=torch.tensor([*told, *target]),
        facts={"first": case.value, "second": value, "turn": len(told)},
    )


def _scored(sample: Sample, first: str, second: str, losses: torch.Tensor) -> Scored:
    value = sample.facts["second"]
    scores = {
        "strict": float(needle_text.strict(second, value)),
        "digits": needle_text.digit_share(second, value),
        "value_nll": float(losses.double().mean()),
        "first": float(needle_text.strict(first, sample.facts["first"])),
    }
    detail = {"answer": second, "value": value, "first_answer": first, "first_value": sample.facts["first"]}
    return Scored(scores, detail, carry=True)
