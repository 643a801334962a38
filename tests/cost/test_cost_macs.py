"""Multiply-accumulates: the paper's crossovers, published limits, and a row-by-row count."""

from __future__ import annotations

import itertools

import pytest

from ridgefit.cost import (
    Arm,
    ModelShape,
    arm_macs,
    crossover,
    pop,
    prefill_macs,
    preset_config,
    shape_from_config,
    visible_pairs,
)
from ridgefit.cost.shape import Mlp
from ridgefit.errors import BadInput

QWEN = shape_from_config(preset_config("qwen3-8b"))
LLAMA = shape_from_config(preset_config("llama-3.1-8b"))


def ridge(split: int, tail: int = 4096, **more: int) -> Arm:
    return Arm(fill="ridge", split=split, tail=tail, **more)


@pytest.mark.parametrize(
    ("shape", "split", "pop_split", "tokens"),
    [(LLAMA, 16, 22, 14_333), (LLAMA, 20, 22, 45_660), (QWEN, 13, 24, 10_552), (QWEN, 22, 24, 58_891)],
)
def test_crossovers_with_pop(shape: ModelShape, split: int, pop_split: int, tokens: int) -> None:
    native = pop(shape.layers)
    assert (native.fill, native.split, native.tail) == ("identity", pop_split, 1)
    assert crossover(shape, ridge(split), native) == tokens


@pytest.mark.parametrize(
    ("split", "tokens", "ratio"), [(13, 32_768, 0.759), (22, 32_768, 1.042), (22, 65_536, 0.994)]
)
def test_share_of_pop_native(split: int, tokens: int, ratio: float) -> None:
    measured = arm_macs(QWEN, ridge(split), tokens) / arm_macs(QWEN, pop(36), tokens)
    assert round(measured, 3) == ratio


@pytest.mark.parametrize(
    ("tokens", "arm", "limit"),
    [
        (16_384, ridge(13), 1.672),
        (16_384, ridge(18), 1.459),
        (16_384, ridge(22), 1.324),
        (16_384, ridge(13, 2048), 1.949),
        (16_384, pop(36), 1.476),
        (32_768, ridge(13), 1.951),
        (32_768, ridge(18), 1.617),
        (32_768, ridge(22), 1.422),
        (32_768, ridge(13, 2048), 2.162),
        (32_768, pop(36), 1.481),
        # Maps that also read two previous rows are three times as wide.
        (16_384, ridge(13, map_width=3 * 4096), 1.515),
        (32_768, ridge(13, map_width=3 * 4096), 1.754),
    ],
)
def test_speedup_limits(tokens: int, arm: Arm, limit: float) -> None:
    assert round(prefill_macs(QWEN, arm, tokens).speedup_limit, 3) == limit


def small(window: int | None, mlp: tuple[Mlp, ...] | None = None) -> ModelShape:
    kinds = ("sliding_attention", "full_attention") * 3 if window else ("full_attention",) * 6
    return ModelShape(
        family="llama",
        layers=6,
        hidden=12,
        heads=4,
        kv_heads=2,
        head_dim=3,
        mlp=mlp or (Mlp(width=20),) * 6,
        vocab=50,
        kinds=kinds,
        window=window,
    )


def sees(query: int, key: int, window: int | None) -> bool:
    return key <= query and (window is None or query - key < window)


def by_hand(shape: ModelShape, arm: Arm, tokens: int) -> int:
    """Row by row and pair by pair, from the definition."""
    d, total = shape.hidden, 0
    width, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for layer in range(shape.layers):
        window, mlp = shape.window_of(layer), shape.mlp[layer]
        late = arm.fill != "exact" and layer >= arm.split
        exact = [row for row in range(tokens) if not late or row >= tokens - arm.tail or row < arm.sink_rows]
        for query in exact:
            total += d * width + 2 * d * kv + width * d
            total += mlp.experts * d + mlp.active * 3 * d * mlp.width
            for key in range(tokens):
                written = key in exact or arm.fill != "none"
                if sees(query, key, window) and written:
                    total += 2 * width
        for row in set(range(tokens)) - set(exact):
            if arm.fill == "none" or not any(sees(query, row, window) for query in exact):
                continue
            total += 2 * d * kv
            if arm.fill == "ridge":
                total += d * (arm.map_width or d)
    return total


