"""Candidates of one capture against scikit-learn on rows, and the folders that a comparison leaves."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from sklearn.linear_model import Ridge

from ridgefit.capture import CaptureFolder, HeldRows, capture, load_capture
from ridgefit.corpus import Document, TokenStore, build_store
from ridgefit.errors import BadInput
from ridgefit.evaluate.candidates import candidate_tables
from ridgefit.features import FeatureInputs, FeatureList, SplitShape
from ridgefit.maps import Defaults, MapSet, inspect, load_maps, read_maps_manifest
from ridgefit.models import LoadedModel
from ridgefit.pipeline.candidate_list import candidates_of, default_candidates
from ridgefit.pipeline.candidates import SplitSolver
from ridgefit.pipeline.solve import solve_with
from ridgefit.recipe import CandidateSettings, CaptureSettings, SolveSettings
from ridgefit.runtime import RidgeFill

SPLIT, LATE, HIDDEN = 2, 4, 32
FEATURES = ("state", "previous-1", "mlp")
WORDS = ("the", "cat", "sat", "on", "mat", "and", "dog", "log", *"0123456789abc")
QUICK: dict[str, Any] = {
    "alphas": (0.001, 0.1),
    "probe_samples": 4,
    "probe_windows": 2,
    "probe_prompt": 400,
    "probe_tail": 100,
    "probe_strings": "words",
}


def candidate(text: str) -> CandidateSettings:
    return CandidateSettings.model_validate(text)


@pytest.fixture(scope="module")
def loaded(tiny_loaded: Callable[..., LoadedModel]) -> LoadedModel:
    return tiny_loaded("llama")


@pytest.fixture(scope="module")
def store(tiny_tokenizer: Any) -> TokenStore:
    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(40, 150))) for _ in range(20)]
    documents = [Document(text=text, domain="d", source=f"{n}") for n, text in enumerate(texts)]
    return build_store(documents, tiny_tokenizer, window=200, min_tokens=3, held_out=0.2)


@pytest.fixture(scope="module")
def captured(
    loaded: LoadedModel, store: TokenStore, tmp_path_factory: pytest.TempPathFactory
) -> CaptureFolder:
    folder = tmp_path_factory.mktemp("candidates") / "capture"
    settings = CaptureSettings(split=(SPLIT,), features=FEATURES, precision="fp64")
    capture(loaded, store, settings, folder)
    return load_capture(folder)


@pytest.fixture(scope="module")
def rows(loaded: LoadedModel, store: TokenStore) -> tuple[np.ndarray, np.ndarray]:
    """Inputs `[rows, all features]` and outputs `[rows, late, hidden]` of the fit windows, in float64."""
    features = FeatureList(FEATURES)
    inputs, outputs = [], []
    for window in store.manifest.fit_windows:
        with torch.no_grad():
            states = loaded.model(store.window(window)[None], output_hidden_states=True).hidden_states
            found = FeatureInputs(state=states[SPLIT], mlp=partial(loaded.port.mlp_activations, SPLIT))
            inputs.append(features.compute(found)[0])
        # What enters the last layer is the last state before the final norm.
        outputs.append(torch.stack([states[layer][0] for layer in range(SPLIT, SPLIT + LATE)], dim=1))
    return torch.cat(inputs).double().numpy(), torch.cat(outputs).double().numpy()


@pytest.fixture(scope="module")
def solver(loaded: LoadedModel, captured: CaptureFolder) -> SplitSolver:
    held = HeldRows.read(loaded, captured.store(), [SPLIT], rows=300, features=FeatureList(captured.features))
    settings = SolveSettings(alphas=(0.01,))
    return SplitSolver(SPLIT, captured.rows(SPLIT), FEATURES, held, loaded.port, settings)


def columns(names: tuple[str, ...]) -> list[int]:
    widths = dict(zip(FEATURES, FeatureList(FEATURES).widths(SplitShape(SPLIT, HIDDEN, 48)), strict=True))
    starts = dict(zip(FEATURES, np.cumsum([0, *widths.values()])[:-1], strict=True))
    return [int(starts[name]) + at for name in names for at in range(widths[name])]


def fitted(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's map under the mean-diagonal penalty of alpha 0.01."""
    penalty = 0.01 * ((x - x.mean(0)) ** 2).sum() / x.shape[1]
    peer = Ridge(alpha=penalty, solver="svd").fit(x, y)
    return peer.coef_, peer.intercept_


