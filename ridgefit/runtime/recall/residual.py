"""How far rows stand out from the slow course of their neighbours (VestigeKV, Eq. 3)."""

from __future__ import annotations

import torch
from torch import Tensor


def low_pass_residual(rows: Tensor, kappa: int) -> Tensor:
    """Norm of each row after its window's lowest `kappa` rFFT bins are taken away.

    That is the distance to the span of `2 * kappa - 1` sines and cosines over the window, per channel. The
    window has no padding and no taper, so it counts as periodic: a steady drift stands out at both its ends.

    Args:
        rows: `[rows, width]` of one window, any dtype; computed in fp32, which the transform needs.
        kappa: bins, the mean included; 1 subtracts the mean.

    Returns:
        `[rows]` fp32. With at most `2 * kappa - 1` rows nothing is left but rounding.
    """
    spectrum = torch.fft.rfft(rows.float(), dim=0)
    spectrum[kappa:] = 0
    slow = torch.fft.irfft(spectrum, n=rows.shape[0], dim=0)
    residual: Tensor = torch.linalg.vector_norm(rows.float() - slow, dim=-1)
    return residual
