"""What every repository has, whatever it holds: config.json, a notice, hashes and a card."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ridgefit.errors import BadInput
from ridgefit.files import sha256_file, write_text
from ridgefit.hub.check import check_repository, repository_files
from ridgefit.hub.layout import CARD, NOTICE, SUMS, Kind, RepoConfig, SplitConfig, sums_text
from ridgefit.maps import Fingerprint

if TYPE_CHECKING:
    from ridgefit.hub.build import Base


def config_of(
    kind: Kind,
    origin: Fingerprint | None,
    base: Base,
    versions: object,
    splits: dict[int, SplitConfig] | None = None,
) -> RepoConfig:
    """`config.json` of a repository.

    Args:
        kind: what it holds.
        origin: model that the artefact was fitted on.
        base: the same on the Hub.
        versions: libraries of the fit; whatever is no mapping is left out.
        splits: of maps.

    Raises:
        BadInput: the artefact does not say which model or tokenizer it was fitted on.
    """
    if origin is None or origin.tokenizer_sha256 is None:
        raise BadInput(
            f"{kind.replace('-', ' ')} without a fingerprint of model and tokenizer cannot be published",
            "make what is published with ridgefit",
        )
    return RepoConfig(
        kind=kind,
        base_model=base.name,
        base_model_revision=base.revision,
        base_model_stated_by="fit" if base.stated_by == "fit" else "publisher",
        family=origin.family,
        dims=origin.dims,
        layer_kinds=origin.layer_kinds,
        dtype=origin.dtype,
        config_sha256=origin.config_sha256,
        tokenizer_sha256=origin.tokenizer_sha256,
        splits=splits or {},
        versions=versions if isinstance(versions, dict) else {},
    )


def seal(folder: Path, notice: str, readme: str) -> None:
    """Write notice, hashes and card of a repository whose other files are there, and judge all of them.

    Args:
        folder: of the repository.
        notice: that the licence asks for; "" for none.
        readme: the card.

    Raises:
        BadInput: see `check_repository`.
    """
    if notice:
        write_text(folder / NOTICE, notice)
    hashes = {path: sha256_file(folder / path) for path in repository_files(folder)}
    write_text(folder / SUMS, sums_text(hashes))
    write_text(folder / CARD, readme)
    check_repository(folder)
