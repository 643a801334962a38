"""A recall policy checked from its files, and with a model the promises it makes."""

from __future__ import annotations

from pathlib import Path

from ridgefit.errors import BadInput
from ridgefit.hub import check_repository, is_repository
from ridgefit.maps.recall import POLICY, RecallPolicy
from ridgefit.models.load import load_latent
from ridgefit.pipeline.verify import ON_A_MODEL, VerifyLine, VerifyReport
from ridgefit.recipe import ModelSettings, VerifySettings, refuse_idle
from ridgefit.runtime.recall import Recall
from ridgefit.runtime.recall.checks import check_policy


def verify_policy(settings: VerifySettings, model: ModelSettings | None) -> VerifyReport:
    """Check files and bases; with a model also fingerprint, premise, every row kept, every row fetched, off.

    The model runs in float32 unless its settings say otherwise.

    Raises:
        BadInput: settings that would do nothing, or a model that cannot be loaded or has no latent cache.
    """
    refuse_idle(settings, ("split", "tail"), "for a recall policy, which has none")
    if model is None:
        refuse_idle(settings, ON_A_MODEL, "without a model to run", "name one with --model")
    folder = Path(settings.maps)
    lines: list[VerifyLine] = []
    try:
        if is_repository(folder):
            check_repository(folder)
            lines.append(_line("repository", ok=True, detail="every hash is right"))
        policy = RecallPolicy.load(folder)
        finite = all(bool(basis.isfinite().all()) for basis in policy.bases.values())
        detail = f"{len(policy.bases)} bases of {len(policy.manifest.layers)} layers, all finite"
        lines.append(_line("policy", ok=finite, detail=detail if finite else "a basis is not finite"))
    except BadInput as error:
        lines.append(_line("policy", ok=False, detail=str(error)))
        return VerifyReport(ok=False, lines=tuple(lines))
    warnings: list[str] = []
    if model is not None and finite:
        options = model.load_options()
        if model.dtype == "auto":
            options["dtype"] = "float32"
        loaded = load_latent(**options)
        recall = Recall(policy)
        try:
            found = recall.check(loaded.model, loaded.tokenizer)
        except BadInput as error:
            lines.append(_line("fingerprint", ok=False, detail=str(error)))
            return VerifyReport(ok=False, lines=tuple(lines))
        warnings = [line for line in found if model.dtype != "auto" or "dtype" not in line]
        lines.append(_line("fingerprint", ok=True, detail="the policy belongs to this model"))
        checks = check_policy(recall, loaded.model, prompt=settings.prompt, seed=settings.seed)
        lines += [_line(check.name, ok=check.passed, detail=check.detail) for check in checks]
    return VerifyReport(ok=all(line.ok for line in lines), lines=tuple(lines), warnings=tuple(warnings))


def _line(check: str, *, ok: bool, detail: str) -> VerifyLine:
    return VerifyLine(subject=POLICY, check=check, ok=ok, detail=detail)
