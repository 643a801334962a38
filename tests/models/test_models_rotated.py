"""The rotated twin of Kimi Linear against attention written out in fp64 with complex rotations."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from ridgefit.errors import BadInput
from ridgefit.models.kimi_linear_rotated import (
    KimiLinearForCausalLM,
    RotatedKimiLinearConfig,
    RotatedKimiLinearForCausalLM,
    register,
)
from ridgefit.models.registry import require_family

SHAPE = {
    "vocab_size": 64,
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "kv_lora_rank": 12,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 10,
    "v_head_dim": 6,
    "linear_head_dim": 8,
    "linear_num_heads": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "mlp_layer_types": ["dense", "dense"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def twin(seed: int = 0) -> RotatedKimiLinearForCausalLM:
    torch.manual_seed(seed)
    model = RotatedKimiLinearForCausalLM(RotatedKimiLinearConfig(**SHAPE)).eval()
    with torch.no_grad():
        for parameter in model.model.layers[1].self_attn.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def test_attention_written_out() -> None:
    attention = twin().model.layers[1].self_attn
    hidden, positions = torch.randn(1, 7, 24), torch.arange(5, 12)[None]
    with torch.no_grad():
        found, _ = attention(hidden, None, position_ids=positions)

    def turn(states: torch.Tensor) -> torch.Tensor:  # [rows, 8]: halves are real and imaginary parts
        speed = 10_000.0 ** (-torch.arange(4, dtype=torch.float64) / 4)
        phase = torch.polar(torch.ones(7, 4, dtype=torch.float64), positions[0, :, None] * speed)
        turned = torch.complex(states[:, :4], states[:, 4:]) * phase
        return torch.cat([turned.real, turned.imag], -1)

    weights = {name: value.double() for name, value in attention.named_parameters()}
    x = hidden[0].double()
    latent, branch = (x @ weights["kv_a_proj_with_mqa.weight"].T).split([12, 8], -1)
    latent = latent * (latent.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    latent = latent * weights["kv_a_layernorm.weight"]
    queries = (x @ weights["q_proj.weight"].T).view(7, 3, 18)
    expanded = (latent @ weights["kv_b_proj.weight"].T).view(7, 3, 16)
    outputs = []
    for head in range(3):
        query = torch.cat([queries[:, head, :10], turn(queries[:, head, 10:])], -1)
        key = torch.cat([expanded[:, head, :10], turn(branch)], -1)
        scores = (query @ key.T / 18**0.5).masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf)
        outputs.append(scores.softmax(-1) @ expanded[:, head, 10:])
    want = torch.cat(outputs, -1) @ weights["o_proj.weight"].T
    torch.testing.assert_close(found[0].double(), want, atol=1e-5, rtol=0)


def test_only_the_branch_is_rotated() -> None:
    """One row alone sees no rotation at all; more rows do."""
    model = twin()
    plain = KimiLinearForCausalLM(model.config).eval()
    plain.load_state_dict(model.state_dict())
    ids = torch.arange(3, 11)[None]
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits[:, 0], plain(ids).logits[:, 0])
        assert (model(ids).logits[:, -1] - plain(ids).logits[:, -1]).abs().max() > 1e-3


def test_saved_twin_loads_and_generates(tmp_path) -> None:
    model = twin()
    model.save_pretrained(tmp_path)
    register()
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(again) is RotatedKimiLinearForCausalLM
    ids = torch.tensor([[0, 0, 5, 6, 7, 8], [9, 10, 11, 12, 13, 14]])
    mask = (ids != 0).long()
    padded = again.generate(ids, attention_mask=mask, max_new_tokens=4, do_sample=False, eos_token_id=None)
    alone = model.generate(ids[:1, 2:], max_new_tokens=4, do_sample=False, eos_token_id=None)
    assert padded[0, 6:].tolist() == alone[0, 4:].tolist()


def test_maps_are_refused_for_latent_caches() -> None:
    with pytest.raises(BadInput, match=r"latent cache.*calibrate recall"):
        require_family(RotatedKimiLinearConfig(**SHAPE))
