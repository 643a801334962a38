"""Maps checked from their bytes, and with a model the promises of design rule 1."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from ridgefit.errors import BadInput
from ridgefit.hub import local_maps
from ridgefit.maps import read_maps_manifest, verify_files
from ridgefit.maps.load import kind_of
from ridgefit.models import load_model
from ridgefit.recipe import ModelSettings, VerifySettings, refuse_idle
from ridgefit.runtime import RidgeFill, check_model

Progress = Callable[[int, int | None, str], None]
ON_A_MODEL = ("prompt", "tail", "seed")
"""Settings of checks that run a model."""


class VerifyLine(BaseModel):
    """One thing that was checked.

    Attributes:
        subject: file, or split tried on the model.
        check: what was checked.
        ok: whether it holds.
        detail: what was found.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    subject: str
    check: str
    ok: bool
    detail: str


class VerifyReport(BaseModel):
    """Every check, in order.

    Attributes:
        ok: whether all of them hold.
        lines: the checks.
        warnings: differences from the model that do not forbid the use.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    ok: bool
    lines: tuple[VerifyLine, ...]
    warnings: tuple[str, ...] = ()


def verify(
    settings: VerifySettings, model: ModelSettings | None = None, progress: Progress | None = None
) -> VerifyReport:
    """Check hashes, headers and shapes; with a model also fingerprint, off, plumb, all-exact and identity.

    The model runs in float32 unless its settings say otherwise, because "every row exact is exact" is a
    statement about arithmetic and not about rounding.

    Raises:
        BadInput: there are no maps at the path, or the model cannot be loaded or has weights that are not
            finite.
    """
    if model is None:
        refuse_idle(settings, ON_A_MODEL, "without a model to run", "name one with --model")
    settings = settings.model_copy(update={"maps": local_maps(settings.maps, settings.split)})
    lines = [VerifyLine(**found.model_dump()) for found in verify_files(settings.maps, settings.split)]
    warnings: list[str] = []
    if model is not None and all(line.ok for line in lines):
        options = model.load_options()
        if model.dtype == "auto":
            options["dtype"] = "float32"
        # Weights that are not numbers would fail every check below and blame the fill.
        loaded = load_model(**options, check_weights=True)
        for split in _splits(settings):
            if progress:
                progress(len(lines), None, f"split {split} on the model")
            fill = RidgeFill.load(settings.maps, split)
            try:
                found = fill.check(loaded.port, loaded.tokenizer)
            except BadInput as error:
                lines.append(_line(split, "fingerprint", ok=False, detail=str(error)))
                continue
            # float32 is this command's own choice, so a difference in dtype is no news
            warnings += [line for line in found if model.dtype != "auto" or "dtype" not in line]
            lines.append(_line(split, "fingerprint", ok=True, detail="the maps belong to this model"))
            for check in check_model(
                loaded.model, fill=fill, prompt=settings.prompt, tail=settings.tail, seed=settings.seed
            ):
                bound = "bit for bit" if check.limit == 0 else f"within {check.limit:g}"
                detail = f"{check.detail}: largest difference {check.difference:.3g}, must hold {bound}"
                lines.append(_line(split, check.name, ok=check.passed, detail=detail))
    return VerifyReport(
        ok=all(line.ok for line in lines), lines=tuple(lines), warnings=tuple(dict.fromkeys(warnings))
    )


def _line(split: int, check: str, *, ok: bool, detail: str) -> VerifyLine:
    return VerifyLine(subject=f"split {split}", check=check, ok=ok, detail=detail)


def _splits(settings: VerifySettings) -> list[int]:
    if settings.split is not None:
        return [settings.split]
    path = Path(settings.maps)
    if kind_of(path) == "maps":
        return list(read_maps_manifest(path).splits)
    return [RidgeFill.load(path).split]
