"""Selectors by name: VestigeKV's and what it is compared with, all in the same mask."""

from ridgefit.errors import BadInput
from ridgefit.runtime.recall.selectors.branch import BranchSelector
from ridgefit.runtime.recall.selectors.full_row import FullRowSelector
from ridgefit.runtime.recall.selectors.h2o import H2ORecentSelector, H2OSelector
from ridgefit.runtime.recall.selectors.norm import NormSelector
from ridgefit.runtime.recall.selectors.pages import PageSelector
from ridgefit.runtime.recall.selectors.random import RandomSelector
from ridgefit.runtime.recall.selectors.selector import Selector, Window
from ridgefit.runtime.recall.selectors.snapkv import SnapKVSelector
from ridgefit.runtime.recall.selectors.streaming import StreamingSelector

SELECTORS: dict[str, type[Selector]] = {
    kind.name: kind
    for kind in (
        BranchSelector,
        FullRowSelector,
        NormSelector,
        RandomSelector,
        StreamingSelector,
        H2OSelector,
        H2ORecentSelector,
        SnapKVSelector,
        PageSelector,
    )
}


def selector_of(name: str) -> Selector:
    """A selector by its name.

    Raises:
        BadInput: there is none of that name.
    """
    if name not in SELECTORS:
        raise BadInput(f"there is no selector {name!r}", f"use one of {', '.join(SELECTORS)}")
    return SELECTORS[name]()


__all__ = ["SELECTORS", "PageSelector", "Selector", "Window", "selector_of"]
