"""Every feature against a loop over rows in float64; padding, parts of a prompt, and what may not be seen."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ridgefit.errors import BadInput
from ridgefit.features import FEATURES, FeatureCarry, FeatureInputs, FeatureList, SplitShape

HIDDEN, MLP = 5, 7
SHAPE = SplitShape(split=4, hidden=HIDDEN, mlp=MLP)
WEIGHT = torch.randn(HIDDEN, MLP, generator=torch.Generator().manual_seed(9))
NAMES = [
    "state",
    "previous-1",
    "previous-3",
    "mlp",
    "lower-1",
    "lower-4",
    "average-1",
    "average-8",
    "control-next-1",
    "control-next-4",
    "control-random",
]
CAUSAL = [name for name in NAMES if not name.startswith("control")]


def fake_mlp(state: torch.Tensor) -> torch.Tensor:
    return torch.tanh(state[..., None].double() * WEIGHT.double()).sum(-2).to(state.dtype)


def by_rows(name: str, states: np.ndarray, lower: np.ndarray) -> list[np.ndarray]:
    """One sample's values, row by row: states `[rows, hidden]`."""
    base, _, tail = name.rpartition("-")
    number = int(tail) if tail.isdigit() else 0
    rows = range(len(states))
    if name == "state":
        return [states[t] for t in rows]
    if base == "previous":
        return [states[max(t - number, 0)] for t in rows]
    if base == "control-next":
        return [states[min(t + number, len(states) - 1)] for t in rows]
    if base == "lower":
        return [lower[t] * number for t in rows]
    if base == "average":
        weights = [[0.5 ** ((t - s) / number) for s in range(t + 1)] for t in rows]
        return [np.average(states[: t + 1], axis=0, weights=weights[t]) for t in rows]
    if name == "mlp":
        return list(fake_mlp(torch.from_numpy(states)).numpy())
    raise ValueError(name)


