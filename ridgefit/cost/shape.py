"""The dimensions that cost depends on, read from a model's config without loading the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ridgefit.cost.families import FAMILIES, Family
from ridgefit.errors import BadInput

LayerKind = Literal["full_attention", "sliding_attention"]
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class Mlp(BaseModel):
    """Gated MLP of one layer: dense, or experts behind a router.

    `width` is the intermediate width of the MLP or of one expert; `active` experts of `experts` run
    per row; `experts` is 0 for a dense layer.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    width: int = Field(gt=0)
    experts: int = Field(0, ge=0)
    active: int = Field(1, gt=0)

    def macs(self, hidden: int) -> int:
        """Multiply-accumulates per row: gate, up and down products of what runs, plus the router."""
        return self.active * 3 * hidden * self.width + self.experts * hidden

    def weights(self, hidden: int) -> int:
        """Number of stored weights: every expert, whether it runs or not, plus the router."""
        return max(self.experts, 1) * 3 * hidden * self.width + self.experts * hidden


class ModelShape(BaseModel):
    """Everything that multiply-accumulates and bytes depend on.

    `mlp` and `kinds` have one entry per layer; `window` is how many keys a row of a sliding layer
    sees, itself included, and None where no layer slides.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    family: str
    layers: int = Field(gt=0)
    hidden: int = Field(gt=0)
    heads: int = Field(gt=0)
    kv_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    mlp: tuple[Mlp, ...]
    vocab: int = Field(gt=0)
    tied: bool = False
    kinds: tuple[LayerKind, ...]
    window: int | None = Field(None, gt=0)
    qk_norm: bool = False
    bytes_per_weight: int = Field(2, gt=0)

    @model_validator(mode="after")
    def _consistent(self) -> ModelShape:
        if len(self.mlp) != self.layers or len(self.kinds) != self.layers:
            raise ValueError(f"{self.layers} layers, {len(self.kinds)} layer kinds, {len(self.mlp)} MLPs")
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} query heads do not share {self.kv_heads} KV heads evenly")
        if "sliding_attention" in self.kinds and self.window is None:
            raise ValueError("sliding layers without a window")
        return self

    def window_of(self, layer: int) -> int | None:
        """Keys a row of `layer` sees, itself included; None where it sees the whole prefix."""
        return self.window if self.kinds[layer] == "sliding_attention" else None

    @property
    def kv_width(self) -> int:
        """Width of one layer's keys, which is that of its values: kv_heads x head_dim."""
        return self.kv_heads * self.head_dim


def shape_from_config(config: Mapping[str, Any]) -> ModelShape:
    """The shape of a model from its parsed `config.json`.

    The text part of a multimodal config is found by itself; keys that checkpoints leave out take the
    family's published defaults.

    Args:
        config: the parsed JSON object.

    Raises:
        BadInput: the family is unknown, or a dimension is missing or cannot be.
    """
    text = _text_config(config)
    name = str(text.get("model_type", config.get("model_type", "")))
    family = FAMILIES.get(name)
    if family is None:
        raise BadInput(
            f"model family {name!r} is not among those whose cost is known ({', '.join(FAMILIES)})",
            "add its defaults to ridgefit/cost/families.py",
        )
    values = {**family.defaults, **text}
    try:
        return _shape(name, family, values, config)
    except KeyError as error:
        raise BadInput(f"the config of this {name} model has no {error.args[0]!r}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        reason = first["msg"].removeprefix("Value error, ")
        raise BadInput(
            f"the config of this {name} model is inconsistent ({where + ': ' if where else ''}{reason})"
        ) from error
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise BadInput(f"the config of this {name} model is inconsistent ({error})") from error


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def _shape(name: str, family: Family, values: Mapping[str, Any], config: Mapping[str, Any]) -> ModelShape:
    layers = _positive(values, "num_hidden_layers")
    hidden, heads = _positive(values, "hidden_size"), _positive(values, "num_attention_heads")
    kinds = _kinds(family, values, layers)
    dtype = (
        values.get("dtype") or values.get("torch_dtype") or config.get("dtype") or config.get("torch_dtype")
    )
    return ModelShape.model_validate(
        {
            "family": name,
            "layers": layers,
            "hidden": hidden,
            "heads": heads,
            "kv_heads": values.get("num_key_value_heads") or heads,
            "head_dim": values.get("head_dim") or hidden // heads,
            "mlp": tuple(_mlp(values, layer) for layer in range(layers)),
            "vocab": _positive(values, "vocab_size"),
            "tied": bool(config.get("tie_word_embeddings", values.get("tie_word_embeddings"))),
            "kinds": kinds,
            "window": values.get("sliding_window") if "sliding_attention" in kinds else None,
            "qk_norm": family.qk_norm,
            "bytes_per_weight": _BYTES.get(str(dtype).removeprefix("torch."), 2),
        }
    )


def _positive(values: Mapping[str, Any], key: str) -> int:
    if values.get(key) is None:
        raise KeyError(key)
    number = int(values[key])
    if number < 1:
        raise ValueError(f"{key} is {number}")
    return number


def _kinds(family: Family, values: Mapping[str, Any], layers: int) -> tuple[str, ...]:
    listed = values.get("layer_types")
    if listed is not None:
        return tuple(str(kind) for kind in listed)
    return tuple(
        "sliding_attention" if family.slides(values, layer) else "full_attention" for layer in range(layers)
    )


def _mlp(values: Mapping[str, Any], layer: int) -> Mlp:
    experts = int(values.get("num_experts") or values.get("num_local_experts") or 0)
    sparse = (
        experts > 0
        and layer not in (values.get("mlp_only_layers") or ())
        and (layer + 1) % int(values.get("decoder_sparse_step") or 1) == 0
    )
    if not sparse:
        return Mlp(width=_positive(values, "intermediate_size"))
    width, active = _positive(values, "moe_intermediate_size"), _positive(values, "num_experts_per_tok")
    return Mlp(width=width, experts=experts, active=active)
