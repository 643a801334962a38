"""A layer's gated MLP, apart from its attention: what a map may read of the split layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from torch import Tensor, nn

from ridgefit.models.norms import normed


class GatedMlp:
    """The Llama scheme: down(act(gate(x)) * up(x)) of a normed input; part of `Port`.

    Attributes:
        layers: decoder layers in order.
    """

    layers: Sequence[nn.Module]

    # What differs between families

    def _read_mlp(self, layer: int, inputs: Tensor) -> Tensor:
        """What the MLP of `layer` would read if its attention added nothing to the layer's input."""
        block: Any = self.layers[layer]
        return normed(block.post_attention_layernorm, inputs)

    def _gate_and_up(self, layer: int, read: Tensor) -> tuple[Tensor, Tensor]:
        """Products of the gate, before its activation, and of the up projection."""
        mlp = self._mlp(layer)
        return mlp.gate_proj(read), mlp.up_proj(read)

    def _activate(self, layer: int, gate: Tensor) -> Tensor:
        """The MLP's activation function."""
        return cast("Tensor", self._mlp(layer).act_fn(gate))

    # What all families share

    def mlp_width(self, layer: int) -> int | None:
        """Inner width of the gated MLP of `layer`; None where it has no single one (experts)."""
        down = getattr(self._mlp(layer), "down_proj", None)
        return None if down is None else int(down.in_features)

    def mlp_activations(self, layer: int, inputs: Tensor) -> Tensor:
        """Activations of the MLP of `layer`, up times activated gate, as if its attention added nothing.

        Args:
            layer: layer number, one whose `mlp_width` is known.
            inputs: `[…, rows, hidden]` entering the layer.

        Returns:
            `[…, rows, mlp_width]`, what the down projection would read.
        """
        gate, up = self._gate_and_up(layer, self._read_mlp(layer, inputs))
        return self._activate(layer, gate) * up

    def _mlp(self, layer: int) -> Any:
        return getattr(self.layers[layer], "mlp", None)
