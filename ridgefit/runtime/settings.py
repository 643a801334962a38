"""What settings of a fill cannot be, whatever the model: known before one is loaded."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ridgefit.errors import BadInput
from ridgefit.models.masks import COLUMNS_ONLY
from ridgefit.runtime.choice import require_selectors, sized_table
from ridgefit.runtime.corrections import Corrections
from ridgefit.runtime.selectors import Selector
from ridgefit.runtime.splice import SPLICES, Splice


def require_settings(
    kind: str,
    split: int,
    *,
    attention: str,
    vocab: int,
    tail: int,
    sink_rows: int = 0,
    rows: Iterable[Selector] | None = None,
    corrections: Corrections | None = None,
    splice: Splice | None = None,
    maps: Path | None = None,
) -> None:
    """Refuse what `RidgeFill.applied` would refuse of any model with this attention and vocabulary.

    Args:
        kind: of the fill.
        split: first late layer.
        attention: transformers' attention implementation.
        vocab: tokens of the model, which a frequency table must count.
        tail: last prompt rows that run every layer.
        sink_rows: first ones.
        rows: selectors of further rows.
        corrections: of filled keys and values.
        splice: what is exact in place of what is filled.
        maps: file or folder beside which a frequency table may lie.

    Raises:
        BadInput: naming the setting.
    """
    require_exact_rows(kind, attention, tail, sink_rows)
    require_refinement(kind, attention, rows, corrections, splice)
    if rows is not None:
        chosen = tuple(rows)
        require_selectors(chosen, split, tail)
        for name in {name for selector in chosen for name in selector.tables()}:
            sized_table(name, maps, vocab)


def require_exact_rows(kind: str, attention: str, tail: int, sink_rows: int) -> None:
    """Refuse a tail or sink rows that cannot be, or that this attention has no mask for.

    Raises:
        BadInput: naming the setting.
    """
    if tail < 1:
        raise BadInput(f"tail {tail} leaves no exact row to continue from", "use a tail of at least 1")
    if sink_rows < 0:
        raise BadInput(f"sink rows cannot be {sink_rows}", "use 0 or more")
    if attention in COLUMNS_ONLY and (sink_rows or kind == "none"):
        what = "no fill hides columns" if kind == "none" else "sink rows stand apart from the tail"
        raise BadInput(
            f"{what}, which {attention} has no mask for", "load the model with sdpa or eager attention"
        )


def require_refinement(
    kind: str,
    attention: str,
    rows: Iterable[Selector] | None,
    corrections: Corrections | None,
    splice: Splice | None,
) -> None:
    """Refuse what does not go with the fill, the attention or each other.

    Raises:
        BadInput: naming the settings.
    """
    for what, wanted in (("chosen rows", rows), ("corrections", corrections), ("splices", splice)):
        if wanted is not None and kind == "none":
            raise BadInput(f"no fill writes nothing that {what} could go with", "fill by ridge or identity")
        if wanted is not None and attention in COLUMNS_ONLY:
            raise BadInput(
                f"{what} need masks, and {attention} has none", "load the model with sdpa or eager"
            )
    if splice is not None and corrections is not None:
        raise BadInput("a splice leaves corrections nothing to correct", "use one of them")
    if splice is not None and splice not in SPLICES:
        raise BadInput(f"there is no splice {splice!r}", f"known: {', '.join(SPLICES)}")
