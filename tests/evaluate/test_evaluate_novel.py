"""Novel tokens against the definition written out as loops."""

from __future__ import annotations

import random
import time

import pytest
import torch

from ridgefit.evaluate.novel import novel_tokens


def brute_force(ids: list[int], start: int, run: int) -> list[bool]:
    """For each scored token: does the prompt hold none of the runs around it, at an earlier place?"""
    novel = []
    for position in range(start, len(ids)):
        copied = False
        for begin in range(max(0, position - run + 1), position + 1):
            window = ids[begin : begin + run]
            if len(window) == run and any(
                ids[s : s + run] == window for s in range(begin) if s + run <= start
            ):
                copied = True
        novel.append(not copied)
    return novel


@pytest.mark.parametrize("vocabulary", [2, 3, 6, 50])
@pytest.mark.parametrize("run", [1, 2, 3, 8])
@pytest.mark.parametrize("n", [1, 7, 8, 9, 90])
def test_equals_the_definition(vocabulary: int, run: int, n: int) -> None:
    rng = random.Random(f"{vocabulary} {run} {n}")
    for start in {0, n // 2, max(0, n - 1)}:
        ids = [rng.randrange(vocabulary) for _ in range(n)]
        for _ in range(3):  # plant copies, so that long runs repeat at all
            length, source, target = rng.randrange(1, 20), rng.randrange(n), rng.randrange(n)
            ids[target : target + length] = ids[source : source + length]
        assert novel_tokens(torch.tensor(ids), start, run=run).tolist() == brute_force(ids, start, run)


def test_a_planted_copy_is_found_to_the_token() -> None:
    prompt = list(range(100, 140))
    scored = [1, 2, *prompt[5:13], 3, *prompt[20:27], 4]  # a run of 8, then one of 7
    mask = novel_tokens(torch.tensor(prompt + scored), len(prompt))
    assert mask.tolist() == [True] * 2 + [False] * 8 + [True] * 9


def test_a_run_may_start_in_the_prompt() -> None:
    ids = [*range(10), 99, *range(10)]
    assert novel_tokens(torch.tensor(ids), 15).tolist() == [False] * 6


def test_a_loop_copies_itself_once_the_prompt_holds_one_run_of_it() -> None:
    ids = [50, 51, *[7, 8] * 8]
    assert not novel_tokens(torch.tensor(ids), 10).any()  # the prompt ends with one whole run
    assert novel_tokens(torch.tensor(ids), 9).all()  # one token short of it


def test_what_only_repeats_scored_tokens_stays_novel() -> None:
    ids = [*range(20), *range(100, 110), *range(100, 110)]
    assert novel_tokens(torch.tensor(ids), 20).all()
    assert not novel_tokens(torch.tensor(ids), 30).any()


def test_large_vocabulary_and_long_text_are_exact_and_quick() -> None:
    rng = random.Random(1)
    ids = [rng.randrange(262_144) for _ in range(60_000)]
    ids[50_000:50_008] = ids[10:18]
    started = time.perf_counter()
    mask = novel_tokens(torch.tensor(ids), 40_000)
    assert time.perf_counter() - started < 5
    assert mask.logical_not().nonzero().flatten().tolist() == list(range(10_000, 10_008))
