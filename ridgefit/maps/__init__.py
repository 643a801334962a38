"""Map files: written byte for byte, read with suspicion, bound to the model they were fitted on."""

from __future__ import annotations

from ridgefit.maps.check import FileCheck, inspect, verify_files
from ridgefit.maps.fingerprint import Fingerprint
from ridgefit.maps.folder import MapsManifest, MapsWriter, SplitMaps, SplitRecord, write_maps
from ridgefit.maps.folder import read_manifest as read_maps_manifest
from ridgefit.maps.format1 import read_format1
from ridgefit.maps.format1_write import Credit, Format1Report, Format1Settings, write_format1
from ridgefit.maps.frequencies import FREQUENCIES, Frequencies
from ridgefit.maps.int8 import dequantize, error_in_steps, quantize_int8
from ridgefit.maps.load import kind_of, load_maps
from ridgefit.maps.mapset import Defaults, Int8Planes, LayerMap, MapSet
from ridgefit.maps.names import READABLE_FEATURES, feature_versions, parse_feature, reads_text
from ridgefit.maps.quantize import QuantizeReport, quantize
from ridgefit.maps.source import read_source, write_source
from ridgefit.maps.tensorfile import TensorFile
from ridgefit.maps.tensorwrite import TensorSpec, header_bytes, write_tensors
from ridgefit.maps.widths import Bottleneck

__all__ = [
    "FREQUENCIES",
    "READABLE_FEATURES",
    "Bottleneck",
    "Credit",
    "Defaults",
    "FileCheck",
    "Fingerprint",
    "Format1Report",
    "Format1Settings",
    "Frequencies",
    "Int8Planes",
    "LayerMap",
    "MapSet",
    "MapsManifest",
    "MapsWriter",
    "QuantizeReport",
    "SplitMaps",
    "SplitRecord",
    "TensorFile",
    "TensorSpec",
    "dequantize",
    "error_in_steps",
    "feature_versions",
    "header_bytes",
    "inspect",
    "kind_of",
    "load_maps",
    "parse_feature",
    "quantize",
    "quantize_int8",
    "read_format1",
    "read_maps_manifest",
    "read_source",
    "reads_text",
    "verify_files",
    "write_format1",
    "write_maps",
    "write_source",
    "write_tensors",
]
