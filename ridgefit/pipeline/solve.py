"""Moments to maps: one spectrum per split, penalties judged on held-out text, files that hold the choice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from ridgefit import cost
from ridgefit.capture import CandidateScores, CaptureFolder, HeldRows, load_capture
from ridgefit.capture.identity import require_same, weights_sha256
from ridgefit.features import FeatureList, SplitShape
from ridgefit.files import require_space, require_unused
from ridgefit.maps import Defaults, Fingerprint, LayerMap, MapSet, SplitMaps, write_maps
from ridgefit.models import LoadedModel, load_model
from ridgefit.recipe import ModelSettings, SolveSettings
from ridgefit.ridge import Choice, FitReport, RidgeFit, choose
from ridgefit.versions import library_versions, machine

Progress = Callable[[int, int | None, str], None]
_BF16 = 2


class LayerReport(BaseModel):
    """Held-out cosines of one late layer under its chosen penalty, the identity fill's beside them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    layer: int
    alpha: float
    keys: float
    values: float
    inputs: float
    identity_keys: float
    identity_values: float
    identity_inputs: float


class SplitReport(BaseModel):
    """One split: its fit, the penalty grid, the choice, and what it is worth layer by layer.

    Attributes:
        split: split layer.
        fit: rows, spectrum, degrees of freedom.
        choice: chosen penalties and the whole grid.
        layers: per late layer.
        scored_rows: held-out rows behind the scores.
        identity: mean cosine of keys and values that the identity fill writes, on the same rows.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    split: int
    fit: FitReport
    choice: Choice
    layers: tuple[LayerReport, ...]
    scored_rows: int
    identity: float

    @property
    def warnings(self) -> tuple[str, ...]:
        """Everything a reader should know before trusting the maps."""
        return tuple(f"split {self.split}: {line}" for line in (*self.fit.warnings, *self.choice.warnings))


class SolveReport(BaseModel):
    """What `solve` wrote."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    out: str
    splits: tuple[SplitReport, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of every split."""
        return tuple(line for split in self.splits for line in split.warnings)


def solve(
    folder: Path,
    model: ModelSettings,
    settings: SolveSettings,
    out: Path,
    progress: Progress | None = None,
    *,
    defaults: Defaults | None = None,
) -> SolveReport:
    """Fit the maps of every captured split and write them.

    Args:
        folder: a finished capture.
        model: the captured model; it runs once more, over the held-out windows.
        settings: penalty and grid.
        out: MAPS folder; must not exist or be empty.
        progress: called with what is being done.
        defaults: tail and sink rows to suggest in the files; the paper's tail if absent (see `cost.suggest`).

    Raises:
        BadInput: an unfinished capture, another model than the captured one, too few rows, a folder in use.
        CheckFailed: the sums are corrupt or a score is not finite.
    """
    captured = load_capture(folder)
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
    features = FeatureList(captured.features)
    hidden = loaded.port.hidden
    widths = {split: features.width(SplitShape.of(loaded.port, split)) for split in captured.splits}
    weights = sum((loaded.port.n_layers - split) * (width + 1) for split, width in widths.items())
    require_space(out, weights * hidden * _BF16, "the maps")
    held = HeldRows.read(
        loaded,
        captured.store(),
        captured.splits,
        rows=settings.score_rows,
        drop_lead=captured.lead if settings.drop_lead else 0,
        features=features,
        progress=progress,
    )
    reports: list[SplitReport] = []

    def solved() -> Iterator[SplitMaps]:
        for split in captured.splits:
            fit = RidgeFit(captured.rows(split, drop_lead=settings.drop_lead), settings.penalty)
            report = _judge(split, fit, held, settings, progress)
            reports.append(report)
            yield SplitMaps(
                maps=MapSet(
                    layers=range(split, loaded.port.n_layers),
                    in_width=widths[split],
                    out_width=hidden,
                    read=_reader(split, fit, report.choice),
                    features=captured.features,
                    defaults=defaults or _suggested(loaded),
                ),
                alphas=report.choice.alphas,
                penalty=settings.penalty,
                rows=report.fit.rows,
                scores=report.model_dump(mode="json"),
            )

    write_maps(
        out,
        solved(),
        fingerprint=Fingerprint.of(loaded.identity()),
        provenance=_provenance(captured, settings),
    )
    return SolveReport(out=str(out), splits=tuple(reports))


def _suggested(loaded: LoadedModel) -> Defaults:
    """A tail for prompts as long as the model takes."""
    config = loaded.port.config.to_dict()
    longest = int(config.get("max_position_embeddings") or 16_384)
    return Defaults(tail=cost.suggest(cost.shape_from_config(config), longest).tail)


def _judge(
    split: int, fit: RidgeFit, held: HeldRows, settings: SolveSettings, progress: Progress | None
) -> SplitReport:
    """Score the grid on held-out rows and choose."""
    fitted = fit.report(settings.alphas)
    scores = held.score(split, fit.candidates(settings.alphas), progress=progress)
    choice = choose(scores.keys, scores.values, per_layer=settings.per_layer)
    return SplitReport(
        split=split,
        fit=fitted,
        choice=choice,
        layers=tuple(_layers(split, choice, scores)),
        scored_rows=scores.rows,
        identity=scores.identity.written,
    )


def _layers(split: int, choice: Choice, scores: CandidateScores) -> Iterator[LayerReport]:
    for at, alpha in enumerate(choice.alphas):
        ridge, identity = scores.candidates[alpha], scores.identity
        yield LayerReport(
            layer=split + at,
            alpha=alpha,
            keys=ridge.keys[at],
            values=ridge.values[at],
            inputs=ridge.inputs[at],
            identity_keys=identity.keys[at],
            identity_values=identity.values[at],
            identity_inputs=identity.inputs[at],
        )


def _reader(split: int, fit: RidgeFit, choice: Choice) -> Callable[[int], LayerMap]:
    """Solves a layer's map again when the file is written, so that only one is ever in memory."""

    def read(layer: int) -> LayerMap:
        return LayerMap(*fit.rounded(layer - split, choice.alphas[layer - split]))

    return read


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
