"""Candidate controllers from traces: thresholds, logistic and ridge scores, shaped in open loop."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ridgefit.calibrate.refresh.traces import Trace
from ridgefit.maps.refresh import GateRule, LinearRule
from ridgefit.runtime.draft.signals import NAMES

Floats = NDArray[np.float64]

# Signals that fall when a selection has gone stale; the others rise.
FALLING = ("acc_mean", "acc_ema", "acc_first", "top1")
GATED = ("acc_mean", "acc_first", "entropy", "drift", "since")
QUANTILES = (0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95)
PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0)
FOLDS = 5
_NEWTON = 100
NOTICEABLE = 0.02  # acceptance length below which a gain counts as none


@dataclass(frozen=True)
class Candidate:
    """A rule with its pace.

    Attributes:
        rule: when to refresh.
        min_gap: no refresh sooner after the last one.
        max_gap: always a refresh after so many tokens.
    """

    rule: GateRule | LinearRule
    min_gap: int
    max_gap: int | None

    @property
    def signals(self) -> int:
        """How many signals it reads; of equals, the simpler one wins."""
        if isinstance(self.rule, GateRule):
            return len(self.rule.below) + len(self.rule.above)
        return sum(weight != 0 for weight in self.rule.weights)


def candidates(traces: Sequence[Trace], *, interval: int, every: int, kept: int) -> list[Candidate]:
    """Rules worth a try in closed loop: for each kind, the best for each rate of refreshing.

    Args:
        traces: of the fitting documents.
        interval: tokens between checks.
        every: interval of the periodic policy that they have to match.
        kept: rules of each kind.
    """
    signals = np.array([trace.signals for trace in traces])
    gains = np.array([trace.gain for trace in traces])
    documents = [trace.document for trace in traces]
    paces = list(itertools.product((interval, 2 * interval, 4 * interval), (4 * every, None)))
    found: list[Candidate] = []
    for rules in (
        list(gate_rules(signals)),
        list(linear_rules(signals, gains, documents, "logistic")),
        list(linear_rules(signals, gains, documents, "ridge")),
    ):
        best = frontier([(rule, asks(rule, signals)) for rule in rules], gains, kept)
        # Every rule is tried at each pace in turn, rather than all at one.
        found += [Candidate(rule, *paces[place % len(paces)]) for place, rule in enumerate(best)]
        found += [Candidate(rule, interval, 4 * every) for rule in best[: max(1, kept // 3)]]
    unique: dict[str, Candidate] = {repr(candidate): candidate for candidate in found}
    return list(unique.values())


def gate_rules(signals: Floats) -> Iterator[GateRule]:
    """Thresholds at quantiles of one signal, and of two combined by any and all."""
    limits = {
        name: sorted({float(value) for value in np.quantile(signals[:, NAMES.index(name)], QUANTILES)})
        for name in GATED
    }
    for name, values in limits.items():
        for value in values:
            yield _gate({name: value})
    for left, right in itertools.combinations(GATED, 2):
        for one, other in itertools.product(limits[left][1::2], limits[right][1::2]):
            for combine in ("any", "all"):
                yield _gate({left: one, right: other}, combine)


def linear_rules(
    signals: Floats, gains: Floats, documents: Sequence[str], kind: Literal["logistic", "ridge"]
) -> Iterator[LinearRule]:
    """One fit with its penalty chosen by folds of documents, at thresholds of its own quantiles."""
    mean, spread = signals.mean(0), signals.std(0)
    spread = np.where(spread > 1e-12, spread, 1.0)
    rows = (signals - mean) / spread
    penalty = _penalty(rows, gains, documents, kind)
    weights, bias = fit(rows, gains, penalty, kind)
    scores = rows @ weights + bias
    for threshold in sorted({float(value) for value in np.quantile(scores, np.linspace(0.1, 0.95, 10))}):
        yield LinearRule(
            signals=NAMES,
            weights=tuple(map(float, weights)),
            mean=tuple(map(float, mean)),
            spread=tuple(map(float, spread)),
            bias=float(bias),
            threshold=threshold,
        )


def fit(rows: Floats, gains: Floats, penalty: float, kind: str) -> tuple[Floats, float]:
    """Weights and bias; the bias is not penalised.

    ridge: least squares on the gain. logistic: whether the gain is noticeable, weighted by its size.
    """
    if kind == "ridge":
        centre, level = rows.mean(0), gains.mean()
        left = (rows - centre).T @ (rows - centre) + penalty * np.eye(rows.shape[1])
        weights = np.linalg.solve(left, (rows - centre).T @ (gains - level))
        return weights, float(level - centre @ weights)
    wanted, sizes = gains > NOTICEABLE, np.abs(gains) + 1e-9

    design = np.column_stack([rows, np.ones(len(rows))])
    ridge = penalty * np.diag([*[1.0] * rows.shape[1], 0.0])
    values = np.zeros(design.shape[1])
    for _ in range(_NEWTON):
        chances = 1 / (1 + np.exp(-np.clip(design @ values, -60, 60)))
        slope = design.T @ (sizes * (chances - wanted)) + ridge @ values
        curve = (design * (sizes * chances * (1 - chances))[:, None]).T @ design + ridge
        step = np.linalg.solve(curve + 1e-9 * np.eye(len(curve)), slope)
        values = values - step / max(1.0, float(np.abs(step).max()))  # steps of at most 1 cannot run away
        if float(np.abs(step).max()) < 1e-10:
            break
    return values[:-1], float(values[-1])


def asks(rule: GateRule | LinearRule, signals: Floats) -> NDArray[np.bool_]:
    """At which checks a rule would ask for a refresh."""
    if isinstance(rule, LinearRule):
        scores = (signals - np.array(rule.mean)) / np.array(rule.spread) @ np.array(rule.weights) + rule.bias
        return np.asarray(scores > rule.threshold)
    crossed = [signals[:, NAMES.index(name)] < limit for name, limit in rule.below.items()]
    crossed += [signals[:, NAMES.index(name)] > limit for name, limit in rule.above.items()]
    return np.asarray((np.any if rule.combine == "any" else np.all)(crossed, axis=0))


def frontier(
    rules: Sequence[tuple[GateRule | LinearRule, NDArray[np.bool_]]], gains: Floats, kept: int
) -> list[GateRule | LinearRule]:
    """For `kept` rates of refreshing, the rule that collects most gain without asking more often."""
    found: list[GateRule | LinearRule] = []
    # A rate below one check in all would leave no rule.
    for rate in np.linspace(max(0.05, 1 / gains.size), 0.9, kept):
        within = [
            (float(gains[fires].sum()), -float(fires.mean()), place)
            for place, (_, fires) in enumerate(rules)
            if 0 < fires.mean() <= rate
        ]
        if within:
            best = rules[max(within)[2]][0]
            if best not in found:
                found.append(best)
    return found


def _gate(limits: dict[str, float], combine: Literal["any", "all"] | str = "any") -> GateRule:
    return GateRule(
        below={name: value for name, value in limits.items() if name in FALLING},
        above={name: value for name, value in limits.items() if name not in FALLING},
        combine="all" if combine == "all" else "any",
    )


def _penalty(rows: Floats, gains: Floats, documents: Sequence[str], kind: str) -> float:
    """The penalty whose fits on the other documents say most about each fold's gains."""
    order = {document: place % FOLDS for place, document in enumerate(sorted(set(documents)))}
    folds = np.array([order[document] for document in documents])
    losses = []
    for penalty in PENALTIES:
        total = 0.0
        for fold in range(min(FOLDS, len(order))):
            held = folds == fold
            if held.all() or not held.any():
                continue
            weights, bias = fit(rows[~held], gains[~held], penalty, kind)
            scores = rows[held] @ weights + bias
            if kind == "ridge":
                total += float(((scores - gains[held]) ** 2).sum())
            else:
                wanted = gains[held] > NOTICEABLE
                total += float((np.abs(gains[held]) * (np.logaddexp(0, scores) - wanted * scores)).sum())
        losses.append(total)
    return PENALTIES[int(np.argmin(losses))]
