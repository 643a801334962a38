"""Granite: multipliers on embeddings, residuals, attention and logits."""

from __future__ import annotations

from ridgefit.models.llama import LlamaPort


class GranitePort(LlamaPort):
    """Llama's scheme; every multiplier is applied outside what a layer writes to its cache."""

    family = "granite"
