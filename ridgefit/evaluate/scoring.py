"""Prefill, teacher-forced losses, greedy continuations: all that evaluation asks of a model.

Everything goes through the model's own forward and the cache it returns, so an arm applied around a
prefill is judged by what later tokens read from its cache. Batch size is 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ridgefit.models.call import cache_keyword

PIECE = 512
"""Positions per call; full logits of a long target would not fit (262,144 entries a row in Gemma 3)."""


@dataclass(frozen=True)
class Prefilled:
    """A model's state after a prompt.

    Attributes:
        cache: transformers cache of the prompt's rows; it grows as tokens are fed.
        logits: prediction after the last prompt row, `[1, vocab]`, model dtype.
    """

    cache: Any
    logits: torch.Tensor


@torch.no_grad()
def prefill(model: Any, prompt: torch.Tensor) -> Prefilled:
    """Run a prompt `[n]` through an empty cache."""
    outputs = model(input_ids=prompt.to(model.device)[None], use_cache=True, logits_to_keep=1)
    return Prefilled(getattr(outputs, cache_keyword(model)), outputs.logits[0])


@torch.no_grad()
def forced(
    model: Any, state: Prefilled, tokens: torch.Tensor, *, piece: int = PIECE
) -> Iterator[torch.Tensor]:
    """Logits that predict each of `tokens`, teacher forced on the cache of the prompt.

    Args:
        model: causal language model.
        state: the prompt's prefill; its cache is used up.
        tokens: `[n]`; the first is predicted by the prefill, so n - 1 are fed.
        piece: most tokens per call; 1 decodes one token at a time.

    Yields:
        Blocks `[k, vocab]` in the model's dtype, n rows in all and in order.
    """
    yield state.logits
    fed = tokens.to(model.device)[None, :-1]
    for start in range(0, fed.shape[1], piece):
        yield _decode(model, state, fed[:, start : start + piece])


@torch.no_grad()
def losses(model: Any, prompt: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Negative log-probability of each token after the prompt, `[n]`, fp32 nats on the CPU."""
    state = prefill(model, prompt)
    parts: list[torch.Tensor] = []
    done = 0
    for logits in forced(model, state, tokens):
        for rows in torch.split(logits, 64):  # fp32 copies stay small
            targets = tokens[done : done + len(rows)].to(rows.device)
            scores = rows.float()
            chosen = scores.gather(1, targets[:, None])[:, 0]
            parts.append((scores.logsumexp(dim=1) - chosen).cpu())
            done += len(rows)
    return torch.cat(parts)


@torch.no_grad()
def greedy(model: Any, state: Prefilled, count: int) -> torch.Tensor:
    """The `count` most likely next tokens one after another, `[count]`, an end token not stopping them."""
    token = state.logits[-1].argmax()
    chosen = [token]
    while len(chosen) < count:
        token = _decode(model, state, token[None, None])[-1].argmax()
        chosen.append(token)
    return torch.stack(chosen).cpu()


@torch.no_grad()
def generate(model: Any, prompt: torch.Tensor, new_tokens: int) -> torch.Tensor:
    """Greedy answer by the model's own `generate`, `[m <= new_tokens]`, prompt left out.

    What a checkpoint's generation settings would add (sampling, repetition penalty) is switched off:
    it would hide what the cache holds.
    """
    ids = prompt.to(model.device)[None]
    end = model.generation_config.eos_token_id
    first_end = end[0] if isinstance(end, list) and end else end
    answer = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new_tokens,
        do_sample=False,
        num_beams=1,
        temperature=1.0,
        top_k=50,
        top_p=1.0,
        repetition_penalty=1.0,
        no_repeat_ngram_size=0,
        pad_token_id=first_end if isinstance(first_end, int) else 0,
    )
    return torch.as_tensor(answer)[0, ids.shape[1] :].cpu()


def _decode(model: Any, state: Prefilled, ids: torch.Tensor) -> torch.Tensor:
    """Feed ids `[1, n]` to a cache that already holds the prompt; logits `[n, vocab]`."""
    outputs = model(input_ids=ids, use_cache=True, **{cache_keyword(model): state.cache})
    logits: torch.Tensor = outputs.logits[0]
    return logits
