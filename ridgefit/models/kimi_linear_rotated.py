"""Kimi Linear with a rotated branch: the control arm for everything that relies on an unrotated one.

transformers has no such class. Recall policies rank rows by the shared branch of a NoPE-MLA cache (VestigeKV,
section 3); this twin differs from `kimi_linear` in nothing but rotary embeddings on that branch and on the
queries that meet it, so that a pair trained alike tells what the premise is worth.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, KimiLinearConfig, KimiLinearForCausalLM
from transformers.models.kimi_linear.modeling_kimi_linear import (
    ALL_ATTENTION_FUNCTIONS,
    KimiLinearAttention,
    eager_attention_forward,
)

FAMILY = "kimi_linear_rotated"


class RotatedKimiLinearConfig(KimiLinearConfig):
    """`KimiLinearConfig` with the base of the rotary frequencies."""

    model_type: ClassVar[str] = FAMILY
    rope_theta: float = 10_000.0


class RotatedKimiLinearAttention(KimiLinearAttention):
    """Latent attention whose shared branch is rotated before it is cached."""

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None, cache: Any = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """One layer's attention `[batch, rows, hidden]`; `position_ids` `[batch or 1, rows]` turn it."""
        batch, rows = hidden_states.shape[:2]
        turn = _Turn(kwargs["position_ids"], self.qk_rope_head_dim, self.config.rope_theta)
        if self.q_lora_rank is None:
            queries = self.q_proj(hidden_states)
        else:
            queries = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(hidden_states)))
        queries = queries.view(batch, rows, self.num_heads, self.qk_head_dim).transpose(1, 2)
        plain, turned = queries.split([self.qk_nope_head_dim, self.qk_rope_head_dim], dim=-1)
        queries = torch.cat([plain, turn(turned)], dim=-1)

        latent, branch = self.kv_a_proj_with_mqa(hidden_states)[:, None].split(
            [self.kv_lora_rank, self.qk_rope_head_dim], dim=-1
        )
        latent, branch = self.kv_a_layernorm(latent), turn(branch)
        if cache is not None:
            latent, branch = cache.update(latent, branch, self.layer_idx, kwargs=kwargs)
        keys, values = self.expand_kv(latent, branch)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        dropout = self.attention_dropout if self.training else 0.0
        output, weights = attend(
            self, queries, keys, values, attention_mask, dropout=dropout, scaling=self.scaling, **kwargs
        )
        return self.o_proj(output.reshape(batch, rows, -1)), weights


class RotatedKimiLinearForCausalLM(KimiLinearForCausalLM):
    """`KimiLinearForCausalLM` with `RotatedKimiLinearAttention` in its full-attention layers."""

    config_class = RotatedKimiLinearConfig

    def __init__(self, config: RotatedKimiLinearConfig) -> None:
        super().__init__(config)
        for index, layer in enumerate(self.model.layers):
            if config.layer_types[index] == "full_attention":
                layer.self_attn = RotatedKimiLinearAttention(config, index)
        self.post_init()


class _Turn:
    """Rotary embedding of `[batch, heads, rows, width]`, halves against halves, in fp32."""

    def __init__(self, position_ids: Tensor, width: int, theta: float) -> None:
        steps = torch.arange(0, width, 2, device=position_ids.device, dtype=torch.float32)
        angles = position_ids[:, None, :, None].float() * theta ** (-steps / width)
        self._cos, self._sin = angles.cos(), angles.sin()

    def __call__(self, states: Tensor) -> Tensor:
        first, second = states.float().chunk(2, dim=-1)
        turned = [first * self._cos - second * self._sin, second * self._cos + first * self._sin]
        return torch.cat(turned, dim=-1).to(states.dtype)


def register() -> None:
    """Make transformers' Auto classes know the twin, so that a saved one loads like any other model."""
    AutoConfig.register(FAMILY, RotatedKimiLinearConfig, exist_ok=True)
    AutoModelForCausalLM.register(RotatedKimiLinearConfig, RotatedKimiLinearForCausalLM, exist_ok=True)