def sample(rows: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    state, lower = torch.randn(2, rows, HIDDEN, generator=torch.Generator().manual_seed(seed))
    return state, lower


def inputs_of(state: torch.Tensor, lower: torch.Tensor, valid: torch.Tensor | None) -> FeatureInputs:
    return FeatureInputs(state, valid, {1: lower, 4: 4 * lower}, fake_mlp)


def padded(lengths: list[int], *, left: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """States, lower states and validity of samples in one batch; padding holds large numbers."""
    total = max(lengths)
    state, lower = torch.full((2, len(lengths), total, HIDDEN), 1e6)
    valid = torch.zeros(len(lengths), total, dtype=torch.bool)
    for at, length in enumerate(lengths):
        place = slice(total - length, total) if left else slice(0, length)
        state[at, place], lower[at, place] = sample(length, seed=at)
        valid[at, place] = True
    return state, lower, valid


def columns_of(name: str, found: torch.Tensor) -> torch.Tensor:
    """A feature's columns out of `[…, state and feature]`."""
    return found if name == "state" else found[..., HIDDEN:]


def with_state(name: str) -> FeatureList:
    return FeatureList(["state"] if name == "state" else ["state", name])


@pytest.mark.parametrize("name", [n for n in NAMES if n != "control-random"])
@pytest.mark.parametrize("rows", [1, 2, 3, 40])
def test_values_are_those_of_a_loop(name: str, rows: int) -> None:
    state, lower = sample(rows)
    features = with_state(name)
    found = features.compute(inputs_of(state[None], lower[None], None))
    assert found.shape == (1, rows, features.width(SHAPE))
    wanted = by_rows(name, state.double().numpy(), lower.double().numpy())
    np.testing.assert_allclose(columns_of(name, found)[0].double(), np.stack(wanted), rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_padding_changes_no_bit(name: str, left: bool, dtype: torch.dtype) -> None:
    lengths = [9, 30, 1, 30]
    state, lower, valid = (
        part.to(dtype) if part.is_floating_point() else part for part in padded(lengths, left=left)
    )
    features = with_state(name)
    found = features.compute(inputs_of(state, lower, valid))
    assert found.dtype == dtype
    for at, length in enumerate(lengths):
        own, below = (part.to(dtype) for part in sample(length, seed=at))
        alone = features.compute(inputs_of(own[None], below[None], None))[0]
        assert torch.equal(found[at][valid[at]], alone)


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("cuts", [[1, 2, 3], [13], [5, 6, 28, 29], [29]])
def test_parts_of_a_prompt_give_what_the_whole_gives(name: str, cuts: list[int]) -> None:
    """With left padding that ends within a part, between parts, or fills parts whole."""
    state, lower, valid = padded([9, 30, 1, 17], left=True)
    features = with_state(name)
    for mask in (valid, None):
        whole = features.compute(inputs_of(state, lower, mask))
        carry, parts = FeatureCarry(), []
        for start, stop in zip([0, *cuts], [*cuts, 30], strict=True):
            part = slice(start, stop)
            inside = None if mask is None else mask[:, part]
            parts.append(features.compute(inputs_of(state[:, part], lower[:, part], inside), carry))
        joined = torch.cat(parts, dim=1)
        real = torch.ones_like(valid) if mask is None else mask
        if name.startswith("average"):
            torch.testing.assert_close(joined[real], whole[real], rtol=1e-6, atol=2e-6)
        else:
            assert torch.equal(joined[real], whole[real])


@pytest.mark.parametrize("name", NAMES)
def test_a_row_sees_nothing_after_it_but_in_controls(name: str) -> None:
    state, lower = sample(20)
    features = with_state(name)
    changed, below = state.clone(), lower.clone()
    changed[12:] += 100
    below[12:] += 100
    before = features.compute(inputs_of(state[None], lower[None], None))[0, :12]
    after = features.compute(inputs_of(changed[None], below[None], None))[0, :12]
    seen = 12 - features.ahead
    assert torch.equal(before[:seen], after[:seen])
    assert torch.equal(before, after) == (not name.startswith("control-next"))


def test_random_control_reads_earlier_rows_of_the_same_sample() -> None:
    state = torch.arange(4000.0)[None, :, None].expand(1, -1, HIDDEN)
    found = FeatureList(["state", "control-random"]).compute(FeatureInputs(state))[0, :, HIDDEN]
    row = torch.arange(4000)
    read = found.long()
    assert bool((read[1:] < row[1:]).all())
    share = (read[100:].double() / row[100:]).numpy()
    np.testing.assert_allclose(np.quantile(share, [0.1, 0.5, 0.9]), [0.1, 0.5, 0.9], atol=0.03)
    assert abs(np.corrcoef(share[1:], share[:-1])[0, 1]) < 0.05
    assert int((row - read)[100:].eq(1).sum()) < 40  # hardly ever the previous row


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith("control")])
def test_controls_are_refused_in_parts(name: str) -> None:
    features = FeatureList(["state", name])
    assert features.controls == (name,)
    with pytest.raises(BadInput, match=f"{name} is a control"):
        features.compute(inputs_of(*(part[None] for part in sample(4)), None), FeatureCarry())


def test_several_features_share_one_carry() -> None:
    state, lower, valid = padded([3, 11], left=True)
    features = FeatureList(["state", "previous-2", "average-2", "previous-1", "mlp"])
    whole = features.compute(inputs_of(state, lower, valid))
    carry = FeatureCarry()
    parts = [
        features.compute(inputs_of(state[:, t : t + 1], lower, valid[:, t : t + 1]), carry) for t in range(11)
    ]
    torch.testing.assert_close(torch.cat(parts, 1)[valid], whole[valid], rtol=1e-6, atol=1e-6)
    assert carry.rows is not None
    assert carry.rows.tolist() == [3, 11]


def test_registered_names_have_a_width_a_cost_and_a_test() -> None:
    assert {name.rstrip("-0123456789") for name in NAMES} == set(FEATURES)
    found = FeatureList(["state", "previous-2", "mlp", "lower-3", "average-8"])
    assert found.widths(SHAPE) == (HIDDEN, HIDDEN, MLP, HIDDEN, HIDDEN)
    assert found.macs(SHAPE) == 2 * HIDDEN * MLP + 8 * HIDDEN
    assert (found.lower, found.ahead, found.controls) == ((3,), 0, ())


@pytest.mark.parametrize(
    ("shape", "name", "words"),
    [
        (SplitShape(4, HIDDEN, None), "mlp", "layer 4 has no single gated MLP"),
        (SplitShape(2, HIDDEN, MLP), "lower-3", "lower-3 lies below the first layer when the split is 2"),
    ],
)
def test_features_that_a_model_lacks(shape: SplitShape, name: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        FeatureList(["state", name]).width(shape)
