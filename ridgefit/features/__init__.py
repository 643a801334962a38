"""What a map reads from the exact lower layers: one file per feature, found by name."""

from ridgefit.features.feature import FEATURES, Feature, FeatureList

__all__ = ["FEATURES", "Feature", "FeatureList"]
