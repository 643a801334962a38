"""Llama, and SmolLM2: the scheme of the base port as it stands."""

from __future__ import annotations

from ridgefit.models.port import LayerKind, Port


class LlamaPort(Port):
    """Separate projections without biases, pre-norm, full attention everywhere."""

    family = "llama"

    def _kind(self, layer: int) -> LayerKind:
        del layer
        return "full_attention"
