"""Moments to maps: one spectrum per split, penalties judged on held-out text, files that hold the choice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ridgefit import cost
from ridgefit.capture import CaptureFolder, HeldRows, load_capture
from ridgefit.capture.identity import require_same, weights_sha256
from ridgefit.evaluate.arms import CANDIDATES
from ridgefit.features import FeatureList, SplitShape
from ridgefit.files import new_folder, require_space, require_unused
from ridgefit.maps import FREQUENCIES, Defaults, Fingerprint, MapSet, MapsWriter, SplitMaps
from ridgefit.models import LoadedModel, load_model
from ridgefit.pipeline.candidate_list import candidates_of, require_solvable
from ridgefit.pipeline.candidates import Solved, SplitSolver
from ridgefit.pipeline.captured import captured_model
from ridgefit.pipeline.frontier import Frontier, frontier
from ridgefit.pipeline.probe import Probe, Probed
from ridgefit.pipeline.solve_report import SolveReport, SplitReport
from ridgefit.recipe import CandidateSettings, ModelSettings, SolveSettings, require_used
from ridgefit.runtime import RidgeFill
from ridgefit.versions import library_versions, machine

Progress = Callable[[int, int | None, str], None]
_BF16 = 2


def solve(
    folder: Path,
    model: ModelSettings | None,
    settings: SolveSettings,
    out: Path,
    progress: Progress | None = None,
    *,
    defaults: Defaults | None = None,
) -> SolveReport:
    """Fit the maps of every captured split and write them.

    Args:
        folder: a finished capture.
        model: the captured model, which runs once more, over the held-out windows; None takes the one that
            the capture names.
        settings: penalty and grid, what the maps read, and what they are compared with.
        out: MAPS folder; must not exist or be empty.
        progress: called with what is being done.
        defaults: tail and sink rows to suggest in the files; the paper's tail if absent (see `cost.suggest`).

    Raises:
        BadInput: settings that would do nothing, an unfinished capture, another model than the captured one,
            too few rows, a folder in use.
        CheckFailed: the sums are corrupt or a score is not finite.
    """
    require_used(settings)
    model = model or captured_model(folder)
    captured = load_capture(folder)
    if settings.drop_lead:
        captured.require_lead()
    require_unused(out)
    return solve_with(
        load_model(**model.load_options()), captured, settings, out, progress, defaults=defaults
    )


def solve_with(
    loaded: LoadedModel,
    captured: CaptureFolder,
    settings: SolveSettings,
    out: Path,
    progress: Progress | None = None,
    *,
    defaults: Defaults | None = None,
) -> SolveReport:
    """`solve` with a model that is loaded already."""
    require_unused(out)
    _require_captured_model(loaded, captured)
    port, features = loaded.port, FeatureList(captured.features)
    late = port.n_layers - max(captured.splits)
    compared = candidates_of(settings, captured.features, port.hidden, late) if settings.compares else []
    require_solvable(
        compared or [settings.wanted(captured.features)], captured.features, port, captured.splits
    )
    _require_room(out, loaded, captured, settings, len(compared))
    held = HeldRows.read(
        loaded,
        captured.store(),
        captured.splits,
        rows=settings.score_rows,
        drop_lead=captured.lead if settings.drop_lead else 0,
        features=features,
        progress=progress,
    )
    probe = Probe(loaded, captured.store(), settings, progress) if compared else None
    kept = defaults or _suggested(loaded)
    wanted = None if settings.auto else settings.wanted(captured.features).label
    reports: list[SplitReport] = []
    with new_folder(out) as folder:

        def writer(place: Path) -> MapsWriter:
            return MapsWriter(
                place,
                fingerprint=Fingerprint.of(loaded.identity()),
                provenance=_provenance(captured, settings),
                frequencies=captured.path / FREQUENCIES,
            )

        chosen_maps = writer(folder)
        others = {
            candidate.label: writer(folder / CANDIDATES / candidate.label)
            for candidate in compared
            if settings.keep_candidates
        }
        for split in captured.splits:
            solver = SplitSolver(
                split,
                captured.rows(split, drop_lead=settings.drop_lead),
                captured.features,
                held,
                port,
                settings,
                progress,
            )
            if probe is None:
                report = SplitReport.of(split, chosen := solver.solve(settings.wanted(captured.features)))
            else:
                chosen, found = _compare(split, solver, compared, wanted, probe, settings, others, kept)
                report = SplitReport.of(split, chosen, found)
            reports.append(report)
            chosen_maps.add(_split_maps(solver.maps(chosen, kept), report, settings))
        for other in others.values():
            other.finish()
        chosen_maps.finish()
    return SolveReport(out=str(out), splits=tuple(reports))


def _compare(
    split: int,
    solver: SplitSolver,
    candidates: Sequence[CandidateSettings],
    wanted: str | None,
    probe: Probe,
    settings: SolveSettings,
    writers: Mapping[str, MapsWriter],
    defaults: Defaults,
) -> tuple[Solved, Frontier]:
    """Solve and probe every candidate of a split, and choose."""
    found: list[tuple[Solved, Probed]] = []
    for candidate in candidates:
        solved = solver.solve(candidate)
        maps = solver.maps(solved, defaults)
        if candidate.label in writers:
            writers[candidate.label].add(_split_maps(maps, SplitReport.of(split, solved), settings))
        found.append((solved, probe.score(f"split {split}, {candidate.label}", RidgeFill.of(maps))))
    result = frontier(split, found, probe, settings, wanted)
    return next(solved for solved, _ in found if solved.settings.label == result.chosen), result


def _split_maps(maps: MapSet, report: SplitReport, settings: SolveSettings) -> SplitMaps:
    return SplitMaps(
        maps=maps,
        alphas=report.choice.alphas,
        penalty=settings.penalty,
        rows=report.fit.rows,
        scores=report.model_dump(mode="json"),
    )


def _require_room(
    out: Path, loaded: LoadedModel, captured: CaptureFolder, settings: SolveSettings, candidates: int
) -> None:
    """Refuse a disk without room for maps of all captured features, once or once per candidate."""
    features, port = FeatureList(captured.features), loaded.port
    weights = sum(
        (port.n_layers - split) * (features.width(SplitShape.of(port, split)) + 1)
        for split in captured.splits
    )
    copies = 1 + (candidates if settings.keep_candidates else 0)
    require_space(out, copies * weights * port.hidden * _BF16, "the maps")


def _suggested(loaded: LoadedModel) -> Defaults:
    """A tail for prompts as long as the model takes."""
    config = loaded.port.config.to_dict()
    longest = int(config.get("max_position_embeddings") or 16_384)
    return Defaults(tail=cost.suggest(cost.shape_from_config(config), longest).tail)


def _require_captured_model(loaded: LoadedModel, captured: CaptureFolder) -> None:
    """Maps are solved for the model whose moments these are, and scored on it.

    Raises:
        BadInput: naming the first field that differs, and both values.
    """
    wanted = dict(captured.identity["model"])
    known = {**loaded.identity(), "weights_sha256": weights_sha256(loaded.port.decoder)}
    require_same(
        {field: value for field, value in wanted.items() if field in known},
        {field: value for field, value in known.items() if field in wanted},
        f"the capture in {captured.path}",
        "give the captured model with the same --dtype, or capture again",
    )


def _provenance(captured: CaptureFolder, settings: SolveSettings) -> dict[str, Any]:
    manifest = captured.store().manifest
    return {
        "capture": {
            "identity": captured.identity,
            "moments": {split: record.sha256 for split, record in captured.record.moments.items()},
            "about": captured.record.about,
        },
        "documents": [
            {
                "sha256": document.sha256,
                "tokens": document.tokens,
                "fold": document.fold,
                "domain": document.domain,
            }
            for document in manifest.documents
        ],
        "dropped": dict(manifest.dropped),
        "solve": settings.model_dump(mode="json"),
        "versions": library_versions(),
        "machine": machine(),
    }
