"""A recipe from text to report, in one work folder whose finished stages are not done again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from ridgefit.capture import capture, load_capture
from ridgefit.errors import BadInput, CheckFailed, Interrupted
from ridgefit.evaluate import EvalResult, evaluate, report
from ridgefit.evaluate.arms import resolve_arms
from ridgefit.evaluate.auto_rows import expanded
from ridgefit.evaluate.preflight import Known, require_possible
from ridgefit.evaluate.refinements import selectors_of
from ridgefit.files import canonical_json, folder_lock, read_json, sha256_bytes, sha256_file, write_json
from ridgefit.maps import Defaults, MapsManifest, kind_of, quantize, read_maps_manifest
from ridgefit.models import LoadedModel, load_model
from ridgefit.pipeline.capture import check_plan, open_text, token_store
from ridgefit.pipeline.plan import find_config
from ridgefit.pipeline.solve import solve_with
from ridgefit.pipeline.verify import VerifyReport, verify
from ridgefit.recipe import ArmSettings, RunRecipe, VerifySettings, require_used
from ridgefit.recipe.idle import as_key
from ridgefit.recipe.rows import RowSettings
from ridgefit.versions import library_versions

Progress = Callable[[int, int | None, str], None]
CAPTURE, MAPS, INT8, EVAL = "capture", "maps", "maps-int8", "eval"
_RECORD = "run.json"


class RunResult(BaseModel):
    """What a run left behind.

    Attributes:
        name: of the recipe.
        work: the folder.
        stages: per stage "done" or "kept" (finished by an earlier run with the same inputs).
        splits: per split rows, chosen penalty, held-out score of the maps and of the identity fill.
        int8_error_steps: largest int8 error in units of a group's scale, None without int8 maps.
        checks: the verify stage, on the model.
        evaluation: arms, tasks, intervals.
        report: the page.
        warnings: one line each.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    work: str
    stages: dict[str, str]
    splits: dict[int, dict[str, Any]]
    int8_error_steps: float | None
    checks: VerifyReport
    evaluation: EvalResult
    report: str
    warnings: tuple[str, ...]


class _Record(BaseModel):
    """`run.json`: per finished stage the hash of everything that went into it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: str = "ridgefit-run-1"
    stages: dict[str, str] = {}


def run(recipe: RunRecipe, progress: Progress | None = None) -> RunResult:
    """Capture, solve, quantize, verify, evaluate and report.

    The same recipe on the same folder goes on where it stopped. A stage whose inputs changed is done again,
    with those that follow from it; its old result is replaced.

    Raises:
        BadInput: anything a stage refuses; the work folder belongs to something else or is in use.
        CheckFailed: the maps fail verification.
        Interrupted: a signal; the same command goes on.
    """
    require_used(recipe, written=as_key)
    check_plan(recipe.model, recipe.data, recipe.capture, recipe.work / CAPTURE)
    documents = open_text(recipe.data)
    known = Known.of_config(find_config(recipe.model.model, weights=True), recipe.model.attention)
    # Hours before they are evaluated.
    require_possible(recipe.evaluate, resolve_arms(_without_maps(recipe), None, known.layers), known)
    _require_own_maps(recipe)
    with folder_lock(recipe.work):
        loaded = load_model(**recipe.model.load_options())
        stages = _Stages(recipe.work)
        settings = recipe.capture.model_copy(update={"resume": True})
        try:
            captured = capture(
                loaded,
                token_store(loaded, recipe.data, documents),
                settings,
                recipe.work / CAPTURE,
                progress=(lambda done, total, _: progress(done, total, "tokens captured"))
                if progress
                else None,
            )
        except Interrupted as stopped:
            # A capture by itself wants --resume, which a run always does and has no option for.
            raise Interrupted(stopped.what, "run the same command again to go on") from stopped
        stages.note(CAPTURE, done=captured.tokens > 0)
        manifest = _maps(recipe, loaded, stages, progress)
        steps = _int8(recipe, stages)
        checks = verify(
            VerifySettings(maps=recipe.work / MAPS),
            recipe.model.model_copy(update={"dtype": "float32"}),
            progress,
        )
        if not checks.ok:
            failed = next(line for line in checks.lines if not line.ok)
            raise CheckFailed(
                f"{failed.subject} in {recipe.work / MAPS} fails '{failed.check}': {failed.detail}",
                "see `ridgefit verify` for every check",
            )
        evaluation = _evaluation(recipe, loaded, stages, progress)
        page = report(recipe.work / EVAL, maps=recipe.work / MAPS)
    return RunResult(
        name=recipe.name,
        work=str(recipe.work),
        stages=stages.found,
        splits={split: _summary(record.scores) for split, record in manifest.splits.items()},
        int8_error_steps=steps,
        checks=checks,
        evaluation=evaluation,
        report=str(page),
        warnings=tuple(dict.fromkeys([*_warnings(manifest), *checks.warnings, *evaluation.warnings])),
    )


def _without_maps(recipe: RunRecipe) -> list[ArmSettings]:
    """Arms as they can be checked before there are maps: those that need some as an identity fill.

    Rows chosen by a frequency table of the capture to come are left out. Arms without a split take the only
    captured one, as they will.
    """
    (split, *others) = recipe.capture.split
    settings, _ = expanded(recipe.evaluate, None)
    found = []
    for arm in settings.arms:
        changes: dict[str, Any] = {"name": arm.label}
        if arm.split is None and arm.kind in ("identity", "none", "ridge") and not others:
            changes["split"] = split
        if arm.kind == "ridge":
            rows = tuple(one for one in arm.rows if not any(t is None for t in _tables(one)))
            changes |= {"kind": "identity", "maps": None, "rows": rows}
        found.append(arm.model_copy(update=changes))
    return found


def _require_own_maps(recipe: RunRecipe) -> None:
    """Refuse arms whose own maps are nowhere, but for those that the run itself may write.

    Raises:
        BadInput: see `kind_of`.
    """
    for arm in recipe.evaluate.arms:
        if arm.maps is not None and "/" in arm.maps:
            path = Path(arm.maps)
            if not path.resolve().is_relative_to(recipe.work.resolve()):
                kind_of(path)


def _tables(rows: RowSettings) -> tuple[Path | None, ...]:
    return selectors_of([rows])[0].tables()


class _Stages:
    """Which stages are finished, by the hash of what went into them."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self.found: dict[str, str] = {}
        path = work / _RECORD
        try:
            self._record = _Record.model_validate(read_json(path)) if path.exists() else _Record()
        except ValidationError as error:
            raise BadInput(f"{path} is not the record of a run", "choose another work folder") from error

    def note(self, stage: str, *, done: bool) -> None:
        """Say whether a stage was done now or kept."""
        self.found[stage] = "done" if done else "kept"

    def needed(self, stage: str, key: str) -> bool:
        """Whether a stage has to be done; an outdated result of an earlier run is removed.

        Raises:
            BadInput: the stage's folder holds something that no run of this folder wrote.
        """
        folder = self._work / stage
        held = self._record.stages.get(stage)
        if held == key and folder.exists():
            self.note(stage, done=False)
            return False
        if folder.exists() and held is None and any(folder.iterdir()):
            raise BadInput(
                f"{folder} is there but no run in {self._work} wrote it", "choose another work folder"
            )
        if held is not None:
            self._keep({name: at for name, at in self._record.stages.items() if name != stage})
            shutil.rmtree(folder, ignore_errors=True)
        return True

    def begin(self, stage: str, key: str) -> None:
        """Record what a resumable stage is working on."""
        self._keep({**self._record.stages, stage: key})

    def finish(self, stage: str, key: str) -> None:
        """Record a stage as finished with these inputs."""
        self._keep({**self._record.stages, stage: key})
        self.note(stage, done=True)

    def _keep(self, stages: dict[str, str]) -> None:
        self._record = _Record(stages=stages)
        write_json(self._work / _RECORD, self._record.model_dump(mode="json"))


