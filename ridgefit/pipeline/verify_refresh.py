"""A refresh controller checked from its file, and with the target whether it was made for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ridgefit.errors import BadInput
from ridgefit.hub import check_repository, is_repository
from ridgefit.maps.refresh import RefreshController, load_controller
from ridgefit.maps.refresh_rows import rule_text
from ridgefit.models.load import load_decoder
from ridgefit.pipeline.verify import ON_A_MODEL, VerifyLine, VerifyReport
from ridgefit.recipe import ModelSettings, VerifySettings, refuse_idle
from ridgefit.runtime.draft.frozen import controller_from


def verify_controller(settings: VerifySettings, model: ModelSettings | None) -> VerifyReport:
    """Check hashes, signals and splits; with a model also that it is the target the controller was made for.

    The draft is not loaded: a use of the controller compares it.

    Raises:
        BadInput: settings that would do nothing, or a model that cannot be loaded.
    """
    refuse_idle(settings, ("split", *ON_A_MODEL), "for a refresh controller, of which nothing is run")
    folder = Path(settings.maps)
    lines: list[VerifyLine] = []
    try:
        if is_repository(folder):
            check_repository(folder)
            lines.append(_line("repository", ok=True, detail="every hash is right"))
        found = load_controller(folder)
        lines.append(_line("file", ok=True, detail="its hash is right"))
        controller_from(found)()
        lines.append(_line("rule", ok=True, detail=f"refresh when {rule_text(found)}"))
    except BadInput as error:
        lines.append(_line("file", ok=False, detail=str(error)))
        return VerifyReport(ok=False, lines=tuple(lines))
    lines += _promises(found)
    if model is not None:
        loaded = load_decoder(**model.load_options())
        try:
            found.require_models(loaded.identity(), found.draft)
            lines.append(_line("target", ok=True, detail="the controller was made for this model"))
        except BadInput as error:
            lines.append(_line("target", ok=False, detail=str(error)))
    return VerifyReport(ok=all(line.ok for line in lines), lines=tuple(lines))


def _promises(found: RefreshController) -> Iterator[VerifyLine]:
    parts = [set(found.fit), set(found.select), set(found.test)]
    shared = sum(map(len, parts)) - len(set().union(*parts))
    detail = f"{shared} in more than one" if shared else ", ".join(map(str, map(len, parts)))
    yield _line("documents to fit, select and test", ok=not shared, detail=detail)
    said, own = found.scores.get("frozen_sha256"), found.frozen_sha256
    if said is None:
        yield _line("frozen before its test", ok=False, detail="it was not tested")
    else:
        detail = own[:12] if said == own else f"{own[:12]}, and {said[:12]} was tested"
        yield _line("frozen before its test", ok=said == own, detail=detail)


def _line(check: str, *, ok: bool, detail: str) -> VerifyLine:
    return VerifyLine(subject="controller", check=check, ok=ok, detail=detail)
