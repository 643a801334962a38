"""Which port serves which model, and where a model keeps its text decoder."""

from __future__ import annotations

from typing import Any

from torch import nn

from ridgefit.errors import BadInput
from ridgefit.models.gemma3 import Gemma3Port
from ridgefit.models.granite import GranitePort
from ridgefit.models.latent import LATENT_FAMILIES
from ridgefit.models.llama import LlamaPort
from ridgefit.models.mistral import MistralPort
from ridgefit.models.olmo2 import Olmo2Port
from ridgefit.models.phi3 import Phi3Port
from ridgefit.models.port import Port
from ridgefit.models.qwen2 import Qwen2Port
from ridgefit.models.qwen3 import Qwen3Port
from ridgefit.models.qwen3_moe import Qwen3MoePort
from ridgefit.models.smollm3 import SmolLM3Port

# transformers' `model_type` of the text config -> port
FAMILIES: dict[str, type[Port]] = {
    "llama": LlamaPort,
    "mistral": MistralPort,
    "qwen2": Qwen2Port,
    "qwen3": Qwen3Port,
    "smollm3": SmolLM3Port,
    "gemma3_text": Gemma3Port,
    "olmo2": Olmo2Port,
    "phi3": Phi3Port,
    "granite": GranitePort,
    "qwen3_moe": Qwen3MoePort,
}


def port_of(model: nn.Module) -> Port:
    """The port of a loaded model; finds the text decoder of a multimodal or wrapped one by itself.

    Raises:
        BadInput: the family is unknown, or the model lacks what its port calls.
    """
    for module in model.modules():
        config = getattr(module, "config", None)
        port = FAMILIES.get(getattr(config, "model_type", ""))
        if port is not None and _is_decoder(module):
            return port(model, module, config)
    raise _unknown(getattr(model, "config", None))


def require_family(config: Any) -> None:
    """Refuse a config whose family has no port, before any weight is read.

    Raises:
        BadInput: what is missing and how to add it.
    """
    if getattr(config.get_text_config(decoder=True), "model_type", "") not in FAMILIES:
        raise _unknown(config)


def _is_decoder(module: nn.Module) -> bool:
    return isinstance(getattr(module, "layers", None), nn.ModuleList) and hasattr(module, "rotary_emb")


def _unknown(config: Any) -> BadInput:
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    name = getattr(text, "model_type", "") or "without a model_type"
    if name in LATENT_FAMILIES:
        return BadInput(
            f"models of the family {name!r} keep a latent cache, whose late layers no map fills",
            "`ridgefit calibrate recall` makes recall policies for them",
        )
    return BadInput(
        f"no port says what a layer of the model family {name!r} writes to its cache "
        f"(known: {', '.join(sorted(FAMILIES))})",
        f"add ridgefit/models/{name}.py with a subclass of Port, one row in ridgefit/models/registry.py "
        "and one row in tests/tiny_models.py",
    )
