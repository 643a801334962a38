"""What a model retrieves by itself with a compressed cache: numbers outside its newest columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ridgefit.errors import BadInput
from ridgefit.evaluate import needle_text
from ridgefit.evaluate.acceptance_summary import NeedleScore
from ridgefit.evaluate.intervals import bca
from ridgefit.evaluate.needle import Prompts, hidden_numbers
from ridgefit.evaluate.samples import Reach
from ridgefit.models.decoder import LoadedDecoder
from ridgefit.recipe import NEEDLE_PROMPT, NeedleSettings
from ridgefit.recipe.drafting import AcceptanceSettings
from ridgefit.runtime.draft import CacheSettings
from ridgefit.runtime.speculative import Draft
from ridgefit.runtime.speculative.pair import end_tokens
from ridgefit.runtime.speculative.standalone import alone

ANSWER = 24  # tokens; a number of seven digits takes at most seven, and an answer ends once it is right


@dataclass(frozen=True)
class Hidden:
    """A prompt that asks for a number which lies in it, outside its newest columns.

    Attributes:
        id: name of the prompt.
        tokens: ids.
        value: the number.
    """

    id: str
    tokens: tuple[int, ...]
    value: str


def require_needles_fit(settings: AcceptanceSettings) -> None:
    """Refuse prompts that are too short to hide a number in.

    Raises:
        BadInput: the longest of them is.
    """
    length = max(settings.prompt)
    if length < NEEDLE_PROMPT:
        raise BadInput(
            f"needles need prompts of at least {NEEDLE_PROMPT} tokens, and the longest has {length}",
            "raise prompt=, or leave needles out",
        )


def hidden_prompts(
    target: LoadedDecoder, settings: AcceptanceSettings, cache: CacheSettings, seed: int
) -> list[Hidden]:
    """`settings.needles` prompts of the longest prompt length.

    Raises:
        BadInput: the number does not fit before the newest columns of the budget.
    """
    length = max(settings.prompt)
    asked = NeedleSettings(
        prompt=length, tail=min(cache.columns(length), length), samples=max(settings.needles, 1)
    )
    prompts = Prompts(target.tokenizer, asked.chat)
    found = []
    # No window of the newest columns alone, however large, sees the number.
    cases = hidden_numbers(asked, target.tokenizer, Reach(tail=asked.tail, sink_rows=0), seed)
    try:
        for index, case in enumerate(cases):
            ids, _ = prompts.ids(case.prompt, f" {case.value}")
            found.append(Hidden(f"needle {index:05d}", tuple(ids), case.value))
    except BadInput as error:
        # What a needle task calls the tail is here the budget.
        raise BadInput(error.what, "raise prompt=, lower the budget, or leave needles out") from error
    return found


def score_hidden(target: LoadedDecoder, hidden: Hidden, drafts: Mapping[str, Draft]) -> list[dict[str, Any]]:
    """Records of one prompt, one per policy: the target answers by itself, greedily."""
    ends, start = end_tokens(target), len(hidden.tokens)

    def read(tokens: Sequence[int]) -> str:
        return str(target.tokenizer.decode(list(tokens), skip_special_tokens=True))

    def stop(tokens: Sequence[int]) -> bool:
        return tokens[-1] in ends or needle_text.strict(read(tokens[start:]), hidden.value)

    records = []
    for name, draft in drafts.items():
        answer = read(alone(draft, hidden.tokens, ANSWER, stop=stop).tokens)
        records.append(
            {
                "prompt": hidden.id,
                "policy": name,
                "value": hidden.value,
                "answer": answer,
                "found": needle_text.strict(answer, hidden.value),
                "digits": needle_text.digit_share(answer, hidden.value),
            }
        )
    return records


def needle_scores(
    records: Sequence[Mapping[str, Any]], policies: Sequence[str], *, resamples: int, seed: int
) -> tuple[NeedleScore, ...]:
    """Retrieval of every policy, paired with the whole cache's over prompts."""
    found = {
        name: {r["prompt"]: float(r["found"]) for r in records if r["policy"] == name} for name in policies
    }
    scores = []
    for name in policies:
        gaps = [found[name][prompt] - found["full"][prompt] for prompt in found["full"]]
        interval = bca(gaps, resamples=resamples, seed=seed)
        scores.append(
            NeedleScore(
                policy=name,
                found=fmean(found[name].values()),
                digits=fmean(float(r["digits"]) for r in records if r["policy"] == name),
                minus_full=interval.mean,
                low=interval.low,
                high=interval.high,
                n=interval.n,
            )
        )
    return tuple(scores)
