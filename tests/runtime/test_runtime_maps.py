"""Maps from every layout and in every place give the same fill."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from runtime_reference import random_maps
from tiny_models import LAYERS, build_tiny, tokens

import ridgefit
from ridgefit.features import FeatureList
from ridgefit.maps import (
    LayerMap,
    MapSet,
    dequantize,
    quantize_int8,
    write_format1,
    write_source,
)
from ridgefit.models import port_of
from ridgefit.runtime import RidgeFill
from ridgefit.runtime.hooks import Application
from ridgefit.runtime.inputs import MappedInputs, place

SPLIT, PROMPT, TAIL = 2, 30, 11


def wide_maps(hidden: int = 128) -> dict[int, LayerMap]:
    generator = torch.Generator().manual_seed(0)

    def one() -> LayerMap:
        weight = torch.eye(hidden) + 0.3 * torch.randn(hidden, hidden, generator=generator) / hidden**0.5
        return LayerMap(weight.bfloat16(), torch.randn(hidden, generator=generator).bfloat16())

    return {layer: one() for layer in range(SPLIT, LAYERS)}


@torch.no_grad()
def logits(model: Any, fill: RidgeFill, **settings: Any) -> torch.Tensor:
    with fill.applied(model, tail=TAIL, **settings):
        found: torch.Tensor = model(tokens(PROMPT)).logits[:, -TAIL:]
    return found


def test_source_file_and_format1_folders(tmp_path: Path) -> None:
    assert issubclass(ridgefit.RidgeFill, RidgeFill)
    model, maps = build_tiny("llama", hidden_size=128), wide_maps()
    write_source(tmp_path / "maps.safetensors", MapSet.of(maps))
    wanted = logits(model, RidgeFill.of(MapSet.of(maps)))
    for int8 in (False, True):
        write_format1(tmp_path / f"int8-{int8}", MapSet.of(maps), int8=int8)
    with pytest.warns(UserWarning, match="name no base model"):
        assert torch.equal(logits(model, RidgeFill.load(tmp_path / "maps.safetensors", SPLIT)), wanted)
        assert torch.equal(logits(model, RidgeFill.load(str(tmp_path / "int8-False"))), wanted)
        quantized = logits(model, RidgeFill.load(tmp_path / "int8-True"))
    assert not torch.equal(quantized, wanted)
    multiplied_out = {}
    for layer, (weight, bias) in maps.items():
        multiplied_out[layer] = dequantize(*quantize_int8(weight)), bias.float()
    inputs = MappedInputs(FeatureList(["state"]), multiplied_out.__getitem__)
    application = Application(port_of(model), SPLIT, inputs, tail=TAIL)
    application.attach()
    with torch.no_grad():
        by_hand = model(tokens(PROMPT)).logits[:, -TAIL:]
    application.detach()
    torch.testing.assert_close(by_hand, quantized, rtol=0, atol=1e-5)


def test_placement_does_not_change_a_bit(tiny_model: Callable[..., Any]) -> None:
    model, fill = tiny_model("gemma3"), RidgeFill.of(random_maps(SPLIT))
    assert torch.equal(logits(model, fill, placement="host"), logits(model, fill, placement="device"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_maps_take_the_models_dtype(dtype: torch.dtype) -> None:
    port = port_of(build_tiny("llama").to(dtype))
    weight, bias = place(random_maps(SPLIT), port, "device")(3)
    assert (weight.dtype, bias.dtype) == (dtype, dtype)
    found = logits(port.model, RidgeFill.of(random_maps(SPLIT)))
    assert found.dtype == dtype
    assert found.isfinite().all()


def test_maps_are_read_once(tiny_model: Callable[..., Any]) -> None:
    maps = random_maps(SPLIT)
    reads: list[int] = []

    def read(layer: int) -> LayerMap:
        reads.append(layer)
        return maps.layer(layer)

    fill = RidgeFill.of(MapSet(maps.layers, 32, 32, read))
    for _ in range(3):
        logits(tiny_model("llama"), fill)
    assert reads == list(range(SPLIT, LAYERS))
