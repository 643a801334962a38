"""SmolLM3: some layers have no rotary."""

from __future__ import annotations

from ridgefit.models.port import Port


class SmolLM3Port(Port):
    """Llama's scheme; a layer's attention module says whether it rotates."""

    family = "smollm3"
    needs = (*Port.needs, "self_attn.use_rope")

    def _rotates(self, layer: int) -> bool:
        return bool(self._attention(layer).use_rope)