def close(found: torch.Tensor, wanted: np.ndarray) -> bool:
    """Equal but for bf16's rounding."""
    return bool(np.abs(found.double().numpy() - wanted).max() <= 0.006 * np.abs(wanted).max())


def kept_rows(maps: MapSet, x: np.ndarray) -> np.ndarray:
    """What is kept of rows for all layers."""
    x = x[:, columns(maps.features)]
    through = maps.bottleneck_weight()
    if through is None:
        return x
    return np.concatenate([x[:, :HIDDEN], x[:, HIDDEN:] @ through.double().numpy()], axis=1)


@pytest.mark.parametrize(
    ("text", "wide"),
    [
        ("plain", []),
        ("previous-1", [0, 1, 2, 3]),
        ("previous-1+mlp", [0, 1, 2, 3]),
        ("mlp+previous-1", [0, 1, 2, 3]),
        ("mlp/rank=5", [0, 1, 2, 3]),
        ("previous-1/layers=first:2", [1, 2]),
        ("previous-1+mlp/rank=7/layers=4-5/metric=values", [2, 3]),
        ("previous-1/rank=3/layers=3-3/metric=both", [1]),
        ("previous-1/rank=32/metric=input", [0, 1, 2, 3]),
    ],
)
def test_a_candidates_maps_are_those_of_a_fit_on_its_rows(
    solver: SplitSolver, rows: tuple[np.ndarray, np.ndarray], loaded: LoadedModel, text: str, wide: list[int]
) -> None:
    solved = solver.solve(candidate(text))
    maps = solver.maps(solved, Defaults())
    x, y = rows
    kept = kept_rows(maps, x)
    assert maps.features == ("state", *(name for name in text.split("/")[0].split("+") if name != "plain"))
    for at in range(LATE):
        reads = kept if at in wide or not wide else kept[:, :HIDDEN]
        weight, bias = maps.layer(SPLIT + at)
        wanted, offset = fitted(reads, y[:, at])
        assert weight.shape == (HIDDEN, reads.shape[1])
        assert close(weight, wanted), at
        scale = np.abs(offset).max() + np.abs(wanted @ reads.mean(0)).max()
        assert np.abs(bias.double().numpy() - offset).max() <= 0.02 * scale
    narrow = [] if not wide else [SPLIT + at for at in range(LATE) if at not in wide]
    assert list(maps.state_only) == narrow
    # The runtime takes them as they are.
    fill = RidgeFill.of(maps)
    with torch.no_grad(), fill.applied(loaded.model, tail=3) as report:
        loaded.model(torch.arange(3, 23)[None])
    assert report.filled == 1


@pytest.mark.parametrize("text", ["previous-1+mlp/rank=6/layers=first:2", "previous-1/layers=first:1", "mlp"])
def test_scores_are_those_of_the_maps_as_they_are_written(
    solver: SplitSolver, loaded: LoadedModel, store: TokenStore, text: str
) -> None:
    """Cosines of a candidate again, from its finished maps and rows of the held-out windows."""
    solved = solver.solve(candidate(text))
    maps = solver.maps(solved, Defaults())
    features, found = FeatureList(maps.features), {"keys": [0.0] * LATE, "values": [0.0] * LATE}
    count = 0
    held = HeldRows.read(loaded, store, [SPLIT], rows=300, features=features)
    x = held._inputs[SPLIT]
    through = maps.bottleneck_weight()
    if through is not None:
        x = torch.cat([x[:, :HIDDEN], x[:, HIDDEN:] @ through.float()], dim=1)
    count = len(x)
    for at in range(LATE):
        weight, bias = maps.layer(SPLIT + at)
        guess = x[:, : weight.shape[1]] @ weight.float().T + bias.float()
        with torch.no_grad():
            mine = loaded.port.written(SPLIT + at, guess[None])
            true = loaded.port.written(SPLIT + at, held.truth(SPLIT + at)[None])
        for name in found:
            cosines = torch.cosine_similarity(getattr(mine, name), getattr(true, name), dim=-1)
            found[name][at] = float(cosines.mean())
    assert count == solved.scored_rows
    assert solved.cosines.keys == pytest.approx(found["keys"], abs=2e-5)
    assert solved.cosines.values == pytest.approx(found["values"], abs=2e-5)


