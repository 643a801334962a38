"""Multiply-accumulates and bytes of exact and filled prefills, from a config alone."""

from __future__ import annotations

from ridgefit.cost.drafts import (
    DraftMemory,
    DraftShape,
    draft_memory,
    draft_shape_from_config,
    rescoring_overhead,
)
from ridgefit.cost.macs import Arm, Macs, arm_macs, check_arm, crossover, pop, prefill_macs, visible_pairs
from ridgefit.cost.maps import map_macs
from ridgefit.cost.memory import (
    capture_bytes,
    capture_disk_bytes,
    capture_macs,
    kv_bytes,
    kv_bytes_per_token,
    map_bytes,
    model_bytes,
    moments_bytes,
)
from ridgefit.cost.presets import preset_config, preset_names
from ridgefit.cost.recall import ReadBudget
from ridgefit.cost.shape import ModelShape, shape_from_config
from ridgefit.cost.suggest import Suggestion, suggest

__all__ = [
    "Arm",
    "DraftMemory",
    "DraftShape",
    "Macs",
    "ModelShape",
    "ReadBudget",
    "Suggestion",
    "arm_macs",
    "capture_bytes",
    "capture_disk_bytes",
    "capture_macs",
    "check_arm",
    "crossover",
    "draft_memory",
    "draft_shape_from_config",
    "kv_bytes",
    "kv_bytes_per_token",
    "map_bytes",
    "map_macs",
    "model_bytes",
    "moments_bytes",
    "pop",
    "prefill_macs",
    "preset_config",
    "preset_names",
    "rescoring_overhead",
    "shape_from_config",
    "suggest",
    "visible_pairs",
]
