"""The fill that also takes names of the Hub; the runtime's own stays local, so that it ships alone."""

from __future__ import annotations

from pathlib import Path

from ridgefit.hub import local_maps
from ridgefit.runtime import RidgeFill as LocalFill


class RidgeFill(LocalFill):
    """`ridgefit.runtime.RidgeFill`, whose `load` also fetches a repository by name."""

    @classmethod
    def load(cls, path: str | Path, split: int | None = None) -> RidgeFill:
        """Maps from a folder, a file, or a repository on the Hub.

        Args:
            path: local path, or `org/name[@revision]`; a path that exists wins.
            split: which split, where there are several; only its files are fetched.

        Raises:
            BadInput: missing, damaged or ambiguous; see `ridgefit.hub.pull` and `ridgefit.maps.load_maps`.
        """
        from ridgefit.maps import load_maps

        found = load_maps(local_maps(path, split), split)
        return cls("ridge", found.split, found)
