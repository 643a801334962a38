"""Models whose cache holds one latent row per token for all heads: widths, absorbed maps, premise probe.

A row is `[latent | branch]`: a compressed, normalised part that keys and values are expanded from, and a
small part that every head's key shares (DeepSeek-V2's decoupled branch). With `W_UK` folded into the query, a
head's score is one inner product with the row, and its output is `W_UV` times a mean of latents (VestigeKV,
Eq. 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from ridgefit.errors import BadInput
from ridgefit.models.call import cache_keyword
from ridgefit.models.identity import config_sha256, public_name
from ridgefit.tokens import tokenizer_sha256

# transformers' `model_type` of the text config -> what the family is
LATENT_FAMILIES: Mapping[str, str] = {
    "kimi_linear": "KDA and latent attention without rotation",
    "kimi_linear_rotated": "its twin with a rotated branch",
    "deepseek_v2": "latent attention with a rotated branch",
    "deepseek_v3": "latent attention with a rotated branch",
}
ROTATED = 0.1
"""Relative spread of one vector's branch over positions above which the branch counts as rotated."""
_PROBED_POSITIONS = 16


class LatentAttention:
    """One latent attention layer.

    Args:
        layer: its number.
        module: transformers' attention module.

    Attributes:
        heads: query heads.
        latent: width of a row's latent.
        branch: width of its branch.
        nope: width of a query's part that meets the latent.
        value: width of a head's value.
        scale: factor on inner products.

    Raises:
        BadInput: the module keeps its expansion in a form that cannot be folded into queries.
    """

    def __init__(self, layer: int, module: Any) -> None:
        self.layer = layer
        self.module = module
        self.heads = int(module.num_heads)
        self.latent = int(module.kv_lora_rank)
        self.branch = int(module.qk_rope_head_dim)
        self.nope = int(module.qk_nope_head_dim)
        self.value = int(module.v_head_dim)
        self.scale = float(module.scaling)
        weight = getattr(module.kv_b_proj, "weight", None)
        rows = self.heads * (self.nope + self.value)
        if weight is None or weight.shape != (rows, self.latent) or not weight.is_floating_point():
            raise BadInput(
                f"layer {layer} keeps its key and value expansion quantised or wrapped",
                "load the model in bfloat16 or float32, without adapters",
            )

    @property
    def width(self) -> int:
        """Entries of a row."""
        return self.latent + self.branch

    def absorb(self, queries: Tensor) -> Tensor:
        """Queries `[…, heads, rows, nope + branch]` as they meet rows, `[…, rows, latent + branch]`."""
        plain, turned = queries[..., : self.nope], queries[..., self.nope :]
        keys = self._expansion()[:, : self.nope]
        return torch.cat([torch.einsum("...hnd,hdr->...hnr", plain, keys), turned], dim=-1)

    def expand(self, latents: Tensor) -> Tensor:
        """Means of latents `[…, heads, rows, latent]` as values `[…, heads, rows, value]`."""
        return torch.einsum("...hnr,hvr->...hnv", latents, self._expansion()[:, self.nope :])

    def _expansion(self) -> Tensor:
        weight: Tensor = self.module.kv_b_proj.weight
        return weight.view(self.heads, self.nope + self.value, self.latent)


