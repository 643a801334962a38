"""Take a cache back to an earlier length, exactly, for every kind of layer that knows how.

Attention layers forget columns. Window-limited ones record what the window has passed until they are told to
forget it. Recurrent ones cannot go back: their state is copied beforehand and the kept tokens run again; the
`crop` of transformers trims their convolution and leaves the recurrent state as it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ridgefit.errors import BadInput
from ridgefit.models.subset import Selection, SubsetColumns, subset_layer


@dataclass(frozen=True)
class Snapshot:
    """A cache's state at one length.

    Attributes:
        length: columns.
        layers: per layer what `restore` needs beside the length.
    """

    length: int
    layers: tuple[Any, ...]


def new_cache(model: Any) -> Any:
    """An empty cache of the model's own kinds of layers, ready to go back.

    Raises:
        BadInput: a layer kind that cannot go back.
    """
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    for number, layer in enumerate(cache.layers):
        kind = type(layer).__name__
        if kind not in _KNOWN:
            raise BadInput(
                f"layer {number} of this model keeps a {kind}, which cannot be taken back exactly",
                f"known are {', '.join(_KNOWN)}",
            )
        if is_sliding(layer):
            layer.activate_past_recording()
    return cache


def subset_cache(model: Any, budget: int | None, recent: int) -> Any:
    """`new_cache` whose full-attention layers store everything and show a subset.

    Raises:
        BadInput: as `new_cache`; or no layer attends to everything, so there is nothing to select from.
    """
    cache = new_cache(model)
    found = False
    for number, layer in enumerate(cache.layers):
        if type(layer).__name__ == "DynamicLayer":
            cache.layers[number] = subset_layer(budget, recent)
            found = True
    if not found:
        raise BadInput(
            "no layer of the draft model attends to its whole context, so there is no cache to compress",
            "use a draft with full-attention layers, or --policy full",
        )
    return cache


def subset_layers(cache: Any) -> dict[int, SubsetColumns]:
    """Layer number -> the layers that show a subset."""
    return {n: layer for n, layer in enumerate(cache.layers) if isinstance(layer, SubsetColumns)}


def is_recurrent(layer: Any) -> bool:
    """Whether a layer holds a state that cannot be cut."""
    return hasattr(layer, "recurrent_states")


def is_sliding(layer: Any) -> bool:
    """Whether a layer lets columns go."""
    return bool(getattr(layer, "is_sliding", False)) and hasattr(layer, "activate_past_recording")


def has_recurrent(cache: Any) -> bool:
    """Whether going back means running tokens again."""
    return any(is_recurrent(layer) for layer in cache.layers)


def snapshot(cache: Any) -> Snapshot:
    """What is needed to come back to now; recurrent states are copied, columns are not."""
    return Snapshot(int(cache.get_seq_length()), tuple(_state(layer) for layer in cache.layers))


def restore(cache: Any, state: Snapshot) -> None:
    """Take a cache back to a snapshot made of it at a shorter or equal length."""
    for layer, kept in zip(cache.layers, state.layers, strict=True):
        _put_back(layer, kept, state.length)


def cut(cache: Any, tokens: int) -> None:
    """Forget the newest `tokens` of a cache without recurrent layers, and what windows have passed."""
    for layer in cache.layers:
        if tokens or is_sliding(layer):
            layer.crop(-tokens)


def _state(layer: Any) -> Any:
    if is_recurrent(layer):
        copies = {
            name: {n: _copy(part) for n, part in getattr(layer, name).items()}
            for name in ("conv_states", "recurrent_states")
        }
        return copies | {"has_previous_state": dict(layer.has_previous_state)}
    if is_sliding(layer):
        return layer.keys, layer.values, layer.cumulative_length  # replaced, never written to
    if isinstance(layer, SubsetColumns):
        return layer.selection
    return None


def _put_back(layer: Any, kept: Any, length: int) -> None:
    if is_recurrent(layer):
        for name in ("conv_states", "recurrent_states"):
            for number, part in kept[name].items():
                held = getattr(layer, name)
                if held[number] is not None and part is not None:
                    held[number].copy_(part)
        layer.has_previous_state.update(kept["has_previous_state"])
    elif is_sliding(layer):
        layer.keys, layer.values, layer.cumulative_length = kept
    else:
        gone = int(layer.get_seq_length()) - length
        if gone:
            layer.crop(-gone)
        if isinstance(layer, SubsetColumns) and not _same(layer.selection, kept):
            layer.select(kept.columns, kept.boundary)


def _same(left: Selection, right: Selection) -> bool:
    return left.columns is right.columns and left.boundary == right.boundary


def _copy(part: Tensor | None) -> Tensor | None:
    return None if part is None else part.clone()


_KNOWN = ("DynamicLayer", "DynamicSlidingWindowLayer", "LinearAttentionLayer")
