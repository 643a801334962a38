"""Names of what a map reads: one registry, parsed once, refused by name."""

from __future__ import annotations

import pytest
import torch

from ridgefit.errors import BadInput
from ridgefit.features import FEATURES, FeatureInputs, FeatureList, SplitShape
from ridgefit.maps import READABLE_FEATURES, feature_versions, parse_feature

SHAPE = SplitShape(split=3, hidden=4, mlp=6)


def test_state_is_the_state_itself() -> None:
    state = torch.randn(2, 3, 4)
    features = FeatureList(["state"])
    assert features.compute(FeatureInputs(state)) is state
    assert (features.names, features.width(SHAPE), features.macs(SHAPE)) == (("state",), 4, 0)
    assert features.versions == {"state": 1}


def test_order_is_the_users_own() -> None:
    one, other = FeatureList(["state", "previous-2", "mlp"]), FeatureList(["state", "mlp", "previous-2"])
    assert one != other
    assert one == FeatureList(["state", "previous-2", "mlp"])
    assert len({one, other, FeatureList(other.names)}) == 2
    assert list(one.versions) == ["state", "previous-2", "mlp"]


@pytest.mark.parametrize(
    ("names", "match"),
    [
        ([], "begin with state"),
        (["state", "state"], "name each feature once"),
        (["mlp", "state"], "begin with state"),
        (["sate"], "did you mean 'state'"),
        (["state", "previous"], "did you mean 'previous-1'"),
        (["state", "previous-0"], "no feature 'previous-0'"),
        (["state", "previous-01"], "no feature 'previous-01'"),
        (["state", "mlp-2"], "no feature 'mlp-2'"),
        (["state", "previous-100000"], "no feature"),
        (["state", "averag-8"], "did you mean 'average-8'"),
    ],
)
def test_bad_names_are_refused(names: list[str], match: str) -> None:
    with pytest.raises(BadInput, match=match):
        FeatureList(names)


def test_files_and_code_know_the_same_features_in_the_same_version() -> None:
    assert set(FEATURES) == set(READABLE_FEATURES)
    for base, kind in FEATURES.items():
        known = READABLE_FEATURES[base]
        name = parse_feature(known.example)
        assert (kind.base, kind.version, name.base) == (base, known.version, base)
        assert kind(name.number).name == known.example
        assert feature_versions([known.example]) == {known.example: kind.version}
