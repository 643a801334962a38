"""Qwen3: each head's keys are normalised before rotary."""

from __future__ import annotations

from torch import Tensor

from ridgefit.models.norms import normed
from ridgefit.models.port import Port


class Qwen3Port(Port):
    """Llama's scheme with a norm of width head_dim on keys."""

    family = "qwen3"
    qk_norm = True
    needs = (*Port.needs, "self_attn.k_norm")

    def _norm_keys(self, layer: int, keys: Tensor) -> Tensor:
        return normed(self._attention(layer).k_norm, keys)
