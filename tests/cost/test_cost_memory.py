"""Bytes of maps, caches and captures, against the paper's figures and counted arrays."""

from __future__ import annotations

import numpy as np
import pytest

from ridgefit.cost import (
    ModelShape,
    capture_bytes,
    capture_disk_bytes,
    capture_macs,
    kv_bytes,
    kv_bytes_per_token,
    map_bytes,
    model_bytes,
    moments_bytes,
    preset_config,
    shape_from_config,
    suggest,
)
from ridgefit.cost.shape import Mlp

QWEN = shape_from_config(preset_config("qwen3-8b"))
LLAMA = shape_from_config(preset_config("llama-3.1-8b"))


def shape(layers: int, hidden: int, **more: object) -> ModelShape:
    return ModelShape.model_validate(
        {
            "family": "llama",
            "layers": layers,
            "hidden": hidden,
            "heads": 4,
            "kv_heads": 2,
            "head_dim": hidden // 4,
            "mlp": (Mlp(width=hidden),) * layers,
            "vocab": 100,
            "kinds": ("full_attention",) * layers,
            **more,
        }
    )


def test_a_map_is_32_mib_on_the_reference_models() -> None:
    late = 36 - 13
    assert map_bytes(QWEN, 13) == late * (32 * 2**20 + 4096 * 2)


def test_int8_maps_have_the_published_sizes() -> None:
    # One layer that reads four streams of 2,560: the tensor bytes of the published file.
    assert map_bytes(shape(48, 2560), 47, width=10_240, int8=True) == 26_629_120
    assert map_bytes(shape(48, 2560), 24, width=10_240, int8=True) / 2**30 == pytest.approx(0.60, abs=0.005)
    assert map_bytes(shape(64, 5120), 16, int8=True) / 2**30 == pytest.approx(1.2, abs=0.05)


def test_model_bytes_of_known_checkpoints() -> None:
    assert model_bytes(QWEN) / 2 == pytest.approx(8_190_735_360, rel=1e-4)
    assert model_bytes(LLAMA) / 2 == pytest.approx(8_030_261_248, rel=1e-4)


def test_kv_bytes() -> None:
    assert kv_bytes_per_token(QWEN) == 36 * 2 * 8 * 128 * 2 == 147_456
    assert kv_bytes(QWEN, 1000) == 1000 * 147_456
    sliding = shape(2, 64, kinds=("sliding_attention", "full_attention"), window=10)
    assert kv_bytes(sliding, 100) == (10 + 100) * 2 * sliding.kv_width * 2
    assert kv_bytes(sliding, 3) == 2 * 3 * 2 * sliding.kv_width * 2


@pytest.mark.parametrize(("split", "width"), [(1, None), (3, 24)])
def test_moments_are_the_arrays_they_hold(split: int, width: int | None) -> None:
    model = shape(5, 8)
    w, late, d = width or 8, 5 - split, 8
    arrays = [np.zeros(w), np.zeros((late, d)), np.zeros((w, w)), np.zeros((late, w, d)), np.zeros((late, d))]
    assert moments_bytes(model, split, width=width) == 8 + sum(array.nbytes for array in arrays)


def test_capture_adds_up() -> None:
    model = shape(6, 8)
    once = moments_bytes(model, 2) + moments_bytes(model, 3)
    assert capture_bytes(model, (2, 3), sets=1) == once
    assert capture_bytes(model, (2, 3)) == 2 * once
    assert capture_disk_bytes(model, (2, 3), 1000) == 10 * once + 4000
    assert capture_disk_bytes(model, (2, 3), 1000, sets=1, held=3) == 3 * once + 4000
    assert capture_macs(model, (2,), 10) == 10 * (8 * 8 + 4 * 8 * 8)


def test_suggestions_follow_qk_norm() -> None:
    assert (suggest(QWEN, 16_384).split, suggest(QWEN, 16_384).tail) == (13, 4096)
    assert suggest(LLAMA, 32_768).split == 16
    assert "QK-norm" in suggest(QWEN, 100).why
    assert suggest(QWEN, 2048).tail == 512
    assert suggest(QWEN, 1).tail == 1
    assert suggest(shape(2, 8), 10).split == 1
