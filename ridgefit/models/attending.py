"""Run a decoder with an attention function of one's own, for the length of a `with` block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from ridgefit.errors import BadInput

Plain = Callable[[Any], Any]
"""Stock attention of the call, with another mask or the same."""
Attend = Callable[[int, Tensor, Tensor, float, Any, Plain], Any]
"""`(layer, queries, keys, scaling, mask, plain)` -> what attention gives; `plain(mask)` is the stock result.

Queries `[batch, heads, new, head_dim]` and keys `[batch, kv_heads, seen, head_dim]` are rotated.
"""
_STOCK = "sdpa"


def decoder_of(model: nn.Module) -> Any:
    """The text decoder of a causal language model: the module that owns `layers` and their rotary.

    Raises:
        BadInput: there is none.
    """
    for module in model.modules():
        if isinstance(getattr(module, "layers", None), nn.ModuleList) and hasattr(module, "rotary_emb"):
            return module
    raise BadInput(f"{type(model).__name__} has no text decoder with layers and rotary", "use another model")


def attention_of(decoder: Any, layer: int) -> Any:
    """The attention module of a layer."""
    return decoder.layers[layer].self_attn


def output_weights(decoder: Any, layer: int, heads: int) -> Tensor:
    """What a layer's heads write per value entry, `[heads, hidden, head_dim]`."""
    weight: Tensor = attention_of(decoder, layer).o_proj.weight
    return weight.view(weight.shape[0], heads, -1).transpose(0, 1)


def rotates(decoder: Any, layer: int) -> bool:
    """Whether a layer rotates its queries."""
    module = attention_of(decoder, layer)
    return bool(getattr(module, "use_rope", True))


@contextmanager
def attending(
    decoder: Any, attend: Attend, *, rotary: Callable[[Tensor, Tensor], None] | None = None, layer: int = 0
) -> Iterator[None]:
    """Every attention call of `decoder` goes through `attend`; nothing of it is left afterwards.

    A name of its own is registered for the function and, because a name without a mask would run without
    one, for the mask of stock scaled-dot-product attention.

    Args:
        decoder: text decoder.
        attend: the function.
        rotary: called with the cosines and sines `[batch or 1, new, width]` that `layer` gets.
        layer: layer whose rotary is wanted.
    """
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    stock = ALL_ATTENTION_FUNCTIONS[_STOCK]

    def function(
        module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float, **rest: Any
    ) -> Any:
        def plain(seen: Any) -> Any:
            return stock(module, query, key, value, seen, scaling=scaling, **rest)

        return attend(module.layer_idx, query, key, scaling, mask, plain)

    def note(_module: Any, _args: Any, kwargs: dict[str, Any]) -> None:
        if rotary is not None and kwargs.get("position_embeddings") is not None:
            rotary(*kwargs["position_embeddings"])

    config = decoder.config
    before = config._attn_implementation
    name = f"ridgefit-{id(function)}"
    hook = attention_of(decoder, layer).register_forward_pre_hook(note, with_kwargs=True) if rotary else None
    ALL_ATTENTION_FUNCTIONS.register(name, function)
    # In the class's own mapping: with a mask that only the instance knows, no mask would be made at all.
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, ALL_MASK_ATTENTION_FUNCTIONS[_STOCK])
    try:
        config._attn_implementation = name
        yield
    finally:
        config._attn_implementation = before
        for functions in (ALL_ATTENTION_FUNCTIONS, ALL_MASK_ATTENTION_FUNCTIONS):
            functions._global_mapping.pop(name)
        if hook is not None:
            hook.remove()
