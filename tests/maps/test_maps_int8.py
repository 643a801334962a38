"""int8 codes and scales against the written rule in numpy, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ridgefit.errors import BadInput
from ridgefit.maps import dequantize, error_in_steps, quantize_int8


def bf16_bits(values: np.ndarray) -> np.ndarray:
    """float32 to bf16, round half to even, by integer arithmetic on the bits."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widened(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def rule(weight_bits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The format's rule (codes, scale bits) from bf16 bits `[out, in]`, group by group."""
    out, width = weight_bits.shape
    codes = np.zeros((out, width), np.int8)
    scales = np.zeros((out, width // 128), np.uint16)
    for group in range(width // 128):
        part = widened(weight_bits[:, 128 * group : 128 * group + 128])
        amax = np.abs(part).max(1)
        bits = bf16_bits(amax / np.float32(127))
        bits[amax == 0] = 0x3F80
        step = widened(bits)[:, None]
        codes[:, 128 * group : 128 * group + 128] = np.clip(np.rint(part / step), -127, 127).astype(np.int8)
        scales[:, group] = bits
    return codes, scales


def bits_of(tensor: torch.Tensor) -> np.ndarray:
    return tensor.view(torch.int16).numpy().view(np.uint16)


def weights(out: int = 96, width: int = 512) -> torch.Tensor:
    """Groups of very different size, a group of zeros, outliers, exact halves."""
    generator = torch.Generator().manual_seed(11)
    weight = torch.randn(out, width, generator=generator) * torch.logspace(-12, 6, out)[:, None]
    weight[3, 128:256] = 0
    weight[5] = 0
    weight[7, ::17] *= 1e4
    weight[9, :128] = (torch.arange(128) - 64) / 2  # a step of 0.25 after rounding: many ties
    weight[9, 0] = 31.75
    return weight.bfloat16()


def test_oracle_rounds_like_torch() -> None:
    values = torch.randn(4096, generator=torch.Generator().manual_seed(0)) * 1e3
    assert (bf16_bits(values.numpy()) == bits_of(values.bfloat16())).all()


def test_codes_and_scales_equal_the_rule() -> None:
    weight = weights()
    codes, scale = quantize_int8(weight)
    wanted_codes, wanted_scale = rule(bits_of(weight))
    assert codes.dtype == torch.int8
    assert scale.dtype == torch.bfloat16
    assert (codes.numpy() == wanted_codes).all()
    assert (bits_of(scale) == wanted_scale).all()
    assert int(codes.min()) >= -127
    assert float(scale[5, 0]) == 1.0


def test_the_rounded_scale_and_half_to_even_matter() -> None:
    """Two easy mistakes give other codes on these weights, so the equality above can fail."""
    weight = weights()
    codes = quantize_int8(weight)[0]
    groups = weight.float().reshape(96, 4, 128)
    amax = groups.abs().amax(-1, keepdim=True)
    exact = torch.where(amax == 0, 1.0, amax / 127)
    assert (codes.reshape(96, 4, 128) != (groups / exact).round().clamp(-127, 127)).any()
    rounded = torch.where(amax == 0, 1.0, (amax / 127).bfloat16().float())
    away = (groups / rounded).abs().add(0.5).floor() * groups.sign()
    assert (codes.reshape(96, 4, 128) != away.clamp(-127, 127)).any()


def test_error_is_at_most_half_a_step() -> None:
    weight = weights()
    codes, scale = quantize_int8(weight)
    steps = error_in_steps(weight, codes, scale)
    missed = np.abs(
        widened(bits_of(weight)).astype(np.float64)
        - codes.numpy().astype(np.float64) * np.repeat(widened(bits_of(scale)), 128, 1)
    )
    assert steps == (missed / np.repeat(widened(bits_of(scale)), 128, 1)).max()
    assert 0.45 < steps <= 0.5
    assert torch.equal(dequantize(codes, scale).double(), codes * scale.double().repeat_interleave(128, 1))
    codes[0, 0] += 1
    assert error_in_steps(weight, codes, scale) > 0.5


def test_tiny_groups_do_not_divide_by_zero() -> None:
    """bf16 cannot hold a scale below 4.6e-41; the largest error is then the weights themselves."""
    weight = torch.full((1, 128), 1e-39).bfloat16()
    codes, scale = quantize_int8(weight)
    assert not codes.any()
    assert float(scale[0, 0]) == 1.0


def test_clamped_where_the_scale_itself_is_coarse() -> None:
    """A subnormal scale can be a third too small; codes must stop at 127 and not wrap around."""
    weight = (torch.linspace(-1, 1, 128)[None] * 189 * 2.0**-133).bfloat16()
    codes, scale = quantize_int8(weight)
    wanted_codes, wanted_scale = rule(bits_of(weight))
    assert (codes.numpy() == wanted_codes).all()
    assert (bits_of(scale) == wanted_scale).all()
    assert (int(codes.min()), int(codes.max())) == (-127, 127)
    assert error_in_steps(weight, codes, scale) > 1


def test_refusals() -> None:
    with pytest.raises(BadInput, match="576 is not a multiple of 128"):
        quantize_int8(torch.zeros(4, 576, dtype=torch.bfloat16))
    bad = torch.zeros(4, 128, dtype=torch.bfloat16)
    bad[2, 3] = float("nan")
    with pytest.raises(BadInput, match="not finite"):
        quantize_int8(bad)
    with pytest.raises(ValueError, match="bf16"):
        quantize_int8(torch.zeros(4, 128))