class LatentModel:
    """A model with latent attention in some or all layers.

    Args:
        model: the whole model.

    Attributes:
        layers: layer number -> latent attention, in order.
        family: transformers' name.
        config: the text decoder's config.

    Raises:
        BadInput: no family with a latent cache, or one whose rows have no branch.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.decoder = _decoder(model)
        self.config: Any = self.decoder.config
        self.family = str(self.config.model_type)
        found = {
            index: LatentAttention(index, block.self_attn)
            for index, block in enumerate(self.decoder.layers)
            if hasattr(block.self_attn, "expand_kv")
        }
        if not found or any(attention.branch == 0 for attention in found.values()):
            raise BadInput(
                f"this {self.family} model has no layer that caches a latent row with a branch",
                "recall policies need one; see docs/recall.md",
            )
        self.layers: Mapping[int, LatentAttention] = found

    @property
    def device(self) -> torch.device:
        """Where the first latent layer is."""
        return self._parameter().device

    @property
    def dtype(self) -> torch.dtype:
        """Compute dtype."""
        return self._parameter().dtype

    @property
    def attention(self) -> str:
        """transformers' name of the attention function in use."""
        return str(self.config._attn_implementation)

    def identity(self, tokenizer: Any = None) -> dict[str, Any]:
        """What a policy's fingerprint needs to know again: JSON values only."""
        first = next(iter(self.layers.values()))
        found: dict[str, Any] = {
            "family": self.family,
            "name": public_name(str(getattr(self.config, "_name_or_path", "") or "")),
            "revision": getattr(self.config, "_commit_hash", None),
            "n_layers": len(self.decoder.layers),
            "hidden": int(self.config.hidden_size),
            "vocab": int(self.config.vocab_size),
            "kv_heads": 1,
            "head_dim": first.width,
            "layer_kinds": [
                "latent_attention" if index in self.layers else "other"
                for index in range(len(self.decoder.layers))
            ],
            "dtype": str(self.dtype).removeprefix("torch."),
            "config_sha256": config_sha256(self.config),
        }
        if tokenizer is not None:
            found["tokenizer_sha256"] = tokenizer_sha256(tokenizer)
        return found

    def new_cache(self) -> Any:
        """An empty cache of the kind that a reader can take over."""
        from transformers import DynamicCache

        return DynamicCache(config=self.config)

    def feed(self, ids: Tensor, cache: Any, *, keep: int = 1) -> Tensor:
        """Run the whole model over further tokens.

        Args:
            ids: `[batch, new]`, without padding.
            cache: of the tokens before them; grows.
            keep: positions at the end whose logits are wanted.

        Returns:
            Logits `[batch, keep, vocab]`.
        """
        model: Any = self.model
        given = {cache_keyword(model): cache, "use_cache": True, "logits_to_keep": keep}
        logits: Tensor = model(ids.to(self.device), **given).logits
        return logits

    @torch.no_grad()
    def branch_spread(self) -> dict[int, float]:
        """How far the branch of one and the same layer input moves with its position, by layer.

        The largest distance between the cached branches of a vector repeated at 16 positions, as a share of
        their norm: 0 where the branch is not rotated, above 0.1 where it is. (Permuting cached rows tells
        nothing: that leaves attention unchanged with rotation too.)
        """
        generator = torch.Generator().manual_seed(0)
        vector = torch.randn(int(self.config.hidden_size), generator=generator)
        hidden = vector.to(self.device, self.dtype).expand(1, _PROBED_POSITIONS, -1).contiguous()
        positions = torch.arange(_PROBED_POSITIONS, device=self.device)[None]
        rotary = getattr(self.decoder, "rotary_emb", None)
        extra = {"position_embeddings": rotary(hidden, positions)} if rotary is not None else {}
        spread = {}
        for index, attention in self.layers.items():
            seen = _Probe()
            cache: Any = {cache_keyword(attention.module): seen}
            attention.module(
                hidden_states=hidden, attention_mask=None, position_ids=positions, **extra, **cache
            )
            branch = seen.branch.float()[0, 0]
            distance = (branch - branch[:1]).norm(dim=-1).max()
            spread[index] = float(distance / branch.norm(dim=-1).max().clamp(min=1e-30))
        return spread

    def _parameter(self) -> Tensor:
        first = next(iter(self.layers.values()))
        return cast("Tensor", first.module.kv_b_proj.weight)


class _Probe:
    """Stands for a cache: notes what an attention layer writes and gives it back."""

    branch: Tensor

    def update(self, latent: Tensor, branch: Tensor, *rest: Any, **more: Any) -> tuple[Tensor, Tensor]:
        """transformers' `Cache.update`."""
        del rest, more
        self.branch = branch
        return latent, branch


def _decoder(model: nn.Module) -> Any:
    for module in model.modules():
        family = getattr(getattr(module, "config", None), "model_type", "")
        if family in LATENT_FAMILIES and isinstance(getattr(module, "layers", None), nn.ModuleList):
            return module
    family = getattr(getattr(model, "config", None), "model_type", "") or type(model).__name__
    raise unknown_family(family)


def unknown_family(family: str) -> BadInput:
    """The refusal of a model whose family keeps no latent cache."""
    return BadInput(
        f"a {family!r} model keeps no latent cache that ridgefit knows (known: {', '.join(LATENT_FAMILIES)})",
        "recall policies are for those families",
    )