def test_macs_by_hand(solver: SplitSolver) -> None:
    plain = LATE * HIDDEN * HIDDEN
    assert solver.macs(candidate("plain")) == plain
    assert solver.macs(candidate("previous-1")) == 2 * plain
    assert solver.macs(candidate("previous-1/rank=3")) == plain + LATE * HIDDEN * 3 + HIDDEN * 3
    assert solver.macs(candidate("previous-1/rank=3/layers=first:2")) == plain + 2 * HIDDEN * 3 + HIDDEN * 3
    # the MLP feature costs its gate and up products
    assert solver.macs(candidate("mlp/rank=3")) == plain + LATE * HIDDEN * 3 + 48 * 3 + 2 * HIDDEN * 48


def test_energy_grows_with_rank_and_the_directions_are_nested(solver: SplitSolver) -> None:
    found = [solver.solve(candidate(f"previous-1/rank={rank}")) for rank in (2, 8, 32)]
    energies = [solved.energy for solved in found]
    assert energies == sorted(energies)
    assert energies[-1] == pytest.approx(1)
    few, more = (solver.maps(solved, Defaults()).bottleneck_weight() for solved in found[:2])
    assert few is not None
    assert more is not None
    assert torch.equal(few, more[:, :2])


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("previous-2", "--features state,previous-1,mlp,previous-2"),
        ("previous-1/layers=7-9", "none of the late layers 2 to 5"),
        ("previous-1/rank=33", "rank 33 is wider than the 32 inputs that previous-1"),
        ("plain/rank=3", "have no bottleneck"),
    ],
)
def test_what_cannot_be_solved_is_said(solver: SplitSolver, text: str, match: str) -> None:
    with pytest.raises(BadInput, match=match):
        solver.solve(candidate(text))


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("plain", "plain"),
        ("state", "plain"),
        ("previous-1", "previous-1"),
        ("state+previous-1/rank=8", "previous-1_r8"),
        ("previous-1+mlp/rank=8/layers=first:5/metric=both", "previous-1+mlp_r8_both_first5"),
        ("mlp/name=mine/layers=16-20", "mine"),
    ],
)
def test_candidates_have_names(text: str, label: str) -> None:
    assert candidate(text).label == label
    assert CandidateSettings.model_validate(candidate(text).model_dump()).label == label


@pytest.mark.parametrize(
    "text", ["a/rank", "a/rank=0", "a/rank=1/rank=2", "a/layers=some", "a+a", "a/name=../b", "a/name=plain"]
)
def test_candidates_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        candidate(text)


def test_the_default_list_grows_by_feature_and_leaves_controls_out() -> None:
    names = [
        item.label for item in default_candidates(["state", "previous-1", "control-random", "mlp"], 576, 15)
    ]
    assert names == [
        f"{features}{rest}"
        for features in ("previous-1", "previous-1+mlp")
        for rest in ("", "_r32", "_r64", "_r32_first5")
    ]
    with pytest.raises(BadInput, match="nothing to choose among"):
        candidates_of(SolveSettings(features=("auto",)), ["state"], 576, 15)


def solved(loaded: LoadedModel, captured: CaptureFolder, out: Path, **settings: Any) -> Any:
    return solve_with(loaded, captured, SolveSettings(**{**QUICK, **settings}), out)


