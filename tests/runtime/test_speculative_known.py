"""Replays along sampled text are distributed as the real loop, by enumeration of plain forwards."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from scipy import stats
from tiny_models import build_tiny

from ridgefit.runtime.draft import POLICIES, CacheSettings, Drafter
from ridgefit.runtime.draft.controllers import Never
from ridgefit.runtime.speculative import Draft, Sampling, Speculation, decode, known_text, replay_known
from ridgefit.runtime.speculative.verify import StoredVerifier

WORDS = 4
WARM = 0.7
PROMPT = [3, 1, 2, 1, 2, 0, 0, 3, 2, 1, 0, 3]
CACHE = CacheSettings(budget=6, observe=3, every=2)
NEVER = lambda _: False  # noqa: E731


@cache
def words(seed: int) -> Any:
    own = {"vocab_size": WORDS, "num_hidden_layers": 1, "eos_token_id": None, "bos_token_id": None}
    return build_tiny("llama", seed=seed, **own, pad_token_id=None).double()


@cache
@torch.no_grad()
def chances(seed: int, *rest: int) -> tuple[float, ...]:
    """A model's distribution after the prompt and some tokens, by one plain forward."""
    logits = words(seed)(input_ids=torch.tensor([[*PROMPT, *rest]])).logits[0, -1]
    return tuple((logits / WARM).softmax(-1).tolist())


def kept(token: int, *rest: int) -> float:
    """Probability that a token is drafted and accepted."""
    return min(chances(0, *rest)[token], chances(1, *rest)[token])


def excess(own: int, other: int, token: int, *rest: int) -> float:
    return max(0.0, chances(own, *rest)[token] - chances(other, *rest)[token])


def first_rounds() -> dict[tuple[int, ...], float]:
    """(accepted, first token, second token) of a round of two drafted tokens -> probability."""
    found = {}
    for one, two in itertools.product(range(WORDS), repeat=2):
        found[0, one, two] = excess(0, 1, one) * chances(0, one)[two]
        found[1, one, two] = kept(one) * excess(0, 1, two, one)
        found[2, one, two] = kept(one) * kept(two, one)
    return found


def proposals() -> dict[tuple[int, ...], float]:
    """(first drafted, second drafted, first committed) -> probability."""
    found: dict[tuple[int, ...], float] = {}
    refused = sum(excess(1, 0, token) for token in range(WORDS))
    for drafted, second, committed in itertools.product(range(WORDS), repeat=3):
        chance = excess(1, 0, drafted) * excess(0, 1, committed) / refused
        if drafted == committed:
            chance += kept(drafted)
        found[drafted, second, committed] = chance * chances(1, drafted)[second]
    return found


def p_value(counts: Counter[tuple[int, ...]], exact: dict[tuple[int, ...], float]) -> float:
    """Chi-square; cells of fewer than five expected samples are put together."""
    total = sum(counts.values())
    assert sum(exact.values()) == pytest.approx(1)
    if any(exact[cell] == 0 for cell in counts):
        return 0.0
    large = [cell for cell, chance in exact.items() if chance * total >= 5]
    rest = total - sum(counts[cell] for cell in large)
    wanted = [exact[cell] * total for cell in large]
    observed = [counts[cell] for cell in large]
    if total - sum(wanted) > 1e-6:
        observed, wanted = [*observed, rest], [*wanted, total - sum(wanted)]
    return float(stats.chisquare(observed, wanted).pvalue)


def replayed(policy: str, seed: int, new_tokens: int = 3) -> Any:
    sampling = Sampling(WARM, str(seed))
    known = known_text(words(0), PROMPT, new_tokens, NEVER, sampling)
    return replay_known(Draft(words(1), POLICIES[policy], CACHE, drafted=2), known, new_tokens)


def real(policy: str, seed: int, new_tokens: int = 3) -> Any:
    draft = Draft(words(1), POLICIES[policy], CACHE, drafted=2)
    chooser = Sampling(WARM, str(seed)).chooser("real")
    return decode(words(0), draft, PROMPT, new_tokens, chooser=chooser)


