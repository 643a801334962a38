"""Evaluations from a model's name: what can be refused is refused before the model is loaded."""

from __future__ import annotations

from pathlib import Path

from ridgefit.errors import BadInput
from ridgefit.evaluate.acceptance import evaluate_acceptance
from ridgefit.evaluate.acceptance_summary import AcceptanceResult
from ridgefit.evaluate.arms import resolve_arms
from ridgefit.evaluate.auto_rows import expanded
from ridgefit.evaluate.journal import require_results_folder
from ridgefit.evaluate.preflight import Known, require_possible
from ridgefit.evaluate.recall.arms import opened_policies
from ridgefit.evaluate.recall.result import RecallResult
from ridgefit.evaluate.recall.run import evaluate_recall, require_samples
from ridgefit.evaluate.result import EvalResult
from ridgefit.evaluate.run import Progress, evaluate
from ridgefit.hub import local_maps
from ridgefit.models import load_model
from ridgefit.models.load import load_latent
from ridgefit.pipeline.plan import find_config
from ridgefit.recipe import AcceptanceSettings, EvalSettings, ModelSettings, RecallEvalSettings, require_used


def judge_arms(
    model: ModelSettings,
    settings: EvalSettings,
    maps: str | Path | None,
    out: Path,
    progress: Progress | None = None,
) -> EvalResult:
    """Judge arms against exact; see `evaluate`.

    Raises:
        BadInput: settings that would do nothing, or that no sample could make right; what `evaluate` refuses.
    """
    require_used(settings)
    if maps is not None and not any(_reads_maps(arm.kind, arm.split, arm.maps) for arm in settings.arms):
        raise BadInput(
            "--maps would do nothing with arms that read none of them", "add a ridge arm, or leave it out"
        )
    require_results_folder(out)
    here = local_maps(maps) if maps else None
    known = Known.of_config(find_config(model.model, weights=True), model.attention)
    whole, _ = expanded(settings, here)
    require_possible(whole, resolve_arms(whole.arms, here, known.layers), known)
    return evaluate(load_model(**model.load_options()), settings, here, out, progress=progress)


def judge_policies(
    model: ModelSettings, settings: RecallEvalSettings, out: Path, progress: Progress | None = None
) -> RecallResult:
    """Judge recall policies against the dense model; see `evaluate_recall`.

    Raises:
        BadInput: settings that would do nothing, or what `evaluate_recall` refuses.
    """
    require_used(settings)
    require_results_folder(out)
    policies = tuple(local_maps(policy) for policy in settings.policy)
    settings = settings.model_copy(update={"policy": policies})
    opened_policies(settings)
    require_samples(settings)
    return evaluate_recall(load_latent(**model.load_options()), settings, out, progress=progress)


def judge_drafts(
    model: ModelSettings, settings: EvalSettings, out: Path, progress: Progress | None = None
) -> AcceptanceResult:
    """Judge a draft's cache policies by the acceptance length; see `evaluate_acceptance`.

    Args:
        model: the target.
        settings: with acceptance as the only task.
        out: folder for the results.
        progress: called after each prompt.

    Raises:
        BadInput: another task beside, settings that would do nothing, or what `evaluate_acceptance` refuses.
    """
    task = settings.tasks[0]
    if not isinstance(task, AcceptanceSettings) or len(settings.tasks) > 1 or settings.arms:
        raise BadInput("acceptance stands alone", "leave out --arms, --maps and other tasks")
    require_used(settings)
    if task.controller is not None:
        task = task.model_copy(update={"controller": local_maps(task.controller)})
    return evaluate_acceptance(
        model.load_options(),
        task,
        out,
        fraction=settings.fraction,
        resamples=settings.resamples,
        seed=settings.seed,
        progress=progress,
    )


def _reads_maps(kind: str, split: int | None, own: str | None) -> bool:
    """Whether an arm reads the evaluation's maps: a ridge arm without a path of its own, or their split."""
    if kind == "ridge":
        return own is None or "/" not in own
    return kind in ("identity", "none") and split is None
