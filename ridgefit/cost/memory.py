"""Bytes: model, cache, maps, and what a capture holds and writes. Pure arithmetic from a shape."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ridgefit.cost.shape import ModelShape

INT8_GROUP = 128
_BF16, _FP64, _TOKEN = 2, 8, 4


def model_bytes(shape: ModelShape) -> int:
    """Bytes of the weights as stored, biases left out (below one in a thousand)."""
    attention = 2 * shape.hidden * (shape.heads * shape.head_dim + shape.kv_width)
    layers = sum(attention + mlp.weights(shape.hidden) + 2 * shape.hidden for mlp in shape.mlp)
    embeddings = shape.vocab * shape.hidden * (1 if shape.tied else 2)
    return (layers + embeddings + shape.hidden) * shape.bytes_per_weight


def kv_bytes_per_token(shape: ModelShape, *, bytes_per_value: int = _BF16) -> int:
    """Bytes that one more token adds to a full cache: keys and values of every layer."""
    return shape.layers * 2 * shape.kv_width * bytes_per_value


def kv_bytes(shape: ModelShape, tokens: int, *, bytes_per_value: int = _BF16) -> int:
    """Bytes of the cache after `tokens` rows; a sliding layer keeps its window only."""
    rows = sum(
        min(tokens, window) if (window := shape.window_of(layer)) else tokens for layer in range(shape.layers)
    )
    return rows * 2 * shape.kv_width * bytes_per_value


def map_bytes(
    shape: ModelShape,
    split: int,
    *,
    width: int | None = None,
    int8: bool = False,
    state_only: Collection[int] = (),
    bottleneck: tuple[int, int] | None = None,
) -> int:
    """Bytes of one split's maps: a weight `[hidden, width]` and a bias per late layer, split included.

    Args:
        shape: the model.
        split: first late layer.
        width: what a map reads per row; the hidden width if None.
        int8: codes with one bf16 scale per 128 weights of a row, bias in bf16; else all in bf16.
        state_only: late layers whose map reads the hidden width alone.
        bottleneck: rows and columns of what all maps share, in bf16 always.
    """

    def weight(read: int) -> int:
        return shape.hidden * (read + -(-read // INT8_GROUP) * _BF16 if int8 else read * _BF16)

    wide, narrow = weight(width or shape.hidden), weight(shape.hidden)
    maps = sum(narrow if layer in state_only else wide for layer in range(split, shape.layers))
    rest, rank = bottleneck or (0, 0)
    return maps + max(shape.layers - split, 0) * shape.hidden * _BF16 + rest * rank * _BF16


def moments_bytes(shape: ModelShape, split: int, *, width: int | None = None) -> int:
    """Bytes of one split's fp64 sums over one set of rows.

    A count, the means `[width]` and `[late layers, hidden]`, Sxx `[width, width]`, Sxy
    `[late layers, width, hidden]` and the diagonal of Syy `[late layers, hidden]`.
    """
    read, late = width or shape.hidden, shape.layers - split
    values = 1 + read + read * read + late * (read * shape.hidden + 2 * shape.hidden)
    return values * _FP64


def capture_bytes(
    shape: ModelShape, splits: Iterable[int], *, width: int | None = None, sets: int = 2
) -> int:
    """Bytes of sums that a capture holds in memory, which is also what it leaves on disk.

    Args:
        shape: the model.
        splits: first late layer of each split captured in the pass.
        width: what a map reads per row; the hidden width if None.
        sets: kinds of rows whose sums are kept apart (the first positions of each window, and the rest).
    """
    return sets * sum(moments_bytes(shape, split, width=width) for split in splits)


def capture_disk_bytes(
    shape: ModelShape,
    splits: Iterable[int],
    tokens: int,
    *,
    width: int | None = None,
    sets: int = 2,
    held: int = 5,
) -> int:
    """Bytes a capture needs on disk at its fullest: `held` copies of its sums, and the frozen tokens.

    Three merged nodes of the tree beside a checkpoint and its replacement make five copies.
    """
    return held * capture_bytes(shape, splits, width=width, sets=sets) + tokens * _TOKEN


def capture_macs(shape: ModelShape, splits: Iterable[int], tokens: int, *, width: int | None = None) -> int:
    """Multiply-accumulates of the sums over `tokens` rows, the model's own forward left out."""
    read = width or shape.hidden
    return tokens * sum(read * read + (shape.layers - split) * read * shape.hidden for split in splits)
