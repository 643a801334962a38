"""Qwen2 and Qwen2.5: query, key and value projections have biases; upper layers may slide."""

from __future__ import annotations

from ridgefit.models.port import Port


class Qwen2Port(Port):
    """Llama's scheme; the biases live in the projection modules, the window in `layer_types`."""

    family = "qwen2"
