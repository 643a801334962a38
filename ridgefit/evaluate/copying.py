"""Copying of random strings that lie in the filled region: what induction heads need of a fill.

The prompt is random strings one after another. After it some of them come again, token by token; a model
that copies predicts each token of the second occurrence from the row behind the same token of the first.
No language knowledge helps, and there are hundreds of scored tokens where a needle prompt has one answer,
so that few prompts tell two fills apart.
"""

from __future__ import annotations

import random
from typing import Any

import torch

from ridgefit.errors import BadInput
from ridgefit.evaluate.samples import Apply, Measure, Reach, Sample, SampleSet, Scored
from ridgefit.evaluate.scoring import forced, prefill
from ridgefit.models import LoadedModel
from ridgefit.recipe import CopyingSettings
from ridgefit.tokens import opening_ids

_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
LEAST_STRINGS = 4
"""Strings the filled region must hold; with fewer there is nothing to confuse a string with."""


class CopyingTask:
    """Share of tokens copied, of those that the exact model copies, and the loss on repeated tokens.

    Every string that comes again lies wholly before the longest tail and behind the last sink row of any arm.
    Its first `cue` tokens are given, the others are scored, teacher forced.
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
        opening = list(opening_ids(loaded.tokenizer))
        draw = _Draw(loaded.tokenizer, self.settings.strings)
        return SampleSet(
            tuple(self._sample(index, seed, opening, draw, reach) for index in range(self.settings.samples))
        )

    def score(self, loaded: LoadedModel, sample: Sample, apply: Apply, exact: Any, /) -> Scored:
        """One arm's predictions along the second occurrences; `exact` is what the exact arm predicted."""
        with apply():
            blocks = list(forced(loaded.model, prefill(loaded.model, sample.prompt), sample.target))
        scored = torch.tensor(sample.facts["scored"])
        logits = torch.cat(blocks)[scored.to(blocks[0].device)].float()
        target = sample.target[scored]
        picked = logits.gather(1, target.to(logits.device)[:, None])[:, 0]
        losses = (logits.logsumexp(dim=1) - picked).cpu()
        found = logits.argmax(dim=1).cpu()
        carry = found if exact is None else exact
        right, known = found == target, carry == target
        scores = {
            "copied": float(right[known].double().mean()) if bool(known.any()) else None,
            "recalled": float(right.double().mean()),
            "copy_nll": float(losses.double().mean()),
        }
        detail: dict[str, Any] = {"right": "".join("01"[int(item)] for item in right)}
        if exact is None:
            detail["counts"] = {"repeated_tokens": len(target), "copied_by_exact": int(known.sum())}
        return Scored(scores, detail, carry)

    def _sample(self, index: int, seed: int, opening: list[int], draw: _Draw, reach: Reach) -> Sample:
        s = self.settings
        # Random strings are no secret (S311).
        rng = random.Random(f"copying {seed} {index}")  # noqa: S311
        first = max(len(opening), reach.sink_rows)
        last = s.prompt - max(reach.tail, s.cue)
        count = (last - first) // s.length
        if count < max(s.asked, LEAST_STRINGS):
            raise BadInput(
                f"a prompt of {s.prompt} tokens has room for {max(count, 0)} strings of {s.length} tokens "
                f"between {first} rows at the start and the tail",
                "lengthen the prompt, or ask for fewer or shorter strings",
            )
        body = draw.ids(rng, s.prompt - len(opening) - s.cue)
        ids = [*opening, *body]
        starts = [last - s.length * (at + 1) for at in sorted(rng.sample(range(count), s.asked))]
        rng.shuffle(starts)
        repeated = [ids[start : start + s.length] for start in starts]
        tokens = [token for string in repeated for token in string]
        at = range(s.cue, len(tokens))
        return Sample(
            id=f"copying {index:05d}",
            group=s.strings,
            prompt=torch.tensor([*ids, *tokens[: s.cue]]),
            target=torch.tensor(tokens[s.cue :]),
            facts={"scored": [place - s.cue for place in at if place % s.length >= s.cue], "starts": starts},
        )


class _Draw:
    """Random token ids of one kind."""

    def __init__(self, tokenizer: Any, strings: str) -> None:
        self._tokenizer = tokenizer
        self._strings = strings
        special = set(tokenizer.all_special_ids)
        added = set(getattr(tokenizer, "added_tokens_decoder", {}))
        known = sorted(set(tokenizer.get_vocab().values()) - special - added)
        self._vocabulary = known

    def ids(self, rng: random.Random, count: int) -> list[int]:
        """`count` ids: of any ordinary tokens, or of random words as the tokenizer cuts them."""
        if self._strings == "tokens":
            return rng.choices(self._vocabulary, k=count)
        found: list[int] = []
        while len(found) < count:
            words = ("".join(rng.choices(_LETTERS, k=rng.randint(3, 9))) for _ in range(64))
            found += self._tokenizer(" " + " ".join(words), add_special_tokens=False)["input_ids"]
        return found[:count]
