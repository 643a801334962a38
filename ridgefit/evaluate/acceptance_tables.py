"""An acceptance result as rows of text."""

from __future__ import annotations

from collections.abc import Iterator

from ridgefit.evaluate.acceptance_summary import AcceptanceResult, PolicyScore

Rows = tuple[tuple[str, ...], list[tuple[str, ...]]]


def title(result: AcceptanceResult) -> str:
    """What was measured, in one line."""
    settings = result.identity["settings"]
    first, last = result.prompt_tokens
    sizes = (
        f"budget {settings['budget']}"
        if settings["budget"]
        else f"budget {settings['keep_ratio'] or 0.125:g} of the prompt"
    )
    return (
        f"acceptance length of {result.identity['draft']['name']} for {result.identity['target']['name']}: "
        f"{result.prompts} prompts of {first} to {last} tokens from {result.documents} documents, {sizes}, "
        f"{settings['drafted']} drafted, {_text(settings['temperature'])}, {settings['loop']} loop, "
        f"candidates {result.candidates}"
    )


def tables(result: AcceptanceResult) -> Iterator[Rows]:
    """Scores with intervals, then staleness by output position."""
    standalone = any(score.nll is not None for score in result.policies)
    header = ["policy", "AL", "pooled", "of full", "minus full", "minus reference", "refreshes/1K", "mass"]
    header += ["score ms", "draft ms/token", "widest", "equal"] + (["agreed", "NLL"] if standalone else [])
    yield tuple(header), [_scores(score, standalone) for score in result.policies]
    longest = max(len(score.curve) for score in result.policies)
    bins = tuple(str(at * result.bin) for at in range(longest))
    yield (
        ("AL from output token", *bins),
        [
            (score.policy, *(_number(value) for value in score.curve), *[""] * (longest - len(score.curve)))
            for score in result.policies
        ],
    )


def _scores(score: PolicyScore, standalone: bool) -> tuple[str, ...]:
    gaps = {gap.against: gap for gap in score.gaps}
    full = gaps.get("full")
    other = next((gap for gap in score.gaps if gap.against != "full"), None)
    cells = [
        score.policy,
        f"{score.al_macro:.3f}",
        f"{score.al_pooled:.3f}",
        f"{100 * score.of_full:.1f} %",
    ]
    cells += ["" if gap is None else _gap(gap.mean, gap.low, gap.high) for gap in (full, other)]
    cells += [
        f"{score.refreshes_per_1000:.1f}",
        "" if score.retained is None else f"{100 * score.retained:.1f} %",
        _number(score.score_ms),
        _number(score.draft_ms),
        str(score.widest or ""),
        f"{100 * score.equal:.0f} %",
    ]
    if standalone:
        cells += ["" if score.agreed is None else f"{100 * score.agreed:.1f} %", _number(score.nll)]
    return tuple(cells)


def _text(temperature: float) -> str:
    return f"temperature {temperature:g}" if temperature else "greedy"


def _gap(mean: float, low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return f"{mean:+.3f}"
    return f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
