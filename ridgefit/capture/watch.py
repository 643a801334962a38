"""The late layers' inputs while an unmodified model runs, through hooks that leave with the context."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ridgefit.errors import CheckFailed
from ridgefit.models import Port, layer_input

Receive = Callable[[int, Tensor], None]


class Watch:
    """Runs a model's decoder and hands every watched layer's input to a callback.

    Hooks, not `output_hidden_states`, whose last entry is taken after the final norm. The language model head
    and the cache are left out. Each hook must fire exactly once per forward pass: a layer that is skipped,
    run twice or hidden behind a fused kernel would silently spoil the sums.

    Args:
        port: the model.
        first: first layer to watch; all after it are watched too.
        receive: called with layer number and its input `[batch, rows, hidden]`, in the order of execution.
    """

    def __init__(self, port: Port, first: int, receive: Receive) -> None:
        self._port = port
        self._first = first
        self._receive = receive
        self._handles: list[RemovableHandle] = []
        self._fired: Counter[int] = Counter()

    def __enter__(self) -> Self:
        for layer in range(self._first, self._port.n_layers):
            hook = self._port.layers[layer].register_forward_pre_hook(self._hook(layer), with_kwargs=True)
            self._handles.append(hook)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def run(self, ids: Tensor, valid: Tensor) -> None:
        """One forward pass over a batch.

        Args:
            ids: `[batch, rows]` token ids, padded on the right.
            valid: `[batch, rows]` bool, False for padding.

        Raises:
            CheckFailed: a watched layer ran more than once, or not at all.
        """
        self._fired.clear()
        mask = None if bool(valid.all()) else valid.long().to(self._port.device)
        with torch.no_grad():
            self._port.decoder(input_ids=ids.to(self._port.device), attention_mask=mask, use_cache=False)
        for layer in range(self._first, self._port.n_layers):
            if self._fired[layer] != 1:
                raise _miscounted(layer, "did not run")

    def _hook(self, layer: int) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            del module
            self._fired[layer] += 1
            if self._fired[layer] > 1:
                raise _miscounted(layer, "ran more than once")
            state = layer_input(args, kwargs)
            if state.ndim != 3 or state.shape[-1] != self._port.hidden:
                shape = tuple(cast("tuple[int, ...]", state.shape))
                raise CheckFailed(f"the input of layer {layer} has shape {shape}, not [batch, rows, hidden]")
            self._receive(layer, state.detach())

        return hook


def _miscounted(layer: int, what: str) -> CheckFailed:
    return CheckFailed(
        f"layer {layer} {what} in one forward pass, so its input cannot be captured",
        "run `ridgefit doctor` on this model",
    )
