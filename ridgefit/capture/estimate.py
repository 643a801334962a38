"""What a capture needs in memory and on disk, known before a model is loaded, and whether it is there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from ridgefit.cost import ModelShape, moments_bytes
from ridgefit.errors import BadInput
from ridgefit.features import FeatureList, SplitShape
from ridgefit.files import require_space
from ridgefit.moments import Product
from ridgefit.recipe import CaptureSettings

# Sums on disk at once: three merged nodes, a checkpoint and its replacement; or two nodes and the result.
_HELD = 5
_FP32, _FP64, _TOKEN = 4, 8, 4


@dataclass(frozen=True)
class CaptureEstimate:
    """Bytes a capture needs, beyond the model itself.

    Attributes:
        sums: float64 sums, on the device that runs the model.
        buffers: scratch for one chunk's products, there too.
        forward: activations of one forward pass, there too.
        host: on the CPU in any case: the corpus and the blocks of a merge.
        disk: in the output folder, at its fullest.
        result: of that, what stays.
    """

    sums: int
    buffers: int
    forward: int
    host: int
    disk: int
    result: int

    @property
    def memory(self) -> int:
        """Everything one process needs beyond the model."""
        return self.sums + self.buffers + self.forward + self.host


def estimate(
    shape: ModelShape,
    settings: CaptureSettings,
    *,
    longest: int,
    tokens: int,
    product: Product,
    bytes_per_value: int | None = None,
    eager: bool = False,
) -> CaptureEstimate:
    """Predict a capture's bytes from dimensions alone.

    Args:
        shape: the model.
        settings: splits, features, lead, batch, workers.
        longest: tokens of the longest window.
        tokens: tokens of the corpus.
        product: precision of the products.
        bytes_per_value: of an activation; that of the weights if absent.
        eager: attention that writes all its scores out.
    """
    features = FeatureList(settings.features)
    widths = {split: features.width(SplitShape.of_config(shape, split)) for split in settings.split}
    one = sum(moments_bytes(shape, split, width=width) for split, width in widths.items())
    sums = one * (2 if settings.lead else 1)
    rows = longest * settings.batch
    inputs, width = sum(widths.values()), max(widths.values())
    value = _FP64 if product == "fp64" else _FP32
    product_block = 0 if product == "fp64" else inputs * shape.hidden * _FP32
    # inputs twice (as they came and side by side), one layer centred, converted and squared
    buffers = value * rows * (2 * inputs + 3 * max(shape.hidden, width)) + product_block
    mlp = max(part.active * 3 * part.width for part in shape.mlp)
    heads = 2 * shape.heads * shape.head_dim + 2 * shape.kv_width
    # a split's features side by side with their parts, and states of lower layers that wait for it
    reads = 2 * width + len(features.lower) * len(widths) * shape.hidden if features.names[1:] else 0
    forward = rows * (8 * shape.hidden + mlp + heads + reads) * (bytes_per_value or shape.bytes_per_weight)
    if eager:
        forward += 3 * settings.batch * shape.heads * longest * longest * _FP32
    host = tokens * _TOKEN + 4 * width * shape.hidden * _FP64
    return CaptureEstimate(
        sums=sums,
        buffers=buffers,
        forward=forward,
        host=host,
        disk=sums * (_HELD + 2 * (settings.workers - 1)) + tokens * _TOKEN,
        result=sums + tokens * _TOKEN,
    )


def require_room(
    needs: CaptureEstimate, out: Path, device: torch.device, *, workers: int, model_bytes: int
) -> None:
    """Refuse before the first forward pass what would run out of memory or disk after hours.

    Args:
        needs: the estimate.
        out: the capture's folder.
        device: where the model is.
        workers: processes; each beyond the parent's own holds the model once more.
        model_bytes: bytes of the weights.

    Raises:
        BadInput: with what is needed and what there is.
    """
    require_space(out, needs.disk, "the capture")
    copies = workers * model_bytes if workers > 1 else 0
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        need = workers * (needs.memory - needs.host) + copies
        _require(need, free, "of GPU memory")
        copies, need = 0, workers * needs.host
    else:
        need = workers * needs.memory + copies
    _require(need, psutil.virtual_memory().available, "of memory")


def _require(need: int, free: int, what: str) -> None:
    if need > free:
        raise BadInput(
            f"the capture needs {need / 2**30:.2f} GiB {what} besides the model, "
            f"{free / 2**30:.2f} GiB are free",
            "capture fewer splits at a time, lower --workers, --batch or the window, or use --lead 0",
        )
