"""What is refused before the first forward pass, and whether a folder may be gone on with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ridgefit.capture.estimate import estimate, require_room
from ridgefit.capture.folder import RECORD_FILE, CaptureRecord
from ridgefit.capture.identity import require_same
from ridgefit.corpus import TokenStore
from ridgefit.cost import shape_from_config
from ridgefit.errors import BadInput
from ridgefit.features import FeatureList, SplitShape
from ridgefit.models import LoadedModel, find_model
from ridgefit.moments import LEAVES, Product, shard_leaves
from ridgefit.recipe import CaptureSettings

_OWN = frozenset({".lock"})


def leaves_of(shard: str | None) -> range:
    """Leaves of a shard "i/n", counted from 1; all of them without one.

    Raises:
        BadInput: there is no such shard.
    """
    if shard is None:
        return range(LEAVES)
    index, count = (int(part) for part in shard.split("/"))
    if not 1 <= count <= LEAVES:
        raise BadInput(
            f"a capture has at most {LEAVES} shards, --shard says {shard}", f"use i/{LEAVES} or less"
        )
    if not 1 <= index <= count:
        raise BadInput(f"there is no shard {shard}", f"shards are counted from 1/{count} to {count}/{count}")
    return shard_leaves(index - 1, count)


def check_settings(loaded: LoadedModel, store: TokenStore, settings: CaptureSettings) -> None:
    """Refuse settings that the model or the text cannot meet.

    Raises:
        BadInput: one sentence.
    """
    port = loaded.port
    for split in settings.split:
        if not 1 <= split < port.n_layers:
            raise BadInput(
                f"split {split} is not inside this model of {port.n_layers} layers",
                f"use a split from 1 to {port.n_layers - 1}",
            )
    if len(set(settings.split)) != len(settings.split):
        raise BadInput(f"splits {list(settings.split)} name one twice", "name each split once")
    features = FeatureList(settings.features)
    for split in settings.split:
        features.width(SplitShape.of(port, split))
    manifest = store.manifest
    if not manifest.fit_windows:
        raise BadInput("the text holds no window to fit on", "give more or longer documents")
    if manifest.tokenizer_sha256 != loaded.identity()["tokenizer_sha256"]:
        raise BadInput(
            "the text was tokenised with another tokenizer than the model's", "tokenise the text again"
        )
    highest = int(store.tokens.max())
    if highest >= port.vocab:
        raise BadInput(
            f"the text holds token {highest}, the model's vocabulary ends at {port.vocab - 1}",
            "give the model and the tokenizer that belong together",
        )
    if settings.workers > 1:
        find_model(loaded.ref)  # workers load the model by this reference


def gone_on(out: Path, identity: dict[str, Any], settings: CaptureSettings) -> CaptureRecord | None:
    """The finished record if there is nothing left to do; None to start or to go on.

    A folder without a record may be resumed too: a run may have been killed before it wrote one.

    Raises:
        BadInput: the folder holds something else, another capture, or one that was not to be resumed.
    """
    record = record_to_resume(out, settings)
    if record is None:
        return None
    what, fix = f"the capture in {out}", "use the same model, text and settings, or another --out"
    require_same(record.identity, identity, what, fix)
    require_same({"shard": record.shard}, {"shard": settings.shard}, what, fix)
    return None if record.state == "running" else record


def record_to_resume(out: Path, settings: CaptureSettings) -> CaptureRecord | None:
    """The record in a folder that may be written or gone on with; None where there is none yet.

    Raises:
        BadInput: the folder holds something else, or a capture that was not to be resumed.
    """
    if not (out / RECORD_FILE).is_file():
        inside = out.iterdir() if out.is_dir() else ()
        if any(path.name not in _OWN and not path.name.endswith(".partial") for path in inside):
            raise BadInput(f"{out} is not empty and holds no capture", "choose another --out or empty it")
        return None
    record = CaptureRecord.read(out)
    state = "an unfinished" if record.state == "running" else "a finished"
    if not settings.resume:
        raise BadInput(
            f"{out} holds {state} capture", "pass --resume to go on with it, or choose another --out"
        )
    return record


def check_room(
    loaded: LoadedModel, store: TokenStore, settings: CaptureSettings, product: Product, out: Path
) -> None:
    """Refuse what would not fit in memory or on the disk of `out`.

    Raises:
        BadInput: with what is needed and what there is.
    """
    port, manifest = loaded.port, store.manifest
    needs = estimate(
        shape_from_config(port.config.to_dict()),
        settings,
        longest=max(manifest.window_tokens(window) for window in manifest.fit_windows),
        tokens=manifest.tokens,
        product=product,
        bytes_per_value=port.dtype.itemsize,
        eager=port.attention == "eager",
    )
    weights = sum(p.numel() * p.element_size() for p in port.model.parameters())
    require_room(needs, out, port.device, workers=settings.workers, model_bytes=weights)