def test_a_part_of_what_was_captured_can_be_solved_alone(
    loaded: LoadedModel, captured: CaptureFolder, store: TokenStore, tmp_path: Path
) -> None:
    """Plain maps from a capture of more are those of a capture of the state."""
    capture(loaded, store, CaptureSettings(split=(SPLIT,), precision="fp64"), tmp_path / "state")
    solved(loaded, captured, tmp_path / "part", features=("state",))
    solved(loaded, load_capture(tmp_path / "state"), tmp_path / "whole")
    part, whole = (load_maps(tmp_path / name) for name in ("part", "whole"))
    assert part.features == whole.features == ("state",)
    for layer in part.layers:
        torch.testing.assert_close(part.layer(layer).weight, whole.layer(layer).weight, rtol=0.01, atol=1e-5)
    record = read_maps_manifest(tmp_path / "whole").splits[SPLIT]
    assert isinstance(record.scores, dict)
    assert "frontier" not in record.scores
    assert "candidates" not in read_maps_manifest(tmp_path / "whole").provenance["solve"]


def test_maps_asked_for_are_written_whatever_the_candidates(
    loaded: LoadedModel, captured: CaptureFolder, tmp_path: Path
) -> None:
    out = tmp_path / "maps"
    report = solved(
        loaded,
        captured,
        out,
        features=("state", "mlp"),
        rank=4,
        layers="first:1",
        candidates=("previous-1",),
        keep_candidates=True,
    )
    frontier = report.splits[0].frontier
    assert [item.name for item in frontier.candidates] == ["plain", "previous-1", "mlp_r4_first1"]
    assert (frontier.chosen, frontier.reason, frontier.rule) == ("mlp_r4_first1", "asked for", None)
    assert sorted(path.name for path in (out / "candidates").iterdir()) == sorted(
        item.name for item in frontier.candidates
    )
    chosen = load_maps(out)
    assert (chosen.features, chosen.in_width, chosen.state_only) == (("state", "mlp"), 36, (2, 4, 5))
    same = load_maps(out / "candidates" / "mlp_r4_first1")
    for layer in chosen.layers:
        assert torch.equal(chosen.layer(layer).weight, same.layer(layer).weight)
    stored = read_maps_manifest(out).splits[SPLIT].scores
    assert isinstance(stored, dict)
    assert stored["frontier"] == json.loads(frontier.model_dump_json())
    shown = inspect(out)["splits"][SPLIT]["scores"]["frontier"]
    assert shown["chosen"] == "mlp_r4_first1"
    (table,) = candidate_tables(out)
    assert [row[0] for row in table.grid.rows][2] == "mlp_r4_first1 *"


def test_auto_keeps_plain_maps_on_a_model_that_does_not_copy(
    loaded: LoadedModel, captured: CaptureFolder, tmp_path: Path
) -> None:
    out = tmp_path / "maps"
    report = solved(loaded, captured, out, features="auto", candidates=("previous-1/rank=4",))
    frontier = report.splits[0].frontier
    assert frontier.chosen == "plain"
    assert "too few to choose by" in frontier.reason
    assert frontier.rule is not None
    assert load_maps(out).features == ("state",)
    assert not (out / "candidates").exists()


def test_nothing_is_left_of_a_solve_that_fails(
    loaded: LoadedModel, captured: CaptureFolder, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match="capture holds no feature"):
        solved(loaded, captured, tmp_path / "maps", features=("state", "previous-3"))
    with pytest.raises(BadInput, match="capture holds no feature"):
        solved(loaded, captured, tmp_path / "maps", candidates=("previous-3",), keep_candidates=True)
    assert list(tmp_path.iterdir()) == []


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValidationError, match="belong to the candidates"):
        SolveSettings(features=("auto",), rank=3)
    with pytest.raises(ValidationError, match="two candidates"):
        SolveSettings(candidates=("mlp", "mlp/layers=all"))
