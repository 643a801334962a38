"""At temperature 1 the output is distributed as the target's own, whatever the draft proposes."""

from __future__ import annotations

import itertools
from collections import Counter
from functools import cache
from typing import Any

import pytest
import torch
from scipy import stats
from tiny_models import build_tiny

from ridgefit.runtime.draft import POLICIES, CacheSettings
from ridgefit.runtime.speculative import Chooser, Draft, decode, drafting

WORDS = 5
PROMPT = [3, 1, 4, 1, 2, 0, 4, 3, 2, 1, 0, 3]


@cache
def words(seed: int) -> Any:
    own = {"vocab_size": WORDS, "num_hidden_layers": 1, "eos_token_id": None, "bos_token_id": None}
    return build_tiny("llama", seed=seed, **own, pad_token_id=None).double()


@torch.no_grad()
def exact_distribution(length: int, top_k: int | None = None) -> dict[tuple[int, ...], float]:
    """Probability of every continuation, by plain forwards."""
    found = {}
    for row in itertools.product(range(WORDS), repeat=length):
        ids = torch.tensor([[*PROMPT, *row]])
        logits = words(0)(input_ids=ids).logits[0, len(PROMPT) - 1 : -1]
        if top_k:
            least = logits.topk(top_k, dim=-1).values[:, -1:]
            logits = logits.masked_fill(logits < least, float("-inf"))
        chances = logits.softmax(-1)
        found[row] = float(chances[torch.arange(length), list(row)].prod())
    return found


def chi_square(counts: Counter[tuple[int, ...]], exact: dict[tuple[int, ...], float]) -> float:
    """p-value, cells of fewer than five expected samples put together."""
    total = sum(counts.values())
    assert all(exact[row] > 0 for row in counts)
    large = [row for row, chance in exact.items() if chance * total >= 5]
    rest = 1 - sum(exact[row] for row in large)
    observed = [counts[row] for row in large]
    wanted = [exact[row] * total for row in large]
    if rest * total > 1e-9:
        observed.append(total - sum(observed))
        wanted.append(rest * total)
    return float(stats.chisquare(observed, wanted).pvalue)


def sampled(policy: str, samples: int, length: int, seed: int) -> Counter[tuple[int, ...]]:
    draft = Draft(words(1), POLICIES[policy], CacheSettings(budget=6, observe=3, every=2), drafted=2)
    chooser = Chooser(sample=True, generator=torch.Generator().manual_seed(seed))
    found: Counter[tuple[int, ...]] = Counter()
    for _ in range(samples):
        found[tuple(decode(words(0), draft, PROMPT, length, chooser=chooser).tokens)] += 1
    return found


def test_tokens_follow_the_targets_distribution() -> None:
    exact = exact_distribution(2)
    assert sum(exact.values()) == pytest.approx(1)
    assert chi_square(sampled("rift-dyn", 250, 2, seed=1), exact) > 0.01


def test_the_test_would_notice_the_drafts_distribution() -> None:
    """Samples of the draft model itself fail the same test by far."""
    chooser = Chooser(sample=True, generator=torch.Generator().manual_seed(1))
    draft = Draft(words(1), POLICIES["full"], drafted=2)
    counts = Counter(tuple(decode(words(1), draft, PROMPT, 3, chooser=chooser).tokens) for _ in range(300))
    assert chi_square(counts, exact_distribution(3)) < 1e-6


@pytest.mark.slow  # 5,000 requests: about a minute
@pytest.mark.parametrize("policy", ["rift-dyn", "h2o"])
def test_five_thousand_samples(policy: str) -> None:
    assert chi_square(sampled(policy, 5000, 3, seed=2), exact_distribution(3)) > 0.01


def test_processors_of_generate_shape_both_sides() -> None:
    """top-k inside generate: the processed distribution, and never a token outside it."""
    draft = Draft(words(1), POLICIES["rift-stat"], CacheSettings(budget=6, observe=3), drafted=2)
    torch.manual_seed(3)
    ids = torch.tensor([PROMPT])
    counts: Counter[tuple[int, ...]] = Counter()
    for _ in range(150):
        out = words(0).generate(
            ids, max_new_tokens=2, do_sample=True, top_k=2, custom_generate=drafting(draft)
        )
        counts[tuple(out[0, len(PROMPT) :].tolist())] += 1
    assert chi_square(counts, exact_distribution(2, top_k=2)) > 0.01
