"""Qwen3: each head's queries and keys are normalised before rotary."""

from __future__ import annotations

from torch import Tensor

from ridgefit.models.norms import normed
from ridgefit.models.port import Port


class Qwen3Port(Port):
    """Llama's scheme with norms of width head_dim on queries and keys."""

    family = "qwen3"
    qk_norm = True
    needs = (*Port.needs, "self_attn.q_norm", "self_attn.k_norm")

    def _norm_keys(self, layer: int, keys: Tensor) -> Tensor:
        return normed(self._attention(layer).k_norm, keys)

    def _norm_queries(self, layer: int, queries: Tensor) -> Tensor:
        return normed(self._attention(layer).q_norm, queries)
