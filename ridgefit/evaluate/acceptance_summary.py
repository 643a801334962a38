"""From rounds to acceptance lengths, staleness curves and paired intervals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from ridgefit.errors import BadInput
from ridgefit.evaluate.intervals import bca
from ridgefit.evaluate.ratios import bca_ratio
from ridgefit.files import read_json
from ridgefit.recipe.drafting import AcceptanceSettings

RESULT, LINES = "acceptance.json", "acceptance.jsonl"
Record = Mapping[str, Any]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Gap(_Part):
    """A policy's macro AL minus another's, over documents, with its two-sided 95 % interval."""

    against: str
    mean: float
    low: float | None
    high: float | None
    n: int


class Fewer(_Part):
    """The reference's refreshes per one of a policy's, over documents, with its two-sided 95 % interval."""

    against: str
    ratio: float | None
    low: float | None
    high: float | None


class PolicyScore(_Part):
    """One policy.

    Attributes:
        policy: name.
        al_pooled: 1 + accepted tokens / rounds, over all rounds that drafted the full number.
        al_macro: mean over documents of the mean over their prompts of 1 + accepted per round (headline).
        of_full: al_macro as a share of the whole cache's.
        gaps: paired differences of al_macro.
        refreshes_per_1000: re-selections per 1,000 output tokens; evictions for h2o.
        fewer: how many times fewer those are than the reference's, which must refresh too; None for policies
            that never refresh, and for the reference; no ratio where the policy's count may be zero.
        curve: pooled AL by output position; None where no round began.
        by_place: share of rounds that accepted at least so many drafted tokens.
        retained: mean share of full attention in sight; None for full.
        retained_curve: the same by output position; None where nothing was measured.
        changed: mean share of selected columns that a refresh replaced.
        score_ms: milliseconds per selection.
        draft_ms: milliseconds of drafting and selecting per output token after the prefill; None in a real
            loop, whose time is also the target's.
        overhead: time of re-selections as a share of all other time after the prefill: drafting in a replay,
            decoding in a real loop (appendix D.2).
        widest: most columns attention saw.
        equal: share of prompts whose output is the target's greedy one; None for sampled text.
        agreed: standalone: share of the target's own tokens that it holds for the most likely.
        nll: standalone: mean loss on them in nats.
    """

    policy: str
    al_pooled: float
    al_macro: float
    of_full: float
    gaps: tuple[Gap, ...]
    refreshes_per_1000: float
    fewer: Fewer | None
    curve: tuple[float | None, ...]
    by_place: tuple[float, ...]
    retained: float | None
    retained_curve: tuple[float | None, ...]
    changed: float | None
    score_ms: float | None
    draft_ms: float | None
    overhead: float | None
    widest: int
    equal: float | None
    agreed: float | None = None
    nll: float | None = None


class NeedleScore(_Part):
    """What the target retrieves by itself with a policy's cache.

    Attributes:
        policy: name.
        found: share of hidden numbers that its answers contain.
        digits: share of right digits.
        minus_full: paired difference of `found` to the whole cache; `low` and `high` its 95 % interval.
        low: None from one prompt.
        high: see low.
        n: prompts.
    """

    policy: str
    found: float
    digits: float
    minus_full: float
    low: float | None
    high: float | None
    n: int


class AcceptanceResult(_Part):
    """What `acceptance.json` holds."""

    identity: dict[str, Any]
    context: dict[str, Any]
    prompts: int
    documents: int
    prompt_tokens: tuple[int, int]
    output_tokens: int
    candidates: str
    bin: int
    policies: tuple[PolicyScore, ...]
    needles: tuple[NeedleScore, ...] = ()

    def policy(self, name: str) -> PolicyScore:
        """One policy's scores."""
        return next(score for score in self.policies if score.policy == name)


def summarise(
    records: Sequence[Record],
    policies: Sequence[str],
    settings: AcceptanceSettings,
    identity: Mapping[str, Any],
    context: Mapping[str, Any],
    *,
    resamples: int,
    seed: int,
) -> AcceptanceResult:
    """All scores; a prompt without one full round counts in no acceptance length."""
    by_policy = {name: [r for r in records if r["policy"] == name] for name in policies}
    units = {name: unit_lengths(rows, settings.drafted) for name, rows in by_policy.items()}
    full = by_policy["full"]
    scores = []
    for name in policies:
        others = [other for other in dict.fromkeys(("full", settings.reference)) if other != name]
        gaps = tuple(_gap(units[name], units[other], other, resamples, seed) for other in others)
        fewer = _fewer(by_policy[name], by_policy[settings.reference], settings.reference, resamples, seed)
        scores.append(_score(name, by_policy[name], units, gaps, fewer, settings))
    return AcceptanceResult(
        identity=dict(identity),
        context=dict(context),
        prompts=len(full),
        documents=len({r["unit"] for r in full}),
        prompt_tokens=(min(r["prompt_tokens"] for r in full), max(r["prompt_tokens"] for r in full)),
        output_tokens=sum(r["tokens"] for r in full),
        candidates=settings.select_from,
        bin=settings.bin,
        policies=tuple(scores),
    )


