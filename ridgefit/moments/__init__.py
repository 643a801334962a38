"""Streaming sufficient statistics: add rows, merge, keep on disk. Pure numerics, no model."""

from __future__ import annotations

from ridgefit.moments.bundle import BundleFile, Shape, merge_bundles, write_bundle
from ridgefit.moments.moments import Moments, merge
from ridgefit.moments.precision import Precision, Product, ieee_products, product_for, sums_device
from ridgefit.moments.rowsums import RowSums
from ridgefit.moments.tree import LEAVES, ROOT, Node, leaf, leaf_range, merges, settled, shard_leaves

__all__ = [
    "LEAVES",
    "ROOT",
    "BundleFile",
    "Moments",
    "Node",
    "Precision",
    "Product",
    "RowSums",
    "Shape",
    "ieee_products",
    "leaf",
    "leaf_range",
    "merge",
    "merge_bundles",
    "merges",
    "product_for",
    "settled",
    "shard_leaves",
    "sums_device",
    "write_bundle",
]
