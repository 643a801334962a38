"""Can this model be fitted here: what would go wrong later, found in a minute."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict

from ridgefit import cost
from ridgefit.corpus import template_doubles_bos
from ridgefit.errors import BadInput
from ridgefit.evaluate.needle import NeedleTask
from ridgefit.evaluate.samples import Reach
from ridgefit.models import LoadedModel, load_model
from ridgefit.pipeline.plan import find_config
from ridgefit.recipe import DoctorSettings, ModelSettings, NeedleSettings, require_used
from ridgefit.runtime import check_model

Progress = Callable[[int, int | None, str], None]
State = Literal["ok", "note", "failed"]
_NEEDLES_WANTED = 0.75


class Finding(BaseModel):
    """One thing the doctor looked at.

    Attributes:
        subject: what was looked at.
        state: `note` is worth knowing and forbids nothing.
        detail: what was found.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    subject: str
    state: State
    detail: str


class Diagnosis(BaseModel):
    """Every finding, and where to start.

    Attributes:
        ok: whether nothing failed.
        findings: in the order they were made.
        suggestion: split and tail to start from.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    ok: bool
    findings: tuple[Finding, ...]
    suggestion: cost.Suggestion


def doctor(model: ModelSettings, settings: DoctorSettings, progress: Progress | None = None) -> Diagnosis:
    """Load a model and look for what makes fits or results wrong.

    Checks the family, the weights, QK-norm and layer kinds, double BOS, silent truncation, that hooks leave
    the model as they found it, and that the exact model finds needles: a model that does not cannot show
    what a fill loses.

    Raises:
        BadInput: the model cannot be loaded, its family is unknown, or weights are not finite.
    """
    require_used(settings)
    step = _Steps(progress)
    step("loading")
    loaded = load_model(**model.load_options(), check_weights=True)
    shape = cost.shape_from_config(find_config(model.model))
    findings = [
        _family(loaded),
        _kinds(loaded),
        _norm(loaded),
        Finding(subject="weights", state="ok", detail="every weight is a finite number"),
        _bos(loaded),
        _truncation(loaded),
    ]
    step("stock, plumb and all-exact runs")
    findings += _checks(loaded)
    if settings.needle_samples:
        step("needles with the exact model")
        findings.append(_needles(loaded, settings))
    return Diagnosis(
        ok=all(found.state != "failed" for found in findings),
        findings=tuple(findings),
        suggestion=cost.suggest(shape, _positions(loaded) or 16384),
    )


class _Steps:
    """Counts steps for a progress callback that may be absent."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._done = 0

    def __call__(self, text: str) -> None:
        if self._progress:
            self._progress(self._done, None, text)
        self._done += 1


def _family(loaded: LoadedModel) -> Finding:
    port = loaded.port
    detail = f"{port.family}: {port.n_layers} layers, hidden {port.hidden}, {port.dtype}, {port.attention}"
    return Finding(subject="family", state="ok", detail=detail.replace("torch.", ""))


def _kinds(loaded: LoadedModel) -> Finding:
    port = loaded.port
    counts = Counter(port.kind(layer) for layer in range(port.n_layers))
    windows = {port.window(layer) for layer in range(port.n_layers)} - {None}
    detail = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    if windows:
        detail += f", window {', '.join(map(str, sorted(w for w in windows if w)))}"
    return Finding(subject="layers", state="ok", detail=detail)


def _norm(loaded: LoadedModel) -> Finding:
    if loaded.port.qk_norm:
        return Finding(
            subject="QK-norm", state="ok", detail="keys are normalised; a split at 3/8 depth is safe"
        )
    return Finding(
        subject="QK-norm",
        state="note",
        detail="keys are not normalised; split at half depth or deeper (paper section 6.1)",
    )


def _bos(loaded: LoadedModel) -> Finding:
    if template_doubles_bos(loaded.tokenizer):
        return Finding(
            subject="BOS",
            state="note",
            detail="tokenising chat text with default settings would write BOS twice; ridgefit does not, "
            "other tools reading the same text may",
        )
    return Finding(subject="BOS", state="ok", detail="written once")


def _truncation(loaded: LoadedModel) -> Finding:
    positions = _positions(loaded)
    longest = int(min(loaded.tokenizer.model_max_length, 1 << 60))
    if positions and longest < positions:
        return Finding(
            subject="truncation",
            state="note",
            detail=f"the tokenizer claims at most {longest:,} tokens, the model has {positions:,} positions; "
            "ridgefit never truncates, other tools may",
        )
    return Finding(
        subject="truncation", state="ok", detail=f"{positions:,} positions, none cut by the tokenizer"
    )


def _checks(loaded: LoadedModel) -> list[Finding]:
    try:
        checks = check_model(loaded.model)
    except BadInput as error:
        return [Finding(subject="fill", state="failed", detail=str(error))]
    return [
        Finding(
            subject=check.name,
            state="ok" if check.passed else "failed",
            detail=f"{check.detail}: largest difference {check.difference:.3g}",
        )
        for check in checks
    ]


def _needles(loaded: LoadedModel, settings: DoctorSettings) -> Finding:
    """Single needles with the model untouched; the paper's measures are empty on a model that fails these."""
    needles = NeedleSettings(
        prompt=settings.needle_prompt, tail=settings.needle_prompt // 4, samples=settings.needle_samples
    )
    task = NeedleTask(needles)
    samples = task.samples(loaded, Reach(tail=needles.tail, sink_rows=0), settings.seed).samples
    with torch.no_grad():
        scored = [task.score(loaded, [sample], _untouched, None)[0] for sample in samples]
    found = [one.scores["strict"] for one in scored]
    share = sum(score or 0.0 for score in found) / len(found)
    return Finding(
        subject="needles",
        state="ok" if share >= _NEEDLES_WANTED else "failed",
        detail=f"the exact model finds {share:.0%} of {len(found)} numbers in {settings.needle_prompt} tokens"
        + ("" if share >= _NEEDLES_WANTED else "; retrieval cannot judge a fill of this model"),
    )


@contextlib.contextmanager
def _untouched() -> Iterator[Any]:
    yield None


def _positions(loaded: LoadedModel) -> int:
    return int(getattr(loaded.port.config, "max_position_embeddings", 0) or 0)
