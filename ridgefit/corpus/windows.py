"""Which document goes into which fold, how a document is cut, and which windows are kept. All by hash."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ridgefit.corpus.manifest import CorpusSettings, Fold
from ridgefit.errors import BadInput
from ridgefit.files import sha256_bytes

Cut = tuple[int, int]
"""A window's first token and the one after its last."""


def check_settings(settings: CorpusSettings, opening: int) -> None:
    """Refuse settings under which no corpus can exist.

    Args:
        settings: as asked for.
        opening: ids in front of each window.

    Raises:
        BadInput: naming the setting.
    """
    if not 1 <= settings.min_tokens <= settings.window:
        raise BadInput(
            f"min-tokens {settings.min_tokens} is not between 1 and the window of {settings.window} tokens",
            "lower --min-tokens or raise --window",
        )
    if settings.window <= opening:
        raise BadInput(
            f"a window of {settings.window} tokens holds nothing behind the {opening} that open it",
            "raise --window",
        )
    if not 0 < settings.held_out < 1:
        raise BadInput(f"held-out share {settings.held_out} is not between 0 and 1", "set --held-out to 0.1")
    if settings.max_windows is not None and settings.max_windows < 2:
        raise BadInput(
            f"max-windows {settings.max_windows} leaves a fold empty", "keep at least two: one is held out"
        )
    if settings.max_document_tokens < settings.min_tokens:
        raise BadInput(
            f"documents are cut at {settings.max_document_tokens} tokens and must have {settings.min_tokens}",
            "raise --max-document-tokens or lower --min-tokens",
        )


def first_fold(sha256: str, held_out: float) -> Fold:
    """Fold of a document by its own hash: held if the hash as a fraction of 2^256 is below `held_out`."""
    # The first 52 bits are enough, and a float holds them exactly.
    return "held" if int(sha256[:13], 16) / 2**52 < held_out else "fit"


def settled_folds(documents: Collection[str], usable: int, held_out: float) -> dict[str, Fold]:
    """Fold of every document, neither fold empty.

    Args:
        documents: hashes, at least two.
        usable: how many documents there were before some fell off for `max_windows`.
        held_out: share to hold.

    Returns:
        hash -> fold, in hash order; where `first_fold` leaves one empty, the smallest hashes are held.
    """
    ordered = sorted(documents)
    held = sum(first_fold(sha256, held_out) == "held" for sha256 in ordered)
    if held in (0, len(ordered)):
        held = min(max(1, round(held_out * usable)), len(ordered) - 1)
    return {sha256: "held" if number < held else "fit" for number, sha256 in enumerate(ordered)}


def cut_document(tokens: int, bos: int, settings: CorpusSettings) -> tuple[list[Cut], int]:
    """Contiguous windows of one document, and the number of ends too short to keep (0 or 1).

    Args:
        tokens: length of the document.
        bos: ids that every window but the first repeats in front, inside the window's length.
        settings: window and shortest window.
    """
    starts = [0, *range(settings.window, tokens, settings.window - bos)]
    cuts = list(zip(starts, [*starts[1:], tokens], strict=True))
    kept = [cut for cut in cuts if cut[1] - cut[0] >= settings.min_tokens]
    return kept, len(cuts) - len(kept)


def chosen_windows(
    cuts: Mapping[str, list[Cut]], folds: Mapping[str, Fold], settings: CorpusSettings
) -> dict[str, list[Cut]]:
    """Windows to keep under `max_windows`, spread over documents.

    The folds share `max_windows` by `held_out`, at least one each, and what one cannot use goes to the other.
    Within a fold windows are taken in rounds over the documents in hash order; a document gives its windows
    in the order of sha256("<document hash>:<start>").

    Returns:
        hash -> windows in text order; documents that give none are absent.
    """
    ranked: dict[Fold, list[tuple[int, str, Cut]]] = {"fit": [], "held": []}
    for sha256, own in cuts.items():
        by_hash = sorted(own, key=lambda cut: sha256_bytes(f"{sha256}:{cut[0]}".encode()))
        ranked[folds[sha256]] += [(turn, sha256, cut) for turn, cut in enumerate(by_hash)]
    fit, held = len(ranked["fit"]), len(ranked["held"])
    if settings.max_windows is not None:
        share = min(max(1, round(settings.max_windows * settings.held_out)), settings.max_windows - 1)
        fit = min(fit, max(settings.max_windows - share, settings.max_windows - held))
        held = min(held, settings.max_windows - fit)
    chosen: dict[str, list[Cut]] = {}
    for _, sha256, cut in sorted(ranked["fit"])[:fit] + sorted(ranked["held"])[:held]:
        chosen.setdefault(sha256, []).append(cut)
    return {sha256: sorted(own) for sha256, own in chosen.items()}
