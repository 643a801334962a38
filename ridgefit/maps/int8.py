"""int8 maps: symmetric codes, one bf16 scale per 128 consecutive columns of a row (`i8*bf16[1x128]`)."""

from __future__ import annotations

import torch
from torch import Tensor

from ridgefit.errors import BadInput

GROUP = 128


def quantize_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Codes and scales of a map.

    In fp32: scale = (largest magnitude of the group / 127) rounded to bf16, or 1 for a group of zeros; code
    = weight / the ROUNDED scale, half to even, within +-127. A group whose scale underflows to zero in bf16
    (magnitudes below 6e-39) counts as zeros, since the rule would divide by zero.

    Args:
        weight: bf16 `[out, in]`; round a map to bf16 before, the format quantises the bf16 file.

    Returns:
        Codes int8 `[out, in]` and scales bf16 `[out, in / 128]`.

    Raises:
        BadInput: `in` is not a multiple of 128, or a weight is not finite.
        ValueError: `weight` is not bf16.
    """
    if weight.dtype != torch.bfloat16:
        raise ValueError(f"int8 codes are made from bf16 weights, not {weight.dtype}")
    out, width = weight.shape
    require_groups(width)
    groups = weight.float().reshape(out, width // GROUP, GROUP)
    if not bool(torch.isfinite(groups).all()):
        raise BadInput("the map holds weights that are not finite", "solve it again")
    scale = (groups.abs().amax(-1) / 127).bfloat16()
    scale[scale == 0] = 1
    codes = (groups / scale.float()[..., None]).round_().clamp_(-127, 127)
    return codes.to(torch.int8).reshape(out, width), scale


def dequantize(codes: Tensor, scale: Tensor) -> Tensor:
    """code x scale in fp32, `[out, in]`; exact, since the product has at most 15 significant bits."""
    out, width = codes.shape
    groups = codes.reshape(out, width // GROUP, GROUP).float()
    return (groups * scale.float()[..., None]).reshape(out, width)


def error_in_steps(weight: Tensor, codes: Tensor, scale: Tensor) -> float:
    """Largest |weight - code x scale| of a map in units of its group's scale; 0.5 is perfect rounding."""
    out, width = codes.shape
    missed = (weight.double() - dequantize(codes, scale).double()).abs()
    steps = missed.reshape(out, width // GROUP, GROUP).amax(-1) / scale.double()
    return float(steps.max())


def require_groups(width: int, layer: int | None = None, *, through: bool = False) -> None:
    """Refuse maps whose inputs do not fill whole groups.

    Args:
        width: columns of the map.
        layer: whose map it is, for the sentence.
        through: whether a bottleneck's rank is part of the width.

    Raises:
        BadInput: `width` is not a multiple of 128.
    """
    if width % GROUP:
        whose = "" if layer is None else f" (layer {layer} reads {width})"
        raise BadInput(
            f"int8 maps have one scale per {GROUP} input columns{whose} and {width} is not a multiple of "
            f"{GROUP}",
            f"keep these maps in bf16{', or solve them with a rank that makes it one' if through else ''}",
        )
