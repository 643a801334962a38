"""What a map reads from the exact lower layers: one file per feature, found by name."""

from ridgefit.features.feature import Feature
from ridgefit.features.feature_list import FEATURES, FeatureList
from ridgefit.features.inputs import FeatureCarry, FeatureInputs, SplitShape

__all__ = ["FEATURES", "Feature", "FeatureCarry", "FeatureInputs", "FeatureList", "SplitShape"]
