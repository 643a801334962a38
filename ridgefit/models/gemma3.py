"""Gemma 3: key norm, norms around each sublayer, scaled embeddings, sliding layers with their own rotary."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn

from ridgefit.errors import BadInput
from ridgefit.models.norms import normed
from ridgefit.models.port import Rotary
from ridgefit.models.qwen3 import Qwen3Port


class Gemma3Port(Qwen3Port):
    """Qwen3's scheme; norms after the sublayers and the embedding scale are outside what a port touches."""

    family = "gemma3"

    def __init__(self, model: nn.Module, decoder: nn.Module, config: Any) -> None:
        if getattr(config, "use_bidirectional_attention", False):
            raise BadInput(
                "this Gemma 3 model attends in both directions, so it has no prompt prefix to fill",
                "use a generative Gemma 3 checkpoint",
            )
        super().__init__(model, decoder, config)

    def position_embeddings(self, layer: int, hidden: Tensor, position_ids: Tensor) -> Rotary:
        """Sliding and full layers rotate by different base frequencies."""
        rotary_emb = cast("Any", self.decoder).rotary_emb
        return cast("Rotary", rotary_emb(hidden, position_ids, self.kind(layer)))

    def _read_mlp(self, layer: int, inputs: Tensor) -> Tensor:
        return normed(self._block(layer).pre_feedforward_layernorm, inputs)
