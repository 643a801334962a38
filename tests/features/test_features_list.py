"""The seam for what a map reads."""

from __future__ import annotations

import pytest
import torch

from ridgefit.errors import BadInput
from ridgefit.features import FEATURES, FeatureList


def test_state_is_the_state_itself() -> None:
    state = torch.randn(2, 3, 4)
    features = FeatureList(["state"])
    assert features.compute(state, torch.ones(2, 3, dtype=torch.bool)) is state
    assert (features.names, features.width(4), features.macs(4)) == (("state",), 4, 0)
    assert features.versions == {"state": 1}


def test_features_stand_side_by_side_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    class Twice:
        name, version = "twice", 3

        def width(self, hidden: int) -> int:
            return 2 * hidden

        def macs(self, hidden: int) -> int:
            return hidden

        def compute(self, state: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
            return torch.cat([state, state * valid[..., None]], dim=-1)

    monkeypatch.setitem(FEATURES, "twice", Twice())
    features = FeatureList(["twice", "state"])
    state, valid = torch.randn(1, 2, 3), torch.tensor([[False, True]])
    found = features.compute(state, valid)
    assert found.shape == (1, 2, features.width(3))
    assert torch.equal(found[..., :3], found[..., 6:])
    assert found[0, 0, 3:6].eq(0).all()
    assert (features.macs(3), features.versions) == (3, {"twice": 3, "state": 1})
    assert features == FeatureList(["twice", "state"]) != FeatureList(["state", "twice"])
    assert len({features, FeatureList(["twice", "state"])}) == 1


@pytest.mark.parametrize(
    ("names", "match"),
    [([], "at least one"), (["state", "state"], "once"), (["sate"], "did you mean 'state'")],
)
def test_bad_names_are_refused(names: list[str], match: str) -> None:
    with pytest.raises(BadInput, match=match):
        FeatureList(names)


def test_registry_names_are_the_features_own() -> None:
    assert all(name == feature.name for name, feature in FEATURES.items())
