"""Memory of a draft that serves many requests, and what scoring its cache costs (RIFT appendices A, D.2).

Weights and KV entries are bf16, recurrent matrices fp32, convolution buffers bf16. Pure arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from ridgefit.errors import BadInput

_BF16, _FP32 = 2, 4


class DraftShape(BaseModel):
    """What the memory of a draft depends on.

    Attributes:
        parameters: weights; the paper counts nominal sizes (4e9 for a "4B").
        attention_layers: layers with a KV cache over all tokens.
        heads: query heads of such a layer.
        kv_heads: KV heads of such a layer.
        head_dim: width of a head.
        recurrent_values: entries of all recurrent matrices of one request.
        conv_values: entries of all convolution buffers of one request.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    parameters: float = Field(gt=0)
    attention_layers: int = Field(ge=0)
    heads: int = Field(gt=0)
    kv_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    recurrent_values: int = Field(0, ge=0)
    conv_values: int = Field(0, ge=0)


class DraftMemory(BaseModel):
    """Bytes in use on the device that drafts.

    Attributes:
        weights: of the model.
        kv: keys and values in sight, of all requests.
        recurrent: recurrent matrices of all requests.
        conv: convolution buffers of all requests.
        stored: keys and values that are kept though not in sight; on the device or offloaded.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    weights: float
    kv: float
    recurrent: float
    conv: float
    stored: float

    @property
    def total(self) -> float:
        """Weights, what is in sight, and states."""
        return self.weights + self.kv + self.recurrent + self.conv

    @property
    def kv_share(self) -> float:
        """Share of the KV cache in the total."""
        return self.kv / self.total


def draft_memory(shape: DraftShape, requests: int, tokens: int, *, budget: int | None = None) -> DraftMemory:
    """Memory of `requests` requests with `tokens` tokens each.

    Args:
        shape: the draft.
        requests: served at once.
        tokens: of each request's history.
        budget: columns in sight; None for all. A budget leaves recurrent states as they are.
    """
    row = shape.attention_layers * 2 * shape.kv_heads * shape.head_dim * _BF16
    seen = tokens if budget is None else min(budget, tokens)
    return DraftMemory(
        weights=shape.parameters * _BF16,
        kv=float(requests * seen * row),
        recurrent=float(requests * shape.recurrent_values * _FP32),
        conv=float(requests * shape.conv_values * _BF16),
        stored=float(requests * (tokens - seen) * row),
    )


def score_macs(shape: DraftShape, tokens: int, observe: int = 64) -> int:
    """Multiply-accumulates of one refresh of one request: observed queries times every stored key."""
    return shape.attention_layers * shape.heads * observe * tokens * shape.head_dim


def score_seconds(
    shape: DraftShape, tokens: int, observe: int = 64, *, macs_per_second: float, bytes_per_second: float
) -> float:
    """Least time of one refresh: whichever of the products and the reading of keys takes longer."""
    keys = shape.attention_layers * tokens * shape.kv_heads * shape.head_dim * _BF16
    return max(score_macs(shape, tokens, observe) / macs_per_second, keys / bytes_per_second)


def rescoring_overhead(
    seconds_per_refresh: float, *, every: float, round_seconds: float, acceptance_length: float
) -> float:
    """Time that refreshes add, as a share of decode time (appendix D.2).

    Args:
        seconds_per_refresh: of one selection over all layers.
        every: output tokens from one refresh to the next; of an adaptive controller its mean gap.
        round_seconds: one round without it: drafting and verification.
        acceptance_length: output tokens of a round.

    Raises:
        ValueError: a time or length that is not positive.
    """
    if min(every, round_seconds, acceptance_length) <= 0:
        raise ValueError("gaps, times and lengths must be positive")
    return (seconds_per_refresh / every) / (round_seconds / acceptance_length)


def draft_shape_from_config(config: Mapping[str, Any], parameters: float) -> DraftShape:
    """The shape of a model with full-attention layers, gated delta nets, Mamba-2 layers, or a mix.

    Args:
        config: parsed `config.json`, the text part found by itself.
        parameters: weights of the model.

    Raises:
        BadInput: a dimension is missing.
    """
    text = config.get("text_config") if isinstance(config.get("text_config"), Mapping) else config
    values: Mapping[str, Any] = text if isinstance(text, Mapping) else config
    try:
        heads = int(values["num_attention_heads"])
        kinds = _kinds(values)
        recurrent, conv = _states(values)
        linear = sum(kind in ("linear_attention", "mamba") for kind in kinds)
        return DraftShape(
            parameters=parameters,
            attention_layers=sum(kind in ("full_attention", "attention") for kind in kinds),
            heads=heads,
            kv_heads=int(values.get("num_key_value_heads") or heads),
            head_dim=int(values.get("head_dim") or int(values["hidden_size"]) // heads),
            recurrent_values=linear * recurrent,
            conv_values=linear * conv,
        )
    except KeyError as error:
        raise BadInput(f"the config has no {error.args[0]!r}, which the draft's memory depends on") from error


def _kinds(values: Mapping[str, Any]) -> list[str]:
    listed = values.get("layer_types") or values.get("layers_block_type")
    if listed:
        return [str(kind) for kind in listed]
    layers = int(values["num_hidden_layers"])
    if "linear_num_value_heads" in values:
        every = int(values.get("full_attention_interval", 4))
        return ["linear_attention" if (at + 1) % every else "full_attention" for at in range(layers)]
    return ["full_attention"] * layers


def _states(values: Mapping[str, Any]) -> tuple[int, int]:
    """Entries of one recurrent layer's matrix and convolution buffer."""
    if "linear_num_value_heads" in values:
        key_heads, value_heads = int(values["linear_num_key_heads"]), int(values["linear_num_value_heads"])
        key, value = int(values["linear_key_head_dim"]), int(values["linear_value_head_dim"])
        channels = 2 * key_heads * key + value_heads * value
        return value_heads * key * value, channels * int(values.get("linear_conv_kernel_dim", 4))
    if "mamba_num_heads" in values:
        heads, width = int(values["mamba_num_heads"]), int(values["mamba_head_dim"])
        state, groups = int(values["ssm_state_size"]), int(values.get("n_groups", 8))
        channels = heads * width + 2 * groups * state
        return heads * width * state, channels * int(values.get("conv_kernel", 4))
    return 0, 0
