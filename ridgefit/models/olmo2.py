"""OLMo 2: post-norm. Projections read a layer's input as it is; keys are normalised over all heads."""

from __future__ import annotations

from torch import Tensor

from ridgefit.models.norms import normed
from ridgefit.models.port import LayerKind, Port


class Olmo2Port(Port):
    """A layer's input means the residual stream here too, but no norm stands between it and the projections.

    A predicted input's scale therefore reaches the values in full; keys lose it in their norm.
    """

    family = "olmo2"
    qk_norm = True
    needs = (
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.q_norm",
        "self_attn.k_norm",
    )

    def _kind(self, layer: int) -> LayerKind:
        del layer
        return "full_attention"

    def _read(self, layer: int, inputs: Tensor) -> Tensor:
        del layer
        return inputs

    def _norm_keys(self, layer: int, keys: Tensor) -> Tensor:
        whole = keys.flatten(-2)
        return normed(self._attention(layer).k_norm, whole).view(keys.shape)

    def _norm_queries(self, layer: int, queries: Tensor) -> Tensor:
        whole = queries.flatten(-2)
        return normed(self._attention(layer).q_norm, whole).view(queries.shape)

    def _read_mlp(self, layer: int, inputs: Tensor) -> Tensor:
        del layer
        return inputs
