"""Tiny random models with a latent cache: Kimi Linear, its rotated twin, DeepSeek-V2 and V3.

Weights are drawn wide, so that attention is far from uniform and a row left out shows.
"""

from __future__ import annotations

from typing import Any

import torch

VOCAB = 128
LATENT, BRANCH, NOPE, VALUE, HEADS = 24, 8, 12, 10, 3

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "kv_lora_rank": LATENT,
    "qk_rope_head_dim": BRANCH,
    "qk_nope_head_dim": NOPE,
    "v_head_dim": VALUE,
    "max_position_embeddings": 4096,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_KIMI = {
    "linear_head_dim": 8,
    "linear_num_heads": 2,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "mlp_layer_types": ["dense"] * 4,
}
NAMES = ("kimi_linear", "kimi_linear_rotated", "deepseek_v2", "deepseek_v3")


def build_latent(name: str = "kimi_linear", *, seed: int = 0, **overrides: Any) -> Any:
    """A new tiny model in fp32 and eval mode, always with the same weights for the same arguments."""
    import transformers

    from ridgefit.models import kimi_linear_rotated as rotated

    torch.manual_seed(seed)  # decay rates keep what transformers draws
    if name.startswith("deepseek"):
        own = {"q_lora_rank": None, "first_k_dense_replace": 4, "hidden_size": 36}
        family = "DeepseekV2" if name == "deepseek_v2" else "DeepseekV3"
        config = getattr(transformers, f"{family}Config")(**{**_COMMON, **own, **overrides})
        model = getattr(transformers, f"{family}ForCausalLM")(config)
    elif name == "kimi_linear":
        model = transformers.KimiLinearForCausalLM(
            transformers.KimiLinearConfig(**{**_COMMON, **_KIMI, **overrides})
        )
    else:
        model = rotated.RotatedKimiLinearForCausalLM(
            rotated.RotatedKimiLinearConfig(**{**_COMMON, **_KIMI, **overrides})
        )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if key.endswith(("A_log", "dt_bias")):
                continue
            if parameter.ndim == 1:
                parameter.copy_(0.2 * noise + 1.0)
            else:
                parameter.copy_(1.3 * noise / (parameter.shape[-1] if "embed" not in key else 1) ** 0.5)
    return model.eval()


def ids(rows: int, *, batch: int = 1, seed: int = 0) -> torch.Tensor:
    """Random ids `[batch, rows]`, special ids left out."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB, (batch, rows), generator=generator)


def padded(lengths: list[int], *, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Left-padded ids and attention mask `[batch, longest]`."""
    longest = max(lengths)
    tokens, mask = ids(longest, batch=len(lengths), seed=seed), torch.ones(len(lengths), longest).long()
    for row, length in enumerate(lengths):
        tokens[row, : longest - length] = 0
        mask[row, : longest - length] = 0
    return tokens, mask