@pytest.mark.parametrize("window", [None, 1, 4, 9, 100])
@pytest.mark.parametrize("fill", ["exact", "none", "identity", "ridge"])
def test_row_by_row_count(window: int | None, fill: str) -> None:
    moe = (Mlp(width=20), Mlp(width=5, experts=8, active=2)) * 3
    for tail, sinks, tokens in itertools.product((1, 3, 11), (0, 2), (11, 23)):
        for shape in (small(window), small(window, moe)):
            arm = Arm.model_validate({"fill": fill, "split": 2, "tail": tail, "sink_rows": sinks})
            assert arm_macs(shape, arm, tokens) == by_hand(shape, arm, tokens)


def test_visible_pairs_are_exact() -> None:
    for a, b, c, e in itertools.product(range(0, 9, 2), range(0, 9, 3), range(0, 9, 2), range(0, 9, 3)):
        queries, keys = range(a, a + b), range(c, c + e)
        for window in (None, 1, 3, 20):
            counted = sum(sees(q, k, window) for q in queries for k in keys)
            assert visible_pairs(queries, keys, window) == counted


def test_exact_attention_is_not_half_of_a_square() -> None:
    assert visible_pairs(range(4), range(4)) == 10


@pytest.mark.parametrize(
    ("arm", "tokens", "words"),
    [
        (ridge(0), 8192, "split 0"),
        (ridge(36), 8192, "split 36"),
        (ridge(13, 0), 8192, "tail 0"),
        (ridge(13, 8193), 8192, "tail 8193"),
        (Arm(fill="exact"), 0, "0 tokens"),
    ],
)
def test_impossible_arms_are_refused(arm: Arm, tokens: int, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        prefill_macs(QWEN, arm, tokens)


def test_a_tail_as_long_as_the_prompt_is_exact() -> None:
    assert prefill_macs(QWEN, ridge(13, 8192), 8192).speedup_limit == 1.0


def test_crossover_at_the_ends() -> None:
    deeper, shallower = ridge(20), ridge(13)
    assert crossover(QWEN, shallower, deeper) == 0
    assert crossover(QWEN, deeper, shallower) is None


@pytest.mark.parametrize("window", [None, 300])
def test_chosen_rows_against_a_loop(window: int | None) -> None:
    """Row by row and layer by layer: what an evenly spread row adds to the plain fill."""
    config = preset_config("qwen3-8b")
    if window is not None:
        config |= {"use_sliding_window": True, "sliding_window": window, "max_window_layers": 20}
        config["layer_types"] = ["full_attention"] * 20 + ["sliding_attention"] * 16
    shape = shape_from_config(config)
    plain = Arm(fill="identity", split=18, tail=100)
    tokens, chosen = 1000, 90
    added = 0
    for layer in range(18, shape.layers):
        own = shape.window_of(layer)
        rows = 2 * shape.hidden * (shape.heads * shape.head_dim + shape.kv_width)
        rows += shape.mlp[layer].macs(shape.hidden)
        for number in range(chosen):
            place = (2 * number + 1) * 900 // (2 * chosen)
            seen = sum(1 for c in range(place + 1) if own is None or c > place - own)
            added += rows + 2 * shape.heads * shape.head_dim * seen
        if own is not None:  # rows before the tail's window need their keys and values too
            added += (900 - (own - 1)) * 2 * shape.hidden * shape.kv_width
    found = arm_macs(shape, plain.model_copy(update={"chosen_rows": chosen}), tokens)
    assert found - arm_macs(shape, plain, tokens) == added
