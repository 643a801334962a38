"""A frozen refresh controller as rows of text: what it does, and what its one test found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ridgefit.maps.refresh import GateRule, LinearRule, RefreshController

TEST_HEADS = ("schedule", "acceptance length", "refreshes per 1,000 tokens", "times fewer")


def settings_rows(found: RefreshController) -> Iterator[tuple[str, str]]:
    """What it decides by, and what it was made under."""
    yield "refresh when", rule_text(found)
    yield "looks every", f"{found.interval} tokens"
    yield "gaps", f"at least {found.min_gap}, at most {found.max_gap or 'any number of'} tokens"
    cache = found.cache
    size = cache.get("budget") or f"{cache.get('keep_ratio'):g} of the prompt"
    newest = f"{cache['window']} columns" if cache.get("window") else f"{cache.get('recent_share'):g} of it"
    yield "budget", f"{size}, {newest} for the newest"
    yield "periodic policy", f"every {cache.get('every')} tokens"
    warm = f"temperature {found.temperature:g}" if found.temperature else "greedy"
    yield "decoding", f"{found.drafted} tokens drafted a round, {warm}"
    if found.texts is not None:
        yield "texts", texts_text(found.texts)
    counts = f"{len(found.fit)} to fit, {len(found.select)} to select, {len(found.test)} to test"
    yield "documents", counts


def rule_text(found: RefreshController) -> str:
    """When it refreshes, in words; a weighted score by its signals from the weightiest."""
    rule = found.rule
    if isinstance(rule, GateRule):
        gates = [f"{name} below {value:.4g}" for name, value in rule.below.items()]
        gates += [f"{name} above {value:.4g}" for name, value in rule.above.items()]
        return (" or " if rule.combine == "any" else " and ").join(gates)
    if isinstance(rule, LinearRule):
        pairs = sorted(zip(rule.signals, rule.weights, strict=True), key=lambda pair: -abs(pair[1]))
        shown = ", ".join(f"{name} {weight:+.3g}" for name, weight in pairs if weight)
        return f"a weighted score passes a threshold ({shown}; standardised)"
    return f"{rule.every} tokens have passed: no controller was found"


def controller_cautions(rule: str, made: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[str]:
    """What a user of a controller must know: that it has no rule, or was made under other settings.

    Args:
        rule: its kind.
        made: cache sizes, temperature and drafted tokens that it was made under.
        here: those that it is used under.
    """
    if rule == "none":
        yield f"The controller found no rule: `rift-ada` refreshed every {made['every']} tokens."
    differ = [
        f"{name} {_said(made.get(name))}, here {_said(value)}"
        for name, value in here.items()
        if made.get(name) != value and name != "every"  # which is the periodic policy's
    ]
    if differ:
        yield f"The controller was made under other settings: {'; '.join(differ)}."


def _said(value: Any) -> str:
    return "unset" if value is None else f"{value}"


def texts_text(texts: Mapping[str, Any]) -> str:
    """Prompts and outputs that it was made on."""
    lengths = ", ".join(map(str, texts["prompt"]))
    asked = f", each with the instruction {texts['instruction']!r}" if texts.get("instruction") else ""
    forced = ", past end tokens" if texts.get("forced") else ""
    return f"prompts of {lengths} tokens, {texts['new_tokens']} new{forced}{asked}"


def test_rows(found: RefreshController) -> list[tuple[str, ...]]:
    """Schedules of the test, each against the periodic policy; empty if it was not tested."""
    test = found.scores.get("test", {})
    rows: list[tuple[str, Mapping[str, Any]]] = [("this controller", test["ada"])] if "ada" in test else []
    rows += list(test.get("controls", {}).items())
    return [
        (
            name,
            f"{row['al']:.3f}",
            f"{row['difference']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]",
            f"{row['refreshes']:.1f}",
            _ratio(row),
        )
        for name, row in rows
    ]


def test_heads(found: RefreshController) -> tuple[str, ...]:
    """Heads of `test_rows`."""
    first, second, *rest = TEST_HEADS
    return (first, second, f"minus periodic {found.cache.get('every')}", *rest)


def verdict(found: RefreshController) -> str:
    """What the selection and the test said."""
    scores = found.scores
    test = scores.get("test", {})
    said = [f"test: {test.get('verdict', 'not tested')}"]
    within = f" within {100 * scores['tolerance']:g} %" if "tolerance" in scores else ""
    if "tried" in scores:
        said.insert(0, f"{scores['passed']} of {scores['tried']} candidates passed the selection{within}")
    if test.get("equal") is False:
        said.append("not every output was the target's own stepwise text")
    return "; ".join(said)


def _ratio(row: Mapping[str, Any]) -> str:
    if row["ratio"] is None:
        return ""
    if row["ratio_low"] is None or row["ratio_high"] is None:
        return f"{row['ratio']:.2f}"
    return f"{row['ratio']:.2f} [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}]"
