"""A latent attention layer's cache that a policy reads for itself, and the hooks that let it.

transformers expands every cached row for every step. Here a step hands the unexpanded rows to a `Reader`,
which attends to those it chooses. Nothing of a model's own forward is rewritten: the cache layer marks the
tensors it returns, the module's `expand_kv` lets marked ones through, and a registered attention function
meets them.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Sequence
from typing import Any, Protocol

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

NAME = "ridgefit_latent"
_MARK = "_ridgefit_latent"


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


class LatentLayer(DynamicLayer):
    """Rows of one latent layer: all on the device, or the first `offset` columns in host memory.

    Attributes:
        states: per sequence, whatever the reader keeps; travels with copies and reordering, and is replaced,
            never changed in place.
        starts: per sequence, its first column that is no padding.
        offset: columns that only host memory holds.
        host: `[batch, offset, latent + branch]`, pinned beside a GPU; None without such columns.
    """

    keys: Tensor
    values: Tensor

    def __init__(self, hooks: LatentHooks) -> None:
        super().__init__()
        self.hooks = hooks
        self.states: list[Any] = []
        self.starts: list[int] = []
        self.offset = 0
        self.host: Tensor | None = None

    @classmethod
    def adopt(cls, layer: DynamicLayer, hooks: LatentHooks) -> LatentLayer:
        """A cache layer with the rows that another one holds."""
        new = cls(hooks)
        if layer.is_initialized:
            new.lazy_initialization(layer.keys, layer.values)
            new.keys, new.values = layer.keys, layer.values
        return new

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Append rows; returns latents and branches, marked while the hooks are on."""
        reads = self.hooks.open and self.hooks.reader.reads(self, key_states.shape[-2])
        if self.offset and not reads:
            self.bring_back()
        latents, branches = super().update(key_states, value_states, *args, **kwargs)
        if not self.hooks.open:
            return latents, branches
        latents = latents.view_as(latents)  # a view: a mark on `self.keys` would be a cycle that pins memory
        setattr(latents, _MARK, (self, reads))
        return latents, branches

    def get_seq_length(self) -> int:
        """Columns, padding and those in host memory included."""
        return self.offset + int(super().get_seq_length())

    def rows(self, sequence: int, columns: Tensor) -> Tensor:
        """Rows `[columns, latent + branch]` of a sequence, on the device, copied.

        Args:
            sequence: which of the batch.
            columns: int64, ascending, counted from the first column with padding.
        """
        if self.host is None:
            return self._on_device(sequence, columns)
        far = int(torch.searchsorted(columns, self.offset))
        fetched = self.host[sequence].index_select(0, columns[:far].to(self.host.device))
        if self.keys.is_cuda:
            fetched = fetched.pin_memory()
        fetched = fetched.to(self.keys.device, non_blocking=True)
        if far == columns.numel():
            return fetched
        return torch.cat([fetched, self._on_device(sequence, columns[far:] - self.offset)])

    def send_to_host(self, offset: int) -> None:
        """Move the columns before `offset` to host memory, exactly."""
        count = offset - self.offset
        if count <= 0:
            return
        moved = torch.cat([self.keys[:, 0, :count], self.values[:, 0, :count]], dim=-1).to("cpu")
        self.host = moved if self.host is None else torch.cat([self.host, moved], dim=1)
        if self.keys.is_cuda:
            self.host = self.host.pin_memory()
        self.keys, self.values = self.keys[:, :, count:].clone(), self.values[:, :, count:].clone()
        self.offset = offset

    def bring_back(self) -> None:
        """Every column on the device again."""
        if self.host is None:
            return
        width = self.keys.shape[-1]
        back = self.host.to(self.keys.device)[:, None]
        self.keys = torch.cat([back[..., :width], self.keys], dim=-2)
        self.values = torch.cat([back[..., width:], self.values], dim=-2)
        self.host, self.offset = None, 0

    def reset(self) -> None:
        """Forget all rows and what the reader kept of them."""
        super().reset()
        self.states, self.starts, self.host, self.offset = [], [], None, 0

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last rows; what the reader kept is found anew at the next step."""
        self.bring_back()
        super().crop(tokens_to_remove)
        self.states = [None] * len(self.states)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Rows and the reader's state follow the beams."""
        self._select(beam_idx, super().reorder_cache, beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each sequence `repeats` times."""
        order = torch.arange(len(self.states)).repeat_interleave(repeats)
        self._select(order, super().batch_repeat_interleave, repeats)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Only some sequences, by number or by mask."""
        order = indices.nonzero().flatten() if indices.dtype == torch.bool else indices
        self._select(order, super().batch_select_indices, indices)

    def _select(self, order: Tensor, parent: Any, argument: Any) -> None:
        if self.is_initialized and self.keys.numel():
            parent(argument)
        if self.host is not None:
            self.host = self.host.index_select(0, order.to(self.host.device))
        if self.states:
            chosen = order.tolist()
            self.states = [self.states[place] for place in chosen]
            self.starts = [self.starts[place] for place in chosen]

    def _on_device(self, sequence: int, columns: Tensor) -> Tensor:
        picked = (part[sequence, 0].index_select(0, columns) for part in (self.keys, self.values))
        return torch.cat(tuple(picked), dim=-1)


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
        self._handle: RemovableHandle | None = None
        self._before = ""

    def __deepcopy__(self, memo: dict[int, Any]) -> LatentHooks:
        """A copied cache is read by the same reader."""
        del memo
        return self

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
        layer, reads = getattr(latents, _MARK, (None, False))
        keys, values = (latents, branches) if reads else self._stock(latents, branches)
        if layer is not None:
            setattr(keys, _MARK, (layer, reads, self._attention))
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
    mark = getattr(key, _MARK, None)
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


def copied(cache: Any) -> Any:
    """A deep copy of a cache, to go on from one prefill in several ways."""
    return copy.deepcopy(cache)


def latent_layers(cache: Any, layers: Sequence[int]) -> dict[int, LatentLayer]:
    """The latent layers of a cache that a policy was applied to."""
    return {index: cache.layers[index] for index in layers}
