"""From records to a result, its tables and its page; numbers checked against hand-made records."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy import stats

from ridgefit.cli.app import main
from ridgefit.errors import BadInput, CheckFailed
from ridgefit.evaluate.intervals import binomial_floor
from ridgefit.evaluate.page import report
from ridgefit.evaluate.result import EVALUATION, ArmDescription, EvalResult, load_result
from ridgefit.evaluate.samples import Measure, Sample
from ridgefit.evaluate.summary import TaskRun, summarise_task, warnings_of
from ridgefit.evaluate.tables import grids, interval_cell, markdown, render
from ridgefit.files import write_json
from ridgefit.maps import LayerMap, MapSet, SplitMaps, write_maps

LOSS = Measure("novel_nll", "NLL, novel tokens", "nats", "lower")
KEY = Measure("key_nll", "NLL, key tokens", "nats", "lower")
STRICT = Measure("strict", "needles found", "share", "higher", binary=True)


def arm(kind: str, label: str | None = None, split: int | None = 6, **more: object) -> SimpleNamespace:
    plain = {"maps": None, "fill": None if kind == "exact" else kind}
    refined = {"rows": (), "selectors": (), "corrections": None, "splice": None}
    settings = {"tail": None, "sink_rows": 0, **plain, **refined, **more}
    return SimpleNamespace(
        kind=kind, label=label or kind, split=None if kind == "exact" else split, **settings
    )


ARMS = (arm("exact"), arm("none"), arm("identity"), arm("ridge"), arm("pop", split=8, tail=1))
Records = dict[tuple[str, str], dict]


def made(
    name: str, measures: tuple[Measure, ...], score: Callable[[str, int], dict], n: int = 20
) -> tuple[TaskRun, Records]:
    empty = torch.zeros(0, dtype=torch.long)
    samples = tuple(
        Sample(f"document {i:05d}", "code" if i % 3 else "prose", torch.tensor([i]), empty) for i in range(n)
    )
    records = {
        (sample.id, a.label): {"session": 0, "scores": score(a.label, i), "counts": {"novel_tokens": 2}}
        for i, sample in enumerate(samples)
        for a in ARMS
    }
    skipped = (("document 00099", "12 tokens, 40 needed"),)
    return TaskRun(name, "sha", {"task": name.split()[0]}, measures, samples, skipped), records


ADDED = {"exact": 0.0, "none": 0.7, "identity": 0.4, "ridge": 0.1, "pop": 0.3}
FOUND = {"exact": 1.0, "none": 0.0, "identity": 0.1, "ridge": 1.0, "pop": 0.4}


def losses(label: str, i: int) -> dict:
    rng = random.Random(f"{label} {i}")
    base = 2 + 0.1 * i
    return {
        "novel_nll": base + ADDED[label] * rng.uniform(0.5, 1.5),
        "key_nll": base + ADDED[label] * rng.uniform(0.5, 1.5) if i % 4 == 0 else None,
    }


def retrieval(label: str, i: int) -> dict:
    return {"strict": float(random.Random(f"{label} {i}").random() < FOUND[label])}


def summarised(name: str, measures: tuple[Measure, ...], score: Callable[[str, int], dict], n: int = 20):
    run, records = made(name, measures, score, n)
    return summarise_task(run, ARMS, records, resamples=1000, seed=0), records


@pytest.fixture
def result() -> EvalResult:
    tasks = (
        summarised("nll 1024/256", (LOSS, KEY), losses)[0],
        summarised("needle 1024/256", (STRICT,), retrieval)[0],
    )
    return EvalResult(
        identity={
            "model": {"name": "tiny", "revision": None, "family": "llama", "n_layers": 12, "hidden": 256},
            "maps": {"s6.safetensors": "ab" * 32},
            "dtype": "float32",
            "device": "cpu",
            "attention": "sdpa",
            "versions": {"torch": "2", "transformers": "5", "ridgefit": "0", "python": "3"},
            "settings": {"fraction": 1.0, "seed": 0, "resamples": 1000},
        },
        arms=tuple(
            ArmDescription(label=a.label, kind=a.kind, split=a.split, tail=a.tail, sink_rows=a.sink_rows)
            for a in ARMS
        ),
        tasks=tasks,
        warnings=tuple(warnings_of(tasks, "exact")),
    )


def test_means_and_differences_are_those_of_the_records() -> None:
    task, records = summarised("nll", (LOSS, KEY), losses)
    for label in ADDED:
        rows = [records[f"document {i:05d}", label]["scores"] for i in range(20)]
        exact = [records[f"document {i:05d}", "exact"]["scores"] for i in range(20)]
        for name, n in (("novel_nll", 20), ("key_nll", 5)):
            score = task.measure(name).arm(label)
            mine = [row[name] for row in rows if row[name] is not None]
            assert (score.n, score.mean) == (n, pytest.approx(np.mean(mine)))
            if label == "exact":
                assert score.difference is None and score.bound is None
            else:
                pairs = [r[name] - e[name] for r, e in zip(rows, exact, strict=True) if r[name] is not None]
                assert score.difference.mean == pytest.approx(np.mean(pairs))
                assert score.difference.low <= score.difference.mean <= score.bound <= score.difference.high


def test_intervals_resample_within_groups() -> None:
    """Scipy with one array per domain is the oracle; a shift of one domain must not widen the interval."""

    def shifted(label: str, i: int) -> dict:
        noise = random.Random(f"{label} {i}").gauss(0, 1)
        return {"novel_nll": 0.0 if label == "exact" else noise + (50.0 if i % 3 else 0.0)}

    task, records = summarised("nll", (LOSS,), shifted, n=30)
    values = [records[f"document {i:05d}", "ridge"]["scores"]["novel_nll"] for i in range(30)]
    parts = [np.array([v for i, v in enumerate(values) if bool(i % 3) == which]) for which in (False, True)]

    def mean(*groups: np.ndarray, axis: int) -> np.ndarray:
        return sum(len(p) / 30 * g.mean(axis=axis) for p, g in zip(parts, groups, strict=True))

    oracle = stats.bootstrap(parts, mean, n_resamples=20000, method="BCa", rng=1).confidence_interval
    width = oracle.high - oracle.low
    found = task.measure("novel_nll").arm("ridge").difference
    assert (found.low, found.high) == (
        pytest.approx(oracle.low, abs=0.12 * width),
        pytest.approx(oracle.high, abs=0.12 * width),
    )


def test_the_bound_of_a_flawless_arm_is_the_floor() -> None:
    task, _ = summarised("needle", (STRICT,), retrieval, n=216)
    ridge = task.measure("strict").arm("ridge")
    assert ridge.difference.low == ridge.difference.high == 0
    assert round(100 * ridge.bound, 2) == -1.38
    assert ridge.floor == binomial_floor(216)
    none = task.measure("strict").arm("none")
    assert none.difference.mean == none.bound == -1.0
    assert none.wilson[0] == 0.0


def test_equal_differences_are_no_proof() -> None:
    """Digits all right in both arms: the bound is the floor; equal losses give no bound at all."""
    digits = Measure("digits", "digits right", "share", "higher")
    task, _ = summarised("needle", (digits, LOSS), lambda a, i: {"digits": 1.0, "novel_nll": 2.0})
    share, loss = task.measure("digits").arm("ridge"), task.measure("novel_nll").arm("ridge")
    assert share.bound == -binomial_floor(20)
    assert loss.difference.low == loss.difference.high == 0
    assert loss.bound is None


def test_few_samples_are_named() -> None:
    task, _ = summarised("nll", (LOSS, KEY), losses)
    lines = list(warnings_of([task], "exact"))
    assert any("NLL, key tokens rests on 5 of 20 samples" in line for line in lines)
    assert not any("novel tokens rests" in line for line in lines)


def test_contrasts_pair_the_same_rows_and_pop() -> None:
    task, records = summarised("nll", (LOSS,), losses)
    contrasts = {(c.arm, c.against): c for c in task.measure("novel_nll").contrasts}
    assert set(contrasts) == {("ridge", "identity"), ("ridge", "none"), ("ridge", "pop")}
    pairs = [
        records[f"document {i:05d}", "ridge"]["scores"]["novel_nll"]
        - records[f"document {i:05d}", "identity"]["scores"]["novel_nll"]
        for i in range(20)
    ]
    assert contrasts["ridge", "identity"].difference.mean == pytest.approx(np.mean(pairs))


def test_arms_of_different_rows_are_not_contrasted() -> None:
    from ridgefit.evaluate.summary import contrasted

    arms = [arm("exact"), arm("ridge", sink_rows=4), arm("identity"), arm("identity", "id 4", sink_rows=4)]
    pairs = [("ridge", "id 4"), ("id 4", "identity")]  # the last is what four sink rows are worth
    assert [(a.label, b.label) for a, b in contrasted(arms)] == pairs


def test_two_processes_in_one_sample_are_refused() -> None:
    run, records = made("nll", (LOSS,), losses)
    records["document 00003", "ridge"]["session"] = 1
    with pytest.raises(CheckFailed, match="document 00003"):
        summarise_task(run, ARMS, records, resamples=100, seed=0)


def test_a_weak_exact_model_is_named() -> None:
    def weak(label: str, i: int) -> dict:
        return {"strict": float(i == 0)}

    task, _ = summarised("needle 1024/256", (STRICT,), weak)
    assert any("finds only 5 % of the needles" in line for line in warnings_of([task], "exact"))
    strong, _ = summarised("needle 1024/256", (STRICT,), retrieval)
    assert not any("finds only" in line for line in warnings_of([strong], "exact"))


def test_a_measure_nobody_scores_is_absent() -> None:
    task, _ = summarised("nll", (LOSS, KEY), lambda a, i: {**losses(a, i), "key_nll": None})
    assert task.measure("key_nll") is None
    assert task.measure("novel_nll") is not None


def test_result_survives_its_file(result: EvalResult, tmp_path: Path) -> None:
    write_json(tmp_path / EVALUATION, result.model_dump(mode="json"))
    assert load_result(tmp_path) == result


def test_unfinished_and_damaged_results_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no finished evaluation"):
        report(tmp_path)
    (tmp_path / EVALUATION).write_text('{"format": "ridgefit-evaluation-1"}')
    with pytest.raises(BadInput, match="identity: Field required"):
        report(tmp_path)


def test_terminal_tables_show_every_arm_and_difference(result: EvalResult) -> None:
    console = Console(width=140, record=True, file=io.StringIO())
    for table in render(result):
        console.print(table)
    text = console.export_text()
    for label in ADDED:
        assert label in text
    ridge = result.tasks[0].measure("novel_nll").arm("ridge")
    assert f"{ridge.mean:.3f}" in text
    assert f"+{ridge.difference.mean:.3f} [+{ridge.difference.low:.3f}, +{ridge.difference.high:.3f}]" in text
    assert "ridge − identity" in text


def test_inspect_shows_the_tables_again(
    result: EvalResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_json(tmp_path / EVALUATION, result.model_dump(mode="json"))
    assert main(["inspect", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert all(label in shown for label in ADDED)
    assert main(["inspect", str(tmp_path), "--json"]) == 0
    assert EvalResult.model_validate_json(capsys.readouterr().out) == result


def test_cells_have_units_and_signs(result: EvalResult) -> None:
    strict = result.tasks[1].measure("strict")
    assert interval_cell(strict, strict.arm("none").difference) == "−100.0 [−100.0, −100.0]"
    assert interval_cell(strict, strict.arm("ridge").difference) == "0.0 [0.0, 0.0]"
    assert markdown(grids(result)[0]).count("\n") == 1 + len(ADDED)


def test_the_page_says_what_the_intervals_allow(result: EvalResult, tmp_path: Path) -> None:
    write_json(tmp_path / EVALUATION, result.model_dump(mode="json"))
    text = report(tmp_path).read_text()
    ridge = result.tasks[0].measure("novel_nll").arm("ridge")
    assert f"NLL, novel tokens: ridge {ridge.mean:.3f}" in text
    assert "worse than exact by" in text
    assert "ridge against identity: better than identity by −0." in text
    # Twenty flawless samples: no difference, and the floor of 13.9 points instead of a claim of equality.
    assert "no sample differs from exact (n = 20)" in text
    assert "20 samples rule out (one-sided 95 %) that it is lower by more than 13.9 points" in text
    assert "document 00099 (12 tokens, 40 needed)" in text
    assert "Only one kind of task" not in text


def test_the_page_is_the_same_twice_and_plots_are_whole(result: EvalResult, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_json(tmp_path / EVALUATION, result.model_dump(mode="json"))
    report(tmp_path)
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    report(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == first
    plots = [data for name, data in first.items() if name.endswith(".png")]
    assert len(plots) == 2 and all(data.startswith(b"\x89PNG") for data in plots)


def test_the_page_needs_no_matplotlib(
    result: EvalResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    write_json(tmp_path / EVALUATION, result.model_dump(mode="json"))
    assert "![" not in report(tmp_path).read_text()


def test_one_kind_of_task_is_called_out(result: EvalResult, tmp_path: Path) -> None:
    alone = result.model_copy(update={"tasks": result.tasks[:1]})
    write_json(tmp_path / EVALUATION, alone.model_dump(mode="json"))
    assert "Only one kind of task was run" in report(tmp_path).read_text()


def test_the_penalty_grid_marks_the_choice(result: EvalResult, tmp_path: Path) -> None:
    grid = [{"alpha": a, "mean": m, "keys": [m], "values": [m]} for a, m in ((0.01, 0.9), (0.1, 0.95))]
    for number, scores in enumerate(({"grid": grid}, {"choice": {"grid": grid}})):
        maps = solved(tmp_path / f"maps {number}", scores)
        write_json(tmp_path / EVALUATION, result.model_dump(mode="json"))
        text = report(tmp_path, maps=maps).read_text()
        assert "| **0.1** | 0.9500 |" in text and "| 0.01 | 0.9000 |" in text
    assert "Penalty grid" not in report(tmp_path, maps=solved(tmp_path / "no scores", None)).read_text()
    with pytest.raises(BadInput, match="split 6"):
        report(tmp_path, maps=solved(tmp_path / "bad", {"grid": [{"x": 1}]}))


def test_candidates_are_shown_with_what_was_chosen(result: EvalResult, tmp_path: Path) -> None:
    gain = {"mean": 0.75, "low": 0.6, "high": 0.8, "n": 16}
    plain = {
        "name": "plain",
        "keys": 0.967,
        "values": 0.817,
        "energy": None,
        "copied": 0.2,
        "copied_gain": None,
        "loss": 0.0712,
        "loss_gain": None,
        "extra": 0.0,
        "frontier": True,
    }
    low = {**plain, "name": "r32", "energy": 0.853, "copied": 0.95, "copied_gain": gain, "extra": 0.06}
    frontier = {"chosen": "r32", "reason": "it copies", "candidates": [plain, low]}
    write_json(tmp_path / EVALUATION, result.model_dump(mode="json"))
    text = report(tmp_path, maps=solved(tmp_path / "maps", {"frontier": frontier})).read_text()
    assert "| plain + | 0.9670 | 0.8170 | – | 20.0 % | – | +0.0712 | – | +0.0 % |" in text
    assert "| r32 * | 0.9670 | 0.8170 | 85.3 % | 95.0 % | +75.0 [+60.0, +80.0] |" in text
    assert "Chosen for split 6: r32; it copies." in text
    without = report(tmp_path, maps=solved(tmp_path / "alone", {"choice": {}})).read_text()
    assert "chosen from" not in without
    for number, bad in enumerate(([], {"chosen": "r32"}, {**frontier, "candidates": [{"name": "r32"}]})):
        with pytest.raises(BadInput, match="candidates of split 6"):
            report(tmp_path, maps=solved(tmp_path / f"bad {number}", {"frontier": bad}))


def solved(folder: Path, scores: object) -> Path:
    maps = MapSet.of({layer: LayerMap(torch.eye(4), torch.zeros(4)) for layer in (6, 7)})
    write_maps(folder, [SplitMaps(maps, alphas=(0.1, 0.1), scores=scores)])
    return folder
