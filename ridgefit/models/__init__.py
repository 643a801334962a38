"""The only room that knows transformers' modules, caches and masks: one port per model family."""

from ridgefit.models.call import layer_input
from ridgefit.models.linear import WriteMetric
from ridgefit.models.load import (
    LoadedLatent,
    LoadedModel,
    device_of,
    find_model,
    load_latent,
    load_model,
    split_revision,
)
from ridgefit.models.partcache import PartCache
from ridgefit.models.port import LayerKind, Port, Written
from ridgefit.models.registry import FAMILIES, port_of
from ridgefit.models.rowcache import RowCache
from ridgefit.models.rows import Rows
from ridgefit.models.scattered import ScatteredRows

__all__ = [
    "FAMILIES",
    "LayerKind",
    "LoadedLatent",
    "LoadedModel",
    "PartCache",
    "Port",
    "RowCache",
    "Rows",
    "ScatteredRows",
    "WriteMetric",
    "Written",
    "device_of",
    "find_model",
    "layer_input",
    "load_latent",
    "load_model",
    "port_of",
    "split_revision",
]
