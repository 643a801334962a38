"""Mistral: every layer slides if the config has a window."""

from __future__ import annotations

from ridgefit.models.port import LayerKind, Port


class MistralPort(Port):
    """Llama with one window for all layers, or none."""

    family = "mistral"

    def _kind(self, layer: int) -> LayerKind:
        del layer
        return "full_attention" if self.config.sliding_window is None else "sliding_attention"