def _key(**inputs: Any) -> str:
    return sha256_bytes(canonical_json(inputs))


def _maps(recipe: RunRecipe, loaded: LoadedModel, stages: _Stages, progress: Progress | None) -> MapsManifest:
    """Solve, unless the maps of these moments and settings are there."""
    out = recipe.work / MAPS
    captured = load_capture(recipe.work / CAPTURE)
    tails = {task.tail for task in recipe.evaluate.fill_tasks}
    sinks = {arm.sink_rows for arm in recipe.evaluate.arms if arm.kind == "ridge"}
    defaults = Defaults(tail=max(tails), sink_rows=max(sinks, default=0))
    key = _key(
        moments={split: record.sha256 for split, record in captured.record.moments.items()},
        text=captured.identity["text"],
        settings=recipe.solve.model_dump(mode="json"),
        defaults=defaults.model_dump(mode="json"),
        versions=library_versions(),
    )
    if stages.needed(MAPS, key):
        solve_with(loaded, captured, recipe.solve, out, progress, defaults=defaults)
        stages.finish(MAPS, key)
    return read_maps_manifest(out)


def _int8(recipe: RunRecipe, stages: _Stages) -> float | None:
    """Quantise, unless the int8 copy of these maps is there."""
    if not recipe.quantize:
        return None
    key = _key(maps=_maps_hash(recipe))
    if stages.needed(INT8, key):
        quantize(recipe.work / MAPS, recipe.work / INT8)
        stages.finish(INT8, key)
    records = read_maps_manifest(recipe.work / INT8).splits.values()
    return max(record.largest_error_steps or 0.0 for record in records)


def _evaluation(
    recipe: RunRecipe, loaded: LoadedModel, stages: _Stages, progress: Progress | None
) -> EvalResult:
    """Evaluate; samples that are scored already are kept by the evaluation itself."""
    key = _key(
        maps=_maps_hash(recipe),
        settings=recipe.evaluate.model_dump(mode="json"),
        model=loaded.identity(),
        versions=library_versions(),
    )
    fresh = stages.needed(EVAL, key)
    stages.begin(EVAL, key)
    result = evaluate(loaded, recipe.evaluate, recipe.work / MAPS, recipe.work / EVAL, progress=progress)
    stages.note(EVAL, done=fresh)
    return result


def _maps_hash(recipe: RunRecipe) -> str:
    return sha256_file(recipe.work / MAPS / "ridgefit.json")


def _summary(scores: Any) -> dict[str, Any]:
    """The line of one split from what `solve` recorded."""
    choice = scores["choice"]
    alphas = sorted(set(choice["alphas"]))
    return {
        "rows": scores["fit"]["rows"],
        "rows_per_width": scores["fit"]["rows_per_width"],
        "alphas": alphas,
        "score": choice["score"],
        "identity": scores["identity"],
    }


def _warnings(manifest: MapsManifest) -> list[str]:
    found = []
    for split, record in manifest.splits.items():
        scores: Any = record.scores
        lines = [*scores["fit"]["warnings"], *scores["choice"]["warnings"]]
        found += [f"split {split}: {line}" for line in lines]
    return found
