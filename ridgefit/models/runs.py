"""Attention of a prompt's tail over everything before it, without a mask: run by run, on fast kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_cudnn_attention, can_use_flash_attention
from torch.nn import functional as F

Runs = tuple[tuple[int, int], ...]
Attend = Callable[..., Tensor]
"""Attention `(query, key, value, scale=…)` of certain rows over all of a prompt."""


Attended = tuple[Tensor, Tensor]
"""Attention `[batch, heads, rows, width]` and log-sum-exp `[batch, heads, rows]` (natural) of its scores."""


class RunKeys(Tensor):
    """Keys of a whole prompt that know which rows of it will ask.

    A stock layer gets them from its cache and hands them to `scaled_dot_product_attention` with no mask and
    `is_causal=False`; the call ends up in `attend`. Told through the keys rather than through a mask,
    because transformers copies keys and values once per query head where there is a mask.
    """

    attend: Attend

    @classmethod
    def of(cls, keys: Tensor, runs: Runs) -> RunKeys:
        """The same memory, asked by the rows of `runs` in order."""
        return cls.asked(keys, partial(attend_runs, runs=runs))

    @classmethod
    def asked(cls, keys: Tensor, attend: Attend) -> RunKeys:
        """The same memory, asked in the way of `attend`."""
        made = keys.as_subclass(cls)
        made.attend = attend
        return made

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replace scaled dot product attention; views and copies stay asked."""
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return _attend(*args, **kwargs)
        found = cast("Any", super()).__torch_function__(func, types, args, kwargs)
        if isinstance(found, cls) and not hasattr(found, "attend"):
            found.attend = next(item.attend for item in args if isinstance(item, cls))
        return found


def _attend(
    query: Tensor,
    key: RunKeys,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`scaled_dot_product_attention` for `RunKeys`."""
    del enable_gqa  # the heads say it
    if attn_mask is not None or is_causal or dropout_p:
        raise ValueError("keys that know their rows take no mask and no dropout")
    return key.attend(query, key.as_subclass(Tensor), value, scale=scale)


def attend_runs(
    query: Tensor, key: Tensor, value: Tensor, runs: Runs, *, scale: float | None = None
) -> Tensor:
    """Causal attention of some rows over all of a prompt.

    Args:
        query: `[batch, heads, rows, width]`, the rows of `runs` one after another.
        key: `[batch, kv_heads, columns, width]`.
        value: the same for values.
        runs: half-open ranges of columns; a row sees the columns up to its own.
        scale: of the scores; 1 / sqrt(width) if absent.

    Returns:
        `[batch, heads, rows, width]`.
    """
    parts, offset = [], 0
    for start, stop in runs:
        part = query[:, :, offset : offset + stop - start]
        parts.append(attend_run(part, key[:, :, :stop], value[:, :, :stop], scale))
        offset += stop - start
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def attend_run(query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
    """Causal attention whose last query stands on the last key."""
    rows, keys = query.shape[2], key.shape[2]
    grouped = query.shape[1] != key.shape[1]
    if rows in (1, keys):
        causal = rows == keys and rows > 1
        return F.scaled_dot_product_attention(
            query, key, value, is_causal=causal, scale=scale, enable_gqa=grouped
        )
    params = SDPAParams(query, key, value, None, 0.0, False, grouped)
    if query.is_cuda and can_use_cudnn_attention(params):
        before = keys - rows
        found, _ = merged(
            _cudnn(query, key[:, :, :before], value[:, :, :before], scale, causal=False),
            _cudnn(query, key[:, :, before:], value[:, :, before:], scale, causal=True),
        )
        return found.to(query.dtype)
    if _can_flash(query, params):
        # This operator aligns its causal mask to the lower right; the public function to the upper left.
        return _flash(query, key, value, scale, causal=True)[0]
    mask = torch.ones(rows, keys, dtype=torch.bool, device=query.device).tril(keys - rows)
    return F.scaled_dot_product_attention(query, key, value, mask, scale=scale, enable_gqa=grouped)


def fast_kernel(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether `attend_unmasked` has a kernel for these."""
    params = SDPAParams(query, key, value, None, 0.0, False, query.shape[1] != key.shape[1])
    return query.is_cuda and (can_use_cudnn_attention(params) or _can_flash(query, params))


def attend_unmasked(query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Attended:
    """Attention of rows that see every key, and its log-sum-exp; where `fast_kernel` says so."""
    params = SDPAParams(query, key, value, None, 0.0, False, query.shape[1] != key.shape[1])
    if can_use_cudnn_attention(params):
        return _cudnn(query, key, value, scale, causal=False)
    return _flash(query, key, value, scale, causal=False)


def _can_flash(query: Tensor, params: SDPAParams) -> bool:
    return query.is_cuda and query.shape[3] % 8 == 0 and can_use_flash_attention(params)


def _flash(query: Tensor, key: Tensor, value: Tensor, scale: float | None, *, causal: bool) -> Attended:
    """Attention and its log-sum-exp from PyTorch's flash kernel."""
    flash = torch.ops.aten._scaled_dot_product_flash_attention
    found = flash(query, key, value, 0.0, causal, return_debug_mask=False, scale=scale)
    return found[0], found[1]


def _cudnn(query: Tensor, key: Tensor, value: Tensor, scale: float | None, *, causal: bool) -> Attended:
    """Attention and its log-sum-exp from cuDNN, whose causal mask wants as many keys as rows.

    On Hopper it is nearly twice as fast as the flash kernel of PyTorch, and it is what exact prefill runs on.
    """
    found = torch.ops.aten._scaled_dot_product_cudnn_attention(
        query, key, value, None, True, 0.0, causal, False, scale=scale
    )
    return found[0], found[1].reshape(query.shape[:3])


def merged(first: Attended, second: Attended) -> Attended:
    """Attention over the union of two disjoint sets of keys, in float32."""
    low, high = first[1].float(), second[1].float()
    share = torch.sigmoid(high - low).unsqueeze(-1)
    return torch.lerp(first[0].float(), second[0].float(), share), torch.logaddexp(low, high)
