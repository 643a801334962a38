"""Prefill, teacher-forced losses, greedy continuations: all that evaluation asks of a model.

Everything goes through the model's own forward and the cache it returns, so an arm applied around a
prefill is judged by what later tokens read from its cache. Prompts of a batch are padded on the left.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from ridgefit.models.call import cache_keyword

PIECE = 512
"""Positions per call over all samples; full logits of a long target would not fit (262,144 entries a row)."""
_PAD = 0  # stands where no attention looks; any id of the vocabulary will do


class Prefilled:
    """A model's state after some prompts; it grows as tokens are fed.

    Args:
        model: causal language model.
        cache: transformers cache of the prompts' rows.
        logits: prediction after each prompt's last row, `[batch, vocab]`, model dtype.
        valid: `[batch, columns]` int64 on the model's device, 0 for left padding; None without padding.
    """

    def __init__(self, model: Any, cache: Any, logits: torch.Tensor, valid: torch.Tensor | None) -> None:
        self.cache = cache
        self.logits = logits
        self._model = model
        self._valid = valid

    @property
    def batch(self) -> int:
        """Samples."""
        return self.logits.shape[0]

    def fork(self) -> Prefilled:
        """A second state from here on, with a copy of the cache and of whatever marks it carries."""
        return Prefilled(self._model, copy.deepcopy(self.cache), self.logits, self._valid)

    @torch.no_grad()
    def feed(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits `[batch, n, vocab]` after each of the next tokens `[batch, n]`, in the model's dtype."""
        given: dict[str, Any] = {}
        if self._valid is not None:
            self._valid = torch.cat([self._valid, torch.ones_like(ids)], dim=1)
            given = {
                "attention_mask": self._valid,
                "position_ids": _positions(self._valid)[:, -ids.shape[1] :],
            }
        keyword = {cache_keyword(self._model): self.cache}
        logits: torch.Tensor = self._model(input_ids=ids, use_cache=True, **given, **keyword).logits
        return logits

    def advance(self, ids: torch.Tensor) -> None:
        """Go on to after the next tokens `[batch, n]`, which are given rather than chosen."""
        for part in torch.split(ids.to(self.logits.device), max(1, PIECE // self.batch), dim=1):
            self.logits = self.feed(part)[:, -1]


@torch.no_grad()
def prefill(model: Any, prompts: Sequence[torch.Tensor]) -> Prefilled:
    """Run prompts, each `[n]`, through an empty cache; those of equal length go without a mask."""
    columns = max(prompt.numel() for prompt in prompts)
    ids = torch.full((len(prompts), columns), _PAD)
    valid = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, columns - prompt.numel() :] = prompt
        valid[row, columns - prompt.numel() :] = 1
    given: dict[str, Any] = {}
    if not bool(valid.all()):
        valid = valid.to(model.device)
        given = {"attention_mask": valid, "position_ids": _positions(valid)}
    outputs = model(input_ids=ids.to(model.device), use_cache=True, logits_to_keep=1, **given)
    cache = getattr(outputs, cache_keyword(model))
    return Prefilled(model, cache, outputs.logits[:, -1], given.get("attention_mask"))


def forced(state: Prefilled, tokens: torch.Tensor, *, piece: int = PIECE) -> Iterator[torch.Tensor]:
    """Logits that predict each of `tokens`, teacher forced on the cache of the prompts.

    Args:
        state: the prompts' prefill; its cache is used up.
        tokens: `[batch, n]`; the first is predicted by the prefill, so n - 1 are fed.
        piece: most positions per call, over all samples; 1 decodes one token at a time.

    Yields:
        Blocks `[batch, k, vocab]` in the model's dtype, n positions in all and in order.
    """
    yield state.logits[:, None]
    fed = tokens.to(state.logits.device)[:, :-1]
    step = max(1, piece // state.batch)
    for start in range(0, fed.shape[1], step):
        yield state.feed(fed[:, start : start + step])


class Predictions(NamedTuple):
    """What a model says along one target.

    Attributes:
        losses: negative log-probability of each token, `[n]`, fp32 nats on the CPU.
        best: the most likely token in its place, `[n]`.
    """

    losses: torch.Tensor
    best: torch.Tensor


def predictions(state: Prefilled, targets: Sequence[torch.Tensor]) -> list[Predictions]:
    """Losses and most likely tokens along the target of each sample.

    Args:
        state: the prompts' prefill; its cache is used up.
        targets: what follows each prompt, `[n]`; lengths may differ.
    """
    # What stands behind a shorter target is read by nothing that is scored.
    tokens = torch.nn.utils.rnn.pad_sequence(list(targets), batch_first=True, padding_value=_PAD)
    losses: list[torch.Tensor] = []
    best: list[torch.Tensor] = []
    done = 0
    for logits in forced(state, tokens):
        for block in torch.split(logits, max(1, 64 // state.batch), dim=1):  # fp32 copies stay small
            wanted = tokens[:, done : done + block.shape[1]].to(block.device)
            scores = block.float()
            chosen = scores.gather(2, wanted[:, :, None])[:, :, 0]
            losses.append((scores.logsumexp(dim=2) - chosen).cpu())
            best.append(scores.argmax(dim=2).cpu())
            done += block.shape[1]
    rows = zip(torch.cat(losses, dim=1), torch.cat(best, dim=1), targets, strict=True)
    return [Predictions(loss[: target.numel()], top[: target.numel()]) for loss, top, target in rows]


def losses(
    model: Any, prompts: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Losses along the targets behind a prefill of the prompts; see `predictions`."""
    return [found.losses for found in predictions(prefill(model, prompts), targets)]


def greedy(state: Prefilled, count: int) -> torch.Tensor:
    """The `count` most likely next tokens one after another, `[batch, count]`; end tokens stop nothing."""
    token = state.logits.argmax(dim=1)
    chosen = [token]
    while len(chosen) < count:
        token = state.feed(token[:, None])[:, -1].argmax(dim=1)
        chosen.append(token)
    return torch.stack(chosen, dim=1).cpu()


def answers(
    state: Prefilled,
    most: int,
    ends: frozenset[int],
    enough: Callable[[int, list[int]], bool] | None = None,
) -> list[list[int]]:
    """Greedy answers, each up to its own end: the same whatever else is in the batch.

    Args:
        state: the prompts' prefill; its cache is used up.
        most: budget of tokens.
        ends: tokens that end an answer; kept as its last.
        enough: also ends answer `row` once it holds these ids.

    Returns:
        Ids per sample, at least one and at most `most`.
    """
    found: list[list[int]] = [[] for _ in range(state.batch)]
    running = set(range(state.batch))
    token = state.logits.argmax(dim=1)
    while True:
        for row, chosen in enumerate(token.tolist()):
            if row in running:
                found[row].append(chosen)
                spent = chosen in ends or len(found[row]) == most
                if spent or (enough is not None and enough(row, found[row])):
                    running.remove(row)
        if not running:
            return found
        token = state.feed(token[:, None])[:, -1].argmax(dim=1)


def end_tokens(model: Any) -> frozenset[int]:
    """Tokens at which the model's own `generate` stops."""
    end = model.generation_config.eos_token_id
    return frozenset(end if isinstance(end, list) else [] if end is None else [end])


def _positions(valid: torch.Tensor) -> torch.Tensor:
    """Position of each column among its sample's tokens, `[batch, columns]`; 0 for padding."""
    return (valid.cumsum(dim=1) - 1).clamp_min(0)
