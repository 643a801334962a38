"""Phi-3 and Phi-4: one fused projection, partial rotary, every layer slides if the config has a window."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F

from ridgefit.models.mistral import MistralPort


class Phi3Port(MistralPort):
    """Llama's scheme with queries, keys and values from one matrix, in that order."""

    family = "phi3"
    needs = ("input_layernorm", "self_attn.qkv_proj")

    def _project(self, layer: int, read: Tensor) -> tuple[Tensor, Tensor]:
        fused = self._attention(layer).qkv_proj
        width = self.kv_heads * self.head_dim
        if type(fused) is nn.Linear:  # leave the queries' rows of the matrix out
            bias = None if fused.bias is None else fused.bias[-2 * width :]
            both = F.linear(read, fused.weight[-2 * width :], bias)
        else:
            both = fused(read)[..., -2 * width :]
        return both[..., :width], both[..., width:]

    def _project_queries(self, layer: int, read: Tensor) -> Tensor:
        fused = self._attention(layer).qkv_proj
        width = self.heads * self.head_dim
        if type(fused) is nn.Linear:
            return F.linear(read, fused.weight[:width], None if fused.bias is None else fused.bias[:width])
        queries: Tensor = fused(read)[..., :width]
        return queries

    def _gate_and_up(self, layer: int, read: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = self._mlp(layer).gate_up_proj(read).chunk(2, dim=-1)
        return gate, up

    def _activate(self, layer: int, gate: Tensor) -> Tensor:
        return cast("Tensor", self._mlp(layer).activation_fn(gate))
