"""Copying of random strings that lie in the filled region: what induction heads need of a fill.

The prompt holds random strings. After it some of them come again, token by token; a model that copies
predicts each token of the second occurrence from the row behind the same token of the first. No knowledge of
language helps, and there are hundreds of scored tokens where a needle prompt has one answer, so that few
prompts tell two fills apart.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ridgefit.errors import BadInput
from ridgefit.evaluate import needle_text
from ridgefit.evaluate.samples import Apply, Measure, Reach, Sample, SampleSet, Scored
from ridgefit.evaluate.scoring import Predictions, predictions, prefill
from ridgefit.models import LoadedModel
from ridgefit.recipe import CopyingSettings
from ridgefit.tokens import opening_ids

LEAST_STRINGS = 4
"""Strings the filled region must hold; with fewer there is nothing to confuse a string with."""
RULER = 0.5
"""Share of the repeated tokens that the exact model must predict for a sample to say something."""
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


class CopyingTask:
    """Share of tokens copied, of those that the exact model copies, and the loss on repeated tokens.

    Every string that comes again lies wholly before the longest tail and behind the last sink row of any arm.
    Its first tokens are given, the others are scored, teacher forced. A sample of which the exact model
    predicts less than half has no `copied`.
    """

    measures = (
        Measure("copied", "copied of what exact copies", "share", "higher"),
        Measure("recalled", "repeated tokens predicted", "share", "higher"),
        Measure("copy_nll", "NLL, repeated tokens", "nats", "lower"),
    )

    def __init__(self, settings: CopyingSettings) -> None:
        self.settings = settings
        self.tail = settings.tail

    def samples(self, loaded: LoadedModel, reach: Reach, seed: int, /) -> SampleSet:
        """`samples` prompts; sample i is the same whatever their number.

        Raises:
            BadInput: the filled region has no room for the strings.
        """
        build = _Builder(loaded.tokenizer, self.settings, reach)
        return SampleSet(tuple(build.sample(index, seed) for index in range(self.settings.samples)))

    def score(
        self, loaded: LoadedModel, samples: Sequence[Sample], apply: Apply, exact: Sequence[Any] | None, /
    ) -> list[Scored]:
        """One arm's predictions along the second occurrences; `exact` is what the exact arm predicted."""
        with apply():
            state = prefill(loaded.model, [sample.prompt for sample in samples])
            found = predictions(state, [sample.target for sample in samples])
        carries = [None] * len(samples) if exact is None else exact
        return [_scored(*row) for row in zip(samples, found, carries, strict=True)]


def _scored(sample: Sample, all_found: Predictions, exact: torch.Tensor | None) -> Scored:
    scored = torch.tensor(sample.facts["scored"])
    target, found = sample.target[scored], all_found.best[scored]
    carry = found if exact is None else exact
    right, known = found == target, carry == target
    scores = {
        "copied": float(right[known].double().mean()) if float(known.double().mean()) >= RULER else None,
        "recalled": float(right.double().mean()),
        "copy_nll": float(all_found.losses[scored].double().mean()),
    }
    detail: dict[str, Any] = {"right": "".join("01"[int(item)] for item in right)}
    if exact is None:
        detail["counts"] = {"repeated_tokens": len(target), "copied_by_exact": int(known.sum())}
    return Scored(scores, detail, carry)


@dataclass(frozen=True)
class _String:
    """One string in ids.

    Attributes:
        first: how it stands in the filled region.
        given: how its second occurrence begins.
        scored: how that goes on; also part of `first`.
    """

    first: list[int]
    given: list[int]
    scored: list[int]


class _Builder:
    """Prompts of one kind for one tokenizer."""

    def __init__(self, tokenizer: Any, settings: CopyingSettings, reach: Reach) -> None:
        self._tokenizer = tokenizer
        self._settings = settings
        self._reach = reach
        self._opening = list(opening_ids(tokenizer))
        special = {*tokenizer.all_special_ids, *getattr(tokenizer, "added_tokens_decoder", {})}
        self._vocabulary = sorted(set(tokenizer.get_vocab().values()) - special)

    def sample(self, index: int, seed: int) -> Sample:
        """Sample number `index`.

        Raises:
            BadInput: the filled region has no room for the strings.
        """
        s = self._settings
        kind = s.strings if s.strings != "mixed" else ("words", "numbers")[index % 2]
        # Random strings are no secret (S311).
        rng = random.Random(f"copying {kind} {seed} {index}")  # noqa: S311
        first = max(len(self._opening), self._reach.sink_rows)
        last = s.prompt - self._reach.tail
        lead = [*self._opening, *self._filler(kind, rng, first - len(self._opening))]
        strings, ids = self._strings(kind, rng, last - first)
        if len(strings) < max(s.asked, LEAST_STRINGS):
            raise BadInput(
                f"a prompt of {s.prompt} tokens has room for {len(strings)} strings between {first} rows at "
                "the start and the tail",
                "lengthen the prompt, or ask for fewer or shorter strings",
            )
        again: list[int] = []
        scored: list[int] = []
        for string in rng.sample(strings, s.asked):
            again += string.given
            scored += range(len(again), len(again) + len(string.scored))
            again += string.scored
        ids = [*lead, *ids]
        ids += self._filler(kind, rng, s.prompt - 1 - len(ids))
        return Sample(
            id=f"copying {index:05d}",
            group=kind,
            prompt=torch.tensor([*ids, again[0]]),
            target=torch.tensor(again[1:]),
            facts={"scored": [place - 1 for place in scored]},
        )

    def _strings(self, kind: str, rng: random.Random, room: int) -> tuple[list[_String], list[int]]:
        """Strings and the text that holds them, at most `room` tokens of it."""
        s = self._settings
        if kind != "numbers":
            ids = self._filler(kind, rng, max(room, 0))
            starts = range(0, len(ids) - s.length + 1, s.length)
            pieces = [ids[start : start + s.length] for start in starts]
            return [_String(piece, piece[: s.cue], piece[s.cue :]) for piece in pieces], ids
        count = 2 * max(s.asked, LEAST_STRINGS)
        keys, values = needle_text.draw_keys(rng, count), needle_text.draw_values(rng, count)
        found = [self._number(key, value) for key, value in zip(keys, values, strict=True)]
        spare = room - sum(len(string.first) for string in found)
        if spare < 0:
            return [], []
        ids = []
        for string in found:
            ids += [*self._filler(kind, rng, spare // count), *string.first]
        return found, ids

    def _number(self, key: str, value: str) -> _String:
        asked = f"{needle_text.question(key)}{needle_text.answer_prefix(key)}"
        answer = self._encode(f" {value}")
        # Some tokenizers make a token of the space, which needs no copying.
        blank = next(at for at, token in enumerate(answer) if self._tokenizer.decode([token]).strip())
        return _String(
            self._encode(f"\n{needle_text.needle_sentence(key, value)}\n"),
            self._encode(f"\n{asked}") + answer[:blank],
            answer[blank:],
        )

    def _filler(self, kind: str, rng: random.Random, count: int) -> list[int]:
        """`count` ids of the kind that strings lie in."""
        if count <= 0:
            return []
        if kind == "tokens":
            return rng.choices(self._vocabulary, k=count)
        found: list[int] = []
        while len(found) < count:
            if kind == "numbers":
                found += self._encode(next(needle_text.NoiseHaystack().units(rng)))
            else:
                words = ("".join(rng.choices(_LETTERS, k=rng.randint(3, 9))) for _ in range(64))
                found += self._encode(f" {' '.join(words)}")
        return found[:count]

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
