"""A draft model with a compressed cache: proposes tokens, takes back what was refused, selects again."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from ridgefit.models.attending import Plain, attending, decoder_of, rotates
from ridgefit.models.rollback import new_cache, subset_cache, subset_layers
from ridgefit.models.stepper import Stepper
from ridgefit.models.subset import SubsetColumns
from ridgefit.runtime.draft.policy import Policy
from ridgefit.runtime.draft.queries import QueryTape
from ridgefit.runtime.draft.selecting import Sums, drift, mean_queries, retained, select
from ridgefit.runtime.draft.settings import CacheSettings

_SPARE = 18  # queries kept beyond the observed ones: drafted tokens may be taken back


class Choose(Protocol):
    """Picks the next token from logits `[vocab]` after a prefix; the distribution if it sampled."""

    def __call__(self, prefix: Sequence[int], logits: Tensor, /) -> tuple[int, Tensor | None]:
        """The token, and `[vocab]` probabilities or None."""
        ...


@dataclass(frozen=True)
class Proposal:
    """Drafted tokens.

    Attributes:
        tokens: in order.
        probabilities: what each was drawn from, `[drafted, vocab]`; None if they were not sampled.
        entropies: of the draft's distributions at temperature 1, in nats.
        top1: probability of the most likely token in each.
    """

    tokens: list[int]
    probabilities: Tensor | None
    entropies: list[float]
    top1: list[float]


@dataclass
class Spent:
    """What a request has cost.

    Attributes:
        refreshes: selections after the first.
        selections: all selections.
        score_seconds: time in all selections.
        measure_seconds: time in measurements of attention mass, which decoding does not need.
        changed: share of selected columns that each refresh replaced.
        repeated: tokens run again to take recurrent states back.
    """

    refreshes: int = 0
    selections: int = 0
    score_seconds: float = 0.0
    measure_seconds: float = 0.0
    changed: list[float] = field(default_factory=list)
    repeated: int = 0


@dataclass(frozen=True)
class DraftFork:
    """A drafter's present."""

    stepper: Any
    tape: Any
    reference: Any
    spent: Spent
    last: int