@pytest.mark.parametrize(
    ("run", "samples"),
    [
        (replayed, 250),
        (real, 250),
        pytest.param(replayed, 5000, marks=pytest.mark.slow),  # two minutes
    ],
)
def test_rounds_are_distributed_as_rejection_sampling_makes_them(run: Any, samples: int) -> None:
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(samples):
        found = run("full", seed)
        counts[found.rounds[0].accepted, *found.tokens[:2]] += 1
    exact = first_rounds()
    assert p_value(counts, exact) > 0.01
    # The test can fail: tokens accepted at random are noticed.
    blind = Counter((seed % 3, *cell[1:]) for seed, cell in enumerate(counts.elements()))
    assert p_value(blind, exact) < 1e-3


def test_refused_drafts_are_distributed_too() -> None:
    """What is drafted and refused makes the signals that a controller reads."""
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(250):
        known = known_text(words(0), PROMPT, 3, NEVER, Sampling(WARM, str(seed)))
        drafter = Drafter(words(1), POLICIES["full"], CACHE)
        speculation = Speculation(StoredVerifier(known.tokens), drafter, known.drafts(), Never(), drafted=2)
        speculation.start(PROMPT)
        found = drafter.propose(PROMPT, 2, speculation.chooser).tokens
        counts[found[0], found[1], known.tokens[0]] += 1
    assert p_value(counts, proposals()) > 0.01


def test_a_compressed_replay_and_the_real_loop_accept_alike() -> None:
    """Whole requests under a policy that refreshes: accepted tokens of every round, as two samples."""
    samples = []
    for run in (replayed, real):
        counts = Counter(
            tuple(row.accepted for row in run("rift-dyn", seed, 7).rounds[:2]) for seed in range(120)
        )
        samples.append(counts)
    cells = sorted(samples[0].keys() | samples[1].keys())
    large = [cell for cell in cells if samples[0][cell] + samples[1][cell] >= 10]
    table = [[counts[cell] for cell in large] for counts in samples]
    assert stats.chi2_contingency(table).pvalue > 0.01


def test_a_draft_like_the_target_is_never_refused() -> None:
    known = known_text(words(0), PROMPT, 12, NEVER, Sampling(WARM, "x"))
    found = replay_known(Draft(words(0), POLICIES["full"], drafted=3), known, 12)
    assert [row.accepted for row in found.rounds] == [row.drafted for row in found.rounds]


def test_replays_share_their_text_and_their_luck() -> None:
    known = known_text(words(0), PROMPT, 20, NEVER, Sampling(WARM, "luck"))
    draft = Draft(words(1), POLICIES["rift-dyn"], CACHE, drafted=2)
    one, two = (replay_known(draft, known, 20) for _ in range(2))
    assert one.rounds == two.rounds
    assert one.tokens == known.output
    # With the whole cache in sight the distribution does not depend on the round that asks, so whether a
    # place is accepted is decided by its own number alone.
    full = Draft(words(1), POLICIES["full"], drafted=1)
    singles = replay_known(full, known, 20)
    by_place = {row.start: row.accepted for row in singles.rounds}
    for row in replay_known(Draft(words(1), POLICIES["full"], drafted=2), known, 20).rounds:
        if row.start in by_place:
            assert min(row.accepted, 1) == by_place[row.start]


def test_seeds_make_the_text() -> None:
    texts = [known_text(words(0), PROMPT, 12, NEVER, Sampling(WARM, seed)).tokens for seed in ("1", "1", "2")]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("warm", [0.0, 1.0])
def test_a_round_across_the_end_is_judged_whole(warm: float) -> None:
    """The text goes on beyond its end, so that the last round's acceptance is the real loop's."""
    seen = 0
    for seed in range(12):
        sampling = Sampling(warm, str(seed))
        prompt = [*PROMPT, seed % WORDS, seed // WORDS % WORDS]
        free = known_text(words(0), prompt, 24, NEVER, sampling).tokens
        end = free[5]

        def stop(tokens: Sequence[int], end: int = end) -> bool:
            return len(tokens) > len(PROMPT) + 4 and tokens[-1] == end

        known = known_text(words(0), prompt, 24, stop, sampling, beyond=3)
        assert known.tokens == free[: known.ended + 3]
        found = replay_known(Draft(words(0), POLICIES["full"], drafted=3), known, 24, stop=stop)
        assert found.tokens == known.output == free[: known.ended]
        assert all(row.accepted == row.drafted == 3 for row in found.rounds)
        seen += found.rounds[-1].emitted < found.rounds[-1].accepted + 1
        if not warm:
            decoded = decode(words(0), Draft(words(0), POLICIES["full"], drafted=3), prompt, 24, stop=stop)
            assert decoded.rounds == found.rounds
    assert seen  # some end fell inside a round