def load_acceptance(folder: Path) -> AcceptanceResult:
    """The result of a finished evaluation, from its folder.

    Raises:
        BadInput: it is missing, damaged or of another version.
    """
    path = folder / RESULT
    if not path.is_file():
        raise BadInput(
            f"{folder} holds no finished evaluation", "run `ridgefit eval` with this --out to its end"
        )
    try:
        return AcceptanceResult.model_validate(read_json(path))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise BadInput(
            f"{path} is damaged or of another version ({where}: {first['msg'].lower()})",
            "run the evaluation again with another --out",
        ) from error


def whole_rounds(record: Record, drafted: int) -> list[list[Any]]:
    """Rounds that drafted the full number: near the length limit fewer are, and they say less."""
    return [row for row in record["rounds"] if row[1] == drafted]


def unit_lengths(records: Sequence[Record], drafted: int) -> dict[str, float]:
    """Document -> mean over its prompts of 1 + accepted per round."""
    found: dict[str, list[float]] = defaultdict(list)
    for record in records:
        rounds = whole_rounds(record, drafted)
        if rounds:
            found[record["unit"]].append(1 + fmean(row[2] for row in rounds))
    return {unit: fmean(values) for unit, values in found.items()}


def pooled(rounds: Sequence[Sequence[Any]]) -> float:
    """1 + accepted tokens per round."""
    return 1 + fmean(row[2] for row in rounds)


def _gap(
    left: Mapping[str, float], right: Mapping[str, float], against: str, resamples: int, seed: int
) -> Gap:
    shared = [unit for unit in left if unit in right]
    interval = bca([left[unit] - right[unit] for unit in shared], resamples=resamples, seed=seed)
    return Gap(against=against, mean=interval.mean, low=interval.low, high=interval.high, n=interval.n)


def _fewer(
    own: Sequence[Record], other: Sequence[Record], against: str, resamples: int, seed: int
) -> Fewer | None:
    counts: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for place, rows in enumerate((other, own)):
        for record in rows:
            counts[record["unit"]][place] += record["refreshes"]
    above, below = zip(*counts.values(), strict=True)
    if own is other or not sum(above) or not sum(below):
        return None
    found = bca_ratio(above, below, [""] * len(above), resamples=resamples, seed=seed)
    return Fewer(against=against, ratio=found.ratio, low=found.low, high=found.high)


def _score(
    name: str,
    rows: Sequence[Record],
    units: Mapping[str, Mapping[str, float]],
    gaps: tuple[Gap, ...],
    fewer: Fewer | None,
    settings: AcceptanceSettings,
) -> PolicyScore:
    rounds = [row for record in rows for row in whole_rounds(record, settings.drafted)]
    bins: dict[int, list[Sequence[Any]]] = defaultdict(list)
    for row in rounds:
        bins[row[0] // settings.bin].append(row)
    seen: dict[int, list[float]] = defaultdict(list)
    for row in (row for record in rows for row in record["rounds"] if row[5] is not None):
        seen[row[0] // settings.bin].append(row[5])
    retained = [value for values in seen.values() for value in values]
    changed = [value for record in rows for value in record["changed"]]
    tokens = sum(record["tokens"] for record in rows)
    refreshes = sum(record["refreshes"] for record in rows)
    selections = sum(record["selections"] for record in rows)
    scored = sum(record["score_seconds"] for record in rows)
    macro = fmean(units[name].values())
    return PolicyScore(
        policy=name,
        al_pooled=pooled(rounds),
        al_macro=macro,
        of_full=macro / fmean(units["full"].values()),
        gaps=gaps,
        refreshes_per_1000=1000 * refreshes / tokens,
        fewer=fewer,
        curve=tuple(pooled(bins[at]) if bins[at] else None for at in range(max(bins) + 1)),
        by_place=tuple(fmean(row[2] >= place for row in rounds) for place in range(1, settings.drafted + 1)),
        retained=fmean(retained) if retained and name != "full" else None,
        retained_curve=tuple(fmean(seen[at]) if seen[at] else None for at in range(max(bins) + 1))
        if name != "full"
        else (),
        changed=fmean(changed) if changed else None,
        score_ms=1000 * scored / selections if selections else None,
        draft_ms=None
        if settings.loop == "real"
        else 1000 * sum(record["seconds"] for record in rows) / tokens,
        overhead=_overhead(scored / selections * refreshes if selections else 0.0, rows),
        widest=max(record["widest"] for record in rows),
        equal=_mean_of(rows, "equal"),
        agreed=_mean_of(rows, "agreed"),
        nll=_mean_of(rows, "nll"),
    )


def _overhead(again: float, rows: Sequence[Record]) -> float | None:
    rest = sum(record["seconds"] for record in rows) - again
    return again / rest if again and rest > 0 else None


def _mean_of(rows: Sequence[Record], key: str) -> float | None:
    values = [record[key] for record in rows if record.get(key) is not None]
    return fmean(values) if values else None
