"""An acceptance result as rows of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ridgefit.evaluate.acceptance_summary import AcceptanceResult, Fewer, Gap

Rows = tuple[tuple[str, ...], list[tuple[str, ...]]]


def title(result: AcceptanceResult) -> str:
    """What was measured, in one line."""
    settings = result.identity["settings"]
    return (
        f"acceptance length of {result.identity['draft']['name']} for {result.identity['target']['name']}: "
        f"{result.prompts} prompts of {prompt_lengths(result)} tokens from {result.documents} documents, "
        f"{budget(settings)}, "
        f"{settings['drafted']} drafted, {_text(settings['temperature'])}, {settings['loop']} loop, "
        f"candidates {result.candidates}"
    )


def prompt_lengths(result: AcceptanceResult) -> str:
    """Shortest to longest prompt in tokens."""
    first, last = result.prompt_tokens
    return str(first) if first == last else f"{first} to {last}"


def budget(settings: Mapping[str, Any]) -> str:
    """Columns that attention may see."""
    if settings["budget"]:
        return f"budget {settings['budget']}"
    return f"budget {settings['keep_ratio'] or 0.125:g} of the prompt"


def tables(result: AcceptanceResult) -> Iterator[Rows]:
    """Scores with intervals, what they take, then staleness by output position."""
    yield lengths(result)
    yield costs(result)
    yield staleness(result)
    if result.needles:
        yield needles(result)


def staleness(result: AcceptanceResult) -> Rows:
    """Pooled AL by output position."""
    rows = {score.policy: [_number(value) for value in score.curve] for score in result.policies}
    return _by_position("AL from output token", rows, result.bin)


def mass(result: AcceptanceResult) -> Rows:
    """Share of full attention in sight by output position."""
    rows = {
        score.policy: ["" if value is None else f"{100 * value:.1f} %" for value in score.retained_curve]
        for score in result.policies
        if score.retained is not None
    }
    return _by_position("mass from output token", rows, result.bin)


def by_place(result: AcceptanceResult) -> Rows:
    """Share of rounds that accepted at least so many tokens."""
    places = len(result.policies[0].by_place)
    return (
        ("at least", *(str(place) for place in range(1, places + 1))),
        [(s.policy, *(f"{100 * share:.1f} %" for share in s.by_place)) for s in result.policies],
    )


def needles(result: AcceptanceResult) -> Rows:
    """Hidden numbers that the target finds by itself."""
    rows: list[tuple[str, ...]] = []
    for score in result.needles:
        ends = (
            ""
            if score.low is None or score.high is None
            else f" [{100 * score.low:+.0f}, {100 * score.high:+.0f}]"
        )
        gap = "" if score.policy == "full" else f"{100 * score.minus_full:+.0f}{ends}"
        rows.append((score.policy, f"{100 * score.found:.0f} %", f"{100 * score.digits:.0f} %", gap))
    return ("standalone", f"found of {result.needles[0].n}", "digits right", "minus full, points"), rows


def _by_position(head: str, rows: Mapping[str, list[str]], step: int) -> Rows:
    longest = max(len(cells) for cells in rows.values())
    bins = tuple(str(at * step) for at in range(longest))
    return (head, *bins), [(name, *row, *[""] * (longest - len(row))) for name, row in rows.items()]


def lengths(result: AcceptanceResult) -> Rows:
    """Acceptance lengths and their paired differences."""
    against = ["full", *dict.fromkeys(gap.against for s in result.policies for gap in s.gaps)]
    shown = list(dict.fromkeys(against))
    standalone = any(score.nll is not None for score in result.policies)
    rows = []
    for score in result.policies:
        gaps = {gap.against: gap for gap in score.gaps}
        cells = [
            score.policy,
            f"{score.al_macro:.3f}",
            f"{score.al_pooled:.3f}",
            f"{100 * score.of_full:.1f} %",
            *(_gap(gaps.get(name)) for name in shown),
        ]
        if standalone:
            cells += ["" if score.agreed is None else f"{100 * score.agreed:.1f} %", _number(score.nll)]
        rows.append(tuple(cells))
    heads = ("policy", "AL", "pooled", "of full", *(f"minus {name}" for name in shown))
    return heads + (("agreed", "NLL") if standalone else ()), rows


def costs(result: AcceptanceResult) -> Rows:
    """Refreshes, attention in sight, times and widths."""
    rows: list[tuple[str, ...]] = [
        (
            score.policy,
            f"{score.refreshes_per_1000:.1f}",
            _fewer(score.fewer),
            "" if score.changed is None else f"{100 * score.changed:.1f} %",
            "" if score.retained is None else f"{100 * score.retained:.1f} %",
            _number(score.score_ms),
            _number(score.draft_ms),
            "" if score.overhead is None else f"{100 * score.overhead:.1f} %",
            str(score.widest or ""),
            "" if score.equal is None else f"{100 * score.equal:.0f} %",
        )
        for score in result.policies
    ]
    heads = (
        "refreshes/1K",
        "times fewer",
        "replaced",
        "mass",
        "score ms",
        "draft ms/token",
        "overhead",
        "widest",
        "equal",
    )
    return ("policy", *heads), rows


def _fewer(found: Fewer | None) -> str:
    if found is None or found.ratio is None:
        return ""
    if found.low is None or found.high is None:
        return f"{found.ratio:.2f}"
    return f"{found.ratio:.2f} [{found.low:.2f}, {found.high:.2f}]"


def _text(temperature: float) -> str:
    return f"temperature {temperature:g}" if temperature else "greedy"


def _gap(gap: Gap | None) -> str:
    return "" if gap is None else interval(gap)


def interval(gap: Gap) -> str:
    """A difference with its interval, where there is one."""
    if gap.low is None or gap.high is None:
        return f"{gap.mean:+.3f}"
    return f"{gap.mean:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
