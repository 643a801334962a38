"""Qwen3-MoE: Qwen3's attention; the experts see exact rows only."""

from __future__ import annotations

from ridgefit.models.mistral import MistralPort
from ridgefit.models.qwen3 import Qwen3Port


class Qwen3MoePort(Qwen3Port):
    """Qwen3 with one window for all layers, or none, as Mistral has it."""

    family = "qwen3_moe"
    _kind = MistralPort._kind
