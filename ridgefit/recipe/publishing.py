"""Repositories: sent and fetched."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from ridgefit.recipe.base import Settings


class PushSettings(Settings):
    """`ridgefit push`: maps made into a repository, judged, and published in one commit."""

    maps: Path = Field(
        description="maps folder, source file, format-1 folder, recall policy, refresh controller, or a "
        "repository made before"
    )
    repo: str = Field(description="Hub name 'org/name'")
    revision: str = Field("main", description="branch that moves; made from main if it is new")
    tag: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        examples=["v1"],
        description="tag to set on the commit",
    )
    private: bool = Field(False, description="make a new repository private")
    pr: bool = Field(False, description="open a pull request instead of moving the branch")
    dry_run: bool = Field(False, description="judge everything and list files and sizes; send nothing")
    evaluation: Path | None = Field(None, description="folder of `ridgefit eval` on these maps, for the card")
    bench: Path | None = Field(
        None, description="JSON of `ridgefit bench prefill` with these maps, for the card"
    )
    base_model: str | None = Field(
        None, description="org/name@<40 hex digits>, where the fit did not record them"
    )
    license: str | None = Field(None, description="licence; default: the base model's")
    datasets: tuple[str, ...] = Field((), description="Hub data sets of the card; default: from provenance")
    keep_card: bool = Field(False, description="leave a README.md that is on the Hub as it is")
    out: Path | None = Field(None, description="also keep the repository that is built, in this folder")


class PullSettings(Settings):
    """`ridgefit pull`: a repository, or some of its splits, with every hash compared."""

    repo: str = Field(description="Hub name 'org/name[@revision]'")
    split: tuple[int, ...] = Field((), description="only these splits; default: all")
    out: Path | None = Field(None, description="copy the files there; default: the Hub's cache")
