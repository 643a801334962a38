from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from ridgefit.errors import BadInput
from ridgefit.evaluate import needle_text as nt

DOCUMENT = (
    "It was late. Nobody had come! Would they ever come? The road lay empty, and the rain fell on it.\n\n"
    "def f(x):\n    return x + 1  # one more\n" + "word " * 200 + "\n" + "x" * 700
)


def words(text: str) -> int:
    return len(re.findall(r"\w+|[^\w\s]", text))


def merging(text: str) -> int:
    """A count that is not additive over joins: runs of letters cost by length, as merges do."""
    return sum(1 + len(run) // 5 for run in re.findall(r"\s?\w+|\s?[^\w\s]+|\s+", text))


def build(seed: int = 0, **changes: object) -> nt.NeedleCase:
    settings: dict[str, object] = {
        "needles": 4,
        "haystack": nt.NoiseHaystack(),
        "fits": words,
        "budget": 900,
        "filled_until": 600,
    }
    return nt.build_case(random.Random(seed), **(settings | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("fits", [words, merging, len])
@pytest.mark.parametrize("haystack", [nt.NoiseHaystack(), nt.TextHaystack([DOCUMENT])], ids=lambda h: h.name)
@pytest.mark.parametrize("needles", [1, 4, 8])
def test_budget_and_places_hold(fits: Callable[[str], int], haystack: nt.Haystack, needles: int) -> None:
    budget, tail = 2400, 700
    unit = max(
        fits(unit) for unit in [*nt.sentences(DOCUMENT), next(nt.NoiseHaystack().units(random.Random()))]
    )
    for seed in range(12):
        case = build(
            seed, needles=needles, haystack=haystack, fits=fits, budget=budget, filled_until=budget - tail
        )
        assert case.tokens == fits(case.prompt) <= budget
        assert budget - case.tokens < unit + 8, "a whole unit more would have fitted"
        # the oracle finds the needles in the finished prompt by itself
        found = re.findall(r"One of the special magic numbers for (\S+) is: (\d{7})\.", case.prompt)
        assert sorted(found) == sorted([(case.key, case.value), *case.others])
        last = max(case.prompt.index(f"is: {value}.") + len(value) + 5 for _, value in found)
        assert fits(case.prompt[:last]) == case.needles_end <= case.tokens - tail
        at = case.prompt.index(nt.needle_sentence(case.key, case.value))
        assert case.depth == pytest.approx(fits(case.prompt[:at].rstrip()) / case.tokens)
        assert case.prompt == f"{case.context}\n{case.question}{case.answer_prefix}"


def test_same_seed_same_case_and_other_seed_another() -> None:
    text = nt.TextHaystack([DOCUMENT])
    assert build(3, haystack=text) == build(3, haystack=text)
    assert build(3, haystack=text).prompt != build(4, haystack=text).prompt


def test_depths_cover_the_filled_region() -> None:
    ends = [build(seed, needles=1).needles_end for seed in range(60)]
    assert min(ends) < 150
    assert 500 < max(ends) <= 600


def test_asked_needle_is_not_always_the_same() -> None:
    order = set()
    for seed in range(40):
        case = build(seed)
        places = sorted(case.prompt.index(f"is: {value}.") for _, value in [(0, case.value), *case.others])
        order.add(places.index(case.prompt.index(f"is: {case.value}.")))
    assert order == {0, 1, 2, 3}


def test_template_is_counted() -> None:
    def render(user: str, prefix: str) -> str:
        return f"<|user|>{user}<|end|>\n<|assistant|>\n{prefix}"

    case = build(render=render, needles=1)
    assert case.prompt == render(f"{case.context}\n{case.question}", case.answer_prefix)
    assert case.tokens == words(case.prompt) <= 900
    assert case.needles_end <= 600


@pytest.mark.parametrize(
    "changes",
    [
        {"needles": 0},
        {"needles": 10_000},
        {"budget": 60},
        {"filled_until": 20},
        {"filled_until": 0},
        {"budget": 0, "filled_until": 0},
    ],
)
def test_impossible_requests_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        build(**changes)


def test_a_count_that_never_grows_or_jumps_still_ends() -> None:
    assert build(fits=lambda text: 1, budget=300, filled_until=300).tokens == 1
    jumpy = random.Random(0)
    for _ in range(20):
        try:
            build(fits=lambda text: words(text) + jumpy.randrange(60), budget=500, filled_until=300)
        except BadInput:
            continue


def test_empty_text_is_refused() -> None:
    with pytest.raises(BadInput):
        nt.TextHaystack(["", "  \n "])


def test_sentences_lose_nothing_but_outer_whitespace() -> None:
    units = nt.sentences(DOCUMENT)
    assert re.sub(r"\s", "", "".join(units)) == re.sub(r"\s", "", DOCUMENT)
    assert max(map(len, units)) <= 241
    assert all(unit[-1].isspace() and unit.strip() for unit in units)
    assert units[0] == "It was late. "
    assert "".join(units[:8]).startswith(DOCUMENT[:150])


def test_keys_and_values() -> None:
    rng = random.Random(1)
    keys, values = nt.draw_keys(rng, 20), nt.draw_values(rng, 20)
    assert len({part for key in keys for part in key.split("-")}) == 40
    assert len(set(values)) == 20
    assert all(re.fullmatch(r"[1-9]\d{6}", value) for value in values)
    assert not set(nt.ADJECTIVES) & set(nt.NOUNS)
    assert len(set(nt.ADJECTIVES)) == len(nt.ADJECTIVES)
    assert len(set(nt.NOUNS)) == len(nt.NOUNS)


@pytest.mark.parametrize(
    ("answer", "hit", "share"),
    [
        (" 1234567.", True, 1.0),
        (": 1234567", True, 1.0),
        (" 12345678", True, 1.0),  # no word boundary, as in RULER
        (" 1234560.", False, 6 / 7),
        (" 234567", False, 0.0),
        (" 123 4567", False, 3 / 7),
        ("", False, 0.0),
        (" none", False, 0.0),
    ],
)
def test_scorers(answer: str, hit: bool, share: float) -> None:
    assert nt.strict(answer, "1234567") is hit
    assert nt.digit_share(answer, "1234567") == pytest.approx(share)


def test_importing_it_needs_no_torch() -> None:
    code = "import sys, ridgefit.evaluate.needle_text; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
