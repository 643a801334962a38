"""Hooks that let a reader attend to a model's latent cache in place of the model.

transformers expands every cached row for every step. Here a step hands the unexpanded rows to a `Reader`,
which attends to those it chooses. Nothing of a model's own forward is rewritten: the cache layer marks the
tensors it returns, the module's `expand_kv` lets marked ones through, and a registered attention function
meets them.
"""

from __future__ import annotations

import types
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ridgefit.errors import BadInput
from ridgefit.models.call import cache_of, with_cache
from ridgefit.models.latent import LatentAttention, LatentModel
from ridgefit.models.latentcache import MARK, LatentLayer

NAME = "ridgefit_latent"


class Reader(Protocol):
    """What attends in place of the model, once per latent layer and step."""

    def reads(self, layer: LatentLayer, queries: int, /) -> bool:
        """Whether `queries` new rows read the cache unexpanded; otherwise the model attends to all of it."""
        ...

    def attend(self, layer: LatentLayer, attention: LatentAttention, queries: Tensor, /) -> Tensor:
        """Absorbed queries `[batch, heads, new, latent + branch]` to latents `[…, new, latent]`."""
        ...

    def observe(self, layer: LatentLayer, attention: LatentAttention, queries: Tensor, /) -> None:
        """Queries `[batch, heads, new, nope + branch]` of rows that the model attends for itself."""
        ...


class LatentHooks:
    """A reader on a model, from `attach` to `detach`.

    Args:
        latent: the model.
        reader: attends to rows in place of the model.

    Raises:
        BadInput: the model runs another attention than sdpa, or a reader is on it already.
    """

    def __init__(self, latent: LatentModel, reader: Reader) -> None:
        self.latent = latent
        self.reader = reader
        self.open = False
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._handle: RemovableHandle | None = None
        self._before = ""

    def __deepcopy__(self, memo: dict[int, Any]) -> LatentHooks:
        """A copied cache is read by the same reader."""
        del memo
        return self

    def copies(self, device: torch.device) -> torch.cuda.Stream:
        """The stream on which rows travel to a GPU."""
        if device not in self._streams:
            self._streams[device] = cast("Any", torch.cuda.Stream)(device)
        return self._streams[device]

    def attach(self) -> None:
        """Put the reader on the model."""
        if self.latent.attention != "sdpa":
            owner = self.latent.attention
            if owner == NAME:
                raise BadInput("a policy is already applied to this model", "leave its `with` block first")
            raise BadInput(
                f"the model runs attention {owner!r}, and policies need sdpa", "use --attention sdpa"
            )
        AttentionInterface.register(NAME, _attend)
        AttentionMaskInterface.register(NAME, sdpa_mask)  # without one the model would ignore padding
        for attention in self.latent.layers.values():
            module = attention.module
            module.expand_kv = types.MethodType(_Expansion(attention, module.expand_kv), module)
        self._handle = self.latent.decoder.register_forward_pre_hook(self._enter, with_kwargs=True)
        self._before = self.latent.attention
        self.latent.config._attn_implementation = NAME
        self.open = True

    def detach(self) -> None:
        """Leave the model as it was; caches filled meanwhile stay usable."""
        if not self.open:
            return
        self.open = False
        self.latent.config._attn_implementation = self._before
        for attention in self.latent.layers.values():
            del attention.module.expand_kv
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _enter(
        self, decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Give the call a cache whose latent layers are ours, and note where each sequence begins."""
        if decoder.training:
            raise BadInput(
                "the model is in training mode, and a policy is for inference", "call model.eval()"
            )
        cache = cache_of(kwargs)
        asked = kwargs.get("use_cache")
        if cache is None:
            if not (self.latent.config.use_cache if asked is None else asked):
                return None
            cache = DynamicCache(config=self.latent.config)
            kwargs = with_cache(kwargs, cache)
        if not isinstance(cache, DynamicCache):
            raise BadInput(
                f"a policy needs a DynamicCache, not a {type(cache).__name__}", "leave the cache out"
            )
        ids = kwargs.get("inputs_embeds")
        ids = ids if ids is not None else args[0] if args else kwargs["input_ids"]
        mask = args[1] if len(args) > 1 else kwargs.get("attention_mask")
        starts = left_padding(mask, ids.shape[0], cache.get_seq_length() + ids.shape[1])
        for index in self.latent.layers:
            layer = cache.layers[index]
            if type(layer) is DynamicLayer:
                layer = cache.layers[index] = LatentLayer.adopt(layer, self)
            elif not isinstance(layer, LatentLayer):
                raise BadInput(
                    f"layer {index} of the cache is a {type(layer).__name__}, which a policy cannot read",
                    "leave the cache out",
                )
            layer.hooks = self
            if layer.starts != starts:
                layer.starts, layer.states = starts, [None] * len(starts)
        return args, kwargs


class _Expansion:
    """A module's `expand_kv` that lets rows through which a reader reads for itself."""

    def __init__(self, attention: LatentAttention, stock: Any) -> None:
        self._attention = attention
        self._stock = stock

    def __call__(self, _module: Any, latents: Tensor, branches: Tensor) -> tuple[Tensor, Tensor]:
        layer, reads = getattr(latents, MARK, (None, False))
        keys, values = (latents, branches) if reads else self._stock(latents, branches)
        if layer is not None:
            setattr(keys, MARK, (layer, reads, self._attention))
        return keys, values


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: a reader where rows are marked for it, sdpa everywhere else."""
    mark = getattr(key, MARK, None)
    if mark is not None:
        layer, reads, attention = mark
        reader = layer.hooks.reader
        if reads:
            latents = reader.attend(layer, attention, attention.absorb(query))
            return attention.expand(latents).transpose(1, 2).contiguous(), None
        reader.observe(layer, attention, query)
    output = sdpa_attention_forward(
        module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
    )
    return output[0], None


def left_padding(mask: Any, batch: int, columns: int) -> list[int]:
    """Padding columns in front of each sequence.

    Args:
        mask: `[batch, columns]` with 0 for padding, or None.
        batch: sequences.
        columns: cached and new ones.

    Raises:
        BadInput: padding elsewhere, a sequence without tokens, or a mask of another shape.
    """
    if mask is None:
        return [0] * batch
    if not isinstance(mask, Tensor) or mask.shape != (batch, columns):
        raise BadInput(
            "a policy reads only attention masks of one value per sequence and column",
            "pass the tokenizer's attention_mask as it is",
        )
    real = mask.to(torch.bool)
    tokens = real.sum(dim=1)
    at = torch.arange(columns, device=mask.device)
    in_front = (real == (at >= columns - tokens[:, None])).all()
    *counts, left = torch.cat([tokens, in_front[None].to(tokens.dtype)]).tolist()
    if not left:
        raise BadInput("the attention mask has right padding or holes", "set tokenizer.padding_side = 'left'")
    if min(counts) == 0:
        raise BadInput("a sequence of the batch has no tokens", "leave empty prompts out")
    return [columns - count for count in counts]
