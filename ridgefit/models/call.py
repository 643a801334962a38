"""How a decoder and its layers are called: the one place that knows transformers' argument names.

transformers 5.24 calls `layer(hidden, attention_mask=…, position_embeddings=…, position_ids=…, cache=…)`
and gets a tensor back; up to 5.17 the cache's keyword was `past_key_values`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

CACHE_NAMES = ("cache", "past_key_values")


def layer_input(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """Hidden state `[batch, rows, hidden]` that a decoder layer was called with."""
    state: Tensor = args[0] if args else kwargs["hidden_states"]
    return state


def with_layer_input(
    args: tuple[Any, ...], kwargs: dict[str, Any], state: Tensor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same call with another hidden state."""
    return ((state, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": state})


def cache_of(kwargs: Mapping[str, Any]) -> Any:
    """Cache of a decoder or layer call, None without one.

    Compared with `is not None`: an empty DynamicCache is false.
    """
    for name in CACHE_NAMES:
        if kwargs.get(name) is not None:
            return kwargs[name]
    return None


def with_cache(kwargs: dict[str, Any], cache: Any) -> dict[str, Any]:
    """The same keywords with another cache, under the name the caller used."""
    name = next((name for name in CACHE_NAMES if name in kwargs), CACHE_NAMES[0])
    return {**kwargs, name: cache}


def cache_keyword(module: nn.Module) -> str:
    """The keyword under which an attention module takes its cache."""
    names = inspect.signature(type(module).forward).parameters
    return next((name for name in CACHE_NAMES if name in names), CACHE_NAMES[0])


def output_cache(output: Any) -> Any:
    """The cache that a model's output carries, or None."""
    for name in CACHE_NAMES:
        found = getattr(output, name, None)
        if found is not None:
            return found
    return None


def cache_length(cache: Any) -> int:
    """Columns that a cache holds; a window-limited layer counts the columns it has let go.

    A StaticCache keeps its length on the device, so this waits for it.
    """
    return 0 if cache is None else int(cache.get_seq_length())


def cache_columns(cache: Any, queries: int, layer: int) -> tuple[int, int]:
    """Key columns that attention of `queries` new rows will see in `layer`: how many, and the first one."""
    length, first = cache.get_mask_sizes(queries, layer)
    return int(length), int(first)


@dataclass(frozen=True)
class DecoderCall:
    """What a decoder was called with.

    Attributes:
        batch: samples.
        columns: new columns, left padding included.
        cache: cache object or None (the decoder then makes one if `use_cache` says so).
        attention_mask: None, `[batch, columns]`, `[batch, 1, columns, keys]`, or one of these per layer kind.
        recorded: the name of an intermediate output that the caller asks for, or "".
        ids: token ids `[batch, columns]`; None where the caller gives embeddings.
    """

    batch: int
    columns: int
    cache: Any
    attention_mask: Any
    recorded: str
    ids: Any = None

    @classmethod
    def parse(cls, args: tuple[Any, ...], kwargs: Mapping[str, Any], config: Any) -> DecoderCall:
        """Read a decoder's arguments, by position (ids, mask) or by keyword."""
        embeds = kwargs.get("inputs_embeds")
        tokens = embeds if embeds is not None else (args[0] if args else kwargs["input_ids"])
        names = ("output_hidden_states", "output_attentions", "output_router_logits")
        asked = (name for name in names if kwargs.get(name, getattr(config, name, False)))
        return cls(
            batch=tokens.shape[0],
            columns=tokens.shape[1],
            cache=cache_of(kwargs),
            attention_mask=args[1] if len(args) > 1 else kwargs.get("attention_mask"),
            recorded=next(asked, ""),
            ids=None if embeds is not None else tokens,
        )


def with_last_hidden(output: Any, state: Tensor) -> Any:
    """A decoder's output with another last hidden state `[batch, columns, hidden]`."""
    if isinstance(output, tuple):
        return (state, *output[1:])
    output.last_hidden_state = state
    return output


def default_positions(columns: int, device: torch.device) -> Tensor:
    """Positions `[1, columns]` of a prompt without padding."""
    return torch.arange(columns, device=device)[None]
