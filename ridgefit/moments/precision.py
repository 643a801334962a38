"""In which arithmetic rows are multiplied, and how TF32 is kept out of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Literal

import torch

from ridgefit.errors import BadInput

Precision = Literal["auto", "fp64", "fast"]
Product = Literal["fp64", "fast"]

# Compute capabilities whose float64 units keep up with their float32 ones: A100, H100/H200, B200. The others
# (consumer cards, L4/L40, B300) run float64 at 1/32 to 1/64 of float32.
_STRONG_FP64 = frozenset({(8, 0), (9, 0), (10, 0)})


def product_for(precision: Precision, device: torch.device | str) -> Product:
    """Resolve `auto` for the device that multiplies.

    `fp64` where it costs nothing: data-centre GPUs run float64 products at the float32 rate (one H200, 2,048
    rows into the sums of 23 layers of width 4,096: 35 ms in float64, 41 ms under `fast`). `fast` (float32
    products of centred rows, float64 sums) elsewhere. On a CPU float64 halves the rate of the products: with
    SmolLM2-135M in bf16 and three splits, one thread with AVX-512, the capture runs at 0.84 of the plain
    forward under `fast` and at 0.73 in float64, for digits below 4e-7 that change neither the chosen penalty
    nor its score. `recipes/bench_capture.py` measures both.

    Raises:
        BadInput: float64 was asked for on a device that has none.
    """
    place = torch.device(device)
    if place.type == "mps":
        if precision == "fp64":
            raise BadInput("Apple's GPU has no float64", "use --precision fast")
        return "fast"
    if precision != "auto":
        return precision
    if place.type == "cuda" and torch.cuda.get_device_capability(place) in _STRONG_FP64:
        return "fp64"
    return "fast"


def sums_device(device: torch.device | str) -> torch.device:
    """Where float64 sums of rows from `device` can live: there, or on the CPU if it has no float64."""
    place = torch.device(device)
    return torch.device("cpu") if place.type == "mps" else place


@contextlib.contextmanager
def ieee_products() -> Iterator[None]:
    """Full float32 matrix products inside: neither TF32 nor bf16 behind the caller's back.

    TF32 keeps 10 bits; on centred rows that is a relative error of 1e-5 to 1e-4.
    """
    known: Any = torch.backends
    if not hasattr(known.cuda.matmul, "fp32_precision"):  # torch before 2.9
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)
        return
    backends = (known.cuda.matmul, known.mkldnn.matmul)
    saved = [backend.fp32_precision for backend in backends]
    try:
        for backend in backends:
            backend.fp32_precision = "ieee"
        yield
    finally:
        for backend, value in zip(backends, saved, strict=True):
            backend.fp32_precision = value