class Drafter:
    """One request's draft state, batch 1.

    Args:
        model: draft model.
        policy: how its cache is kept small.
        settings: sizes; not needed by a policy that keeps everything.
    """

    def __init__(self, model: Any, policy: Policy, settings: CacheSettings | None = None) -> None:
        if policy.recent is not None and settings is None:
            raise ValueError(f"policy {policy.name} needs cache settings")
        self.model = model
        self.policy = policy
        self.settings = settings or CacheSettings(keep_ratio=1.0)
        self.spent = Spent()
        self.budget: int | None = None
        self.recent = 0
        self._decoder = decoder_of(model)
        self._stepper: Stepper | None = None
        self._layers: dict[int, SubsetColumns] = {}
        self._tape = QueryTape((), (), 0)
        self._sums: dict[int, Sums] = {}
        self._reference: dict[int, Tensor] = {}
        self._last = 0
        self._generator = torch.Generator().manual_seed(self.settings.seed)

    @property
    def length(self) -> int:
        """Tokens in the draft's cache."""
        return self._stepping().length

    @property
    def widest(self) -> int:
        """Most columns that attention has seen while decoding, over layers; 0 if nothing is compressed."""
        return max((layer.widest for layer in self._layers.values()), default=0)

    @property
    def since(self) -> int:
        """Tokens since the last selection."""
        return self.length - self._last

    def prefill(self, prompt: Sequence[int]) -> None:
        """Read all of a prompt but its last token with the whole cache in sight, then select."""
        self._build(len(prompt))
        with self._tapped():
            if len(prompt) > 1:
                self._stepping().feed(prompt[:-1])
        for number, sums in self._sums.items():
            sums.add(self._layers[number], self._tape, number)
        self._tape.trim(self._observed() + _SPARE)
        if self.budget is not None:
            for layer in self._layers.values():
                layer.dense = False
        self._stepping().mark()
        self._last = self.length
        self.select_if_needed()

    def propose(self, committed: Sequence[int], count: int, choose: Choose) -> Proposal:
        """Draft `count` tokens after the committed ones; those not yet read are read first."""
        stepper = self._stepping()
        tokens: list[int] = []
        probabilities: list[Tensor] = []
        certainty: list[Tensor] = []
        with self._tapped():
            logits = self._feed(committed[stepper.length :])
            stepper.mark()
            while True:
                token, drawn = choose([*committed, *tokens], logits)
                tokens.append(token)
                certainty.append(_certainty(logits))
                if drawn is not None:
                    probabilities.append(drawn)
                if len(tokens) == count:
                    break
                logits = stepper.feed([token])[-1]
        entropies, top1 = torch.stack(certainty).T.tolist()
        return Proposal(tokens, torch.stack(probabilities) if probabilities else None, entropies, top1)

    def settle(self, length: int) -> None:
        """Forget what was drafted beyond `length` tokens, and add committed attention to the sums."""
        stepper = self._stepping()
        with self._tapped():
            gone = max(stepper.length - length, 0)
            if stepper.recurrent and gone:
                self._tape.cut(stepper.length - stepper.marked)
            else:
                self._tape.cut(gone)
            self.spent.repeated += stepper.rollback(min(length, stepper.length))
        self._count_attention()

    def select_if_needed(self) -> None:
        """The first selection: after the prefill, or once a short prompt has outgrown the budget."""
        waiting = any(layer.selection.columns is None for layer in self._layers.values())
        if self.policy.scorer is not None and waiting and self._outgrown():
            self._select(first=True)

    def refresh(self) -> None:
        """Score what is stored by the newest committed queries, and select again."""
        if self.policy.scorer is not None and self._outgrown():
            self._select(first=False)
        self._last = self.length

    def drift(self) -> float:
        """How far the newest queries point from where they did at the last selection."""
        if not self._reference:
            return 0.0
        return drift(mean_queries(self._tape, self._layers, self._observed()), self._reference)

    def retained(self) -> float:
        """Share of the newest query's full attention on columns in sight, over layers and heads."""
        self.wait()
        started = time.perf_counter()
        found = retained(self._tape, self._layers)
        self.spent.measure_seconds += time.perf_counter() - started
        return found

    def wait(self) -> None:
        """Let a GPU finish, so that what was measured is its own."""
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)

    def fork(self) -> DraftFork:
        """The present, to come back to after an excursion; not for policies that sum attention."""
        if self._sums:
            raise ValueError("summed attention cannot be taken back")
        spent = Spent(**{**vars(self.spent), "changed": list(self.spent.changed)})
        return DraftFork(self._stepping().fork(), self._tape.fork(), dict(self._reference), spent, self._last)

    def restore(self, state: DraftFork) -> None:
        """Back to a fork."""
        self._stepping().restore(state.stepper)
        self._tape.restore(state.tape)
        self._reference, self._last = dict(state.reference), state.last
        self.spent = Spent(**{**vars(state.spent), "changed": list(state.spent.changed)})

    def _build(self, prompt: int) -> None:
        recent = self.policy.recent
        if recent is None:
            self._stepper = Stepper(self.model, new_cache(self.model))
            return
        self.budget = self.settings.columns(prompt)
        self.recent = recent(self.settings, self.budget)
        cache = subset_cache(self.model, self.budget, self.recent)
        self._stepper = Stepper(self.model, cache)
        self._layers = subset_layers(cache)
        for layer in self._layers.values():
            layer.dense = True
        turned = [layer for layer in self._layers if rotates(self._decoder, layer)]
        self._tape = QueryTape(self._layers, turned, None if self.policy.sums else self._observed() + _SPARE)
        self._sums = {layer: Sums() for layer in self._layers} if self.policy.sums else {}

    def _stepping(self) -> Stepper:
        if self._stepper is None:
            raise ValueError("the drafter has read no prompt yet")
        return self._stepper

    def _feed(self, tokens: Sequence[int]) -> Tensor:
        """Logits `[vocab]` after tokens; one by one where a window is short or attention is summed."""
        stepper = self._stepping()
        if self._sums or (self._layers and len(tokens) > self.recent):
            for token in tokens[:-1]:
                stepper.feed([token])
            tokens = tokens[-1:]
        return stepper.feed(tokens)[-1]

    def _observed(self) -> int:
        return self.settings.observe

    def _outgrown(self) -> bool:
        return self.budget is not None and self.length > self.budget

    def _select(self, *, first: bool) -> None:
        scorer = self.policy.scorer
        if scorer is None or self.budget is None:
            return
        self.wait()
        started = time.perf_counter()
        changed = select(
            scorer,
            self._layers,
            self._tape,
            self._decoder,
            self.settings,
            keep=self.budget - self.recent,
            sums=self._sums,
            generator=self._generator,
        )
        self._reference = mean_queries(self._tape, self._layers, self._observed())
        self._last = self.length
        self.wait()
        self.spent.selections += 1
        self.spent.score_seconds += time.perf_counter() - started
        if not first:
            self.spent.refreshes += 1
            self.spent.changed.append(changed)

    def _count_attention(self) -> None:
        for number, sums in self._sums.items():
            sums.add(self._layers[number], self._tape, number)

    @contextmanager
    def _tapped(self) -> Iterator[None]:
        if not self._layers:
            with nullcontext():
                yield
            return

        def attend(
            layer: int, queries: Tensor, _keys: Tensor, scaling: float, mask: Any, plain: Plain
        ) -> Any:
            self._tape.take(layer, queries, scaling)
            return plain(mask)

        with attending(self._decoder, attend, rotary=self._tape.take_rotary, layer=min(self._layers)):
            yield


def _certainty(logits: Tensor) -> Tensor:
    """Entropy in nats and largest probability, `[2]`, of logits `[vocab]`."""
    logs = logits.float().log_softmax(-1)
    return torch.stack([-(logs.exp() * logs).nan_to_num(0.0).sum(), logs.max().exp()])
