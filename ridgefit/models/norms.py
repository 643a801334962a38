"""A layer's norms, as fast as the model's dtype allows."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor
from torch.nn import functional as F


def normed(norm: Any, inputs: Tensor) -> Tensor:
    """A norm module's output; on CUDA in one kernel where it is a plain RMS norm.

    The module itself takes six kernels over an fp32 copy, as long as the map's matrix product. In bf16
    the two may differ in the last bit, since the kernel rounds once.
    """
    plain = hasattr(norm, "variance_epsilon") and not hasattr(norm, "_hf_hook")
    return fused_rms_norm(norm, inputs) if plain and inputs.is_cuda else cast("Tensor", norm(inputs))


def fused_rms_norm(norm: Any, inputs: Tensor) -> Tensor:
    """weight * x / rms(x), of a module with `weight` and `variance_epsilon`."""
    weight: Tensor = norm.weight
    return F.rms_norm(inputs, tuple(weight.shape), weight, norm.variance_epsilon)
