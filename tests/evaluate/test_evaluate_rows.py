"""Rows, corrections and splices as arms of an evaluation; which rows pay."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ridgefit.errors import BadInput
from ridgefit.evaluate.arms import resolve_arm
from ridgefit.evaluate.auto_rows import choices, expanded
from ridgefit.evaluate.contrasts import base_of, contrasted
from ridgefit.evaluate.journal import RESULTS
from ridgefit.evaluate.run import evaluate
from ridgefit.evaluate.tables import grids
from ridgefit.maps import FREQUENCIES, Frequencies, LayerMap, MapSet, write_source
from ridgefit.models import LoadedModel
from ridgefit.recipe import ArmSettings, EvalSettings, NeedleSettings, NllSettings
from ridgefit.recipe.rows import row_label
from ridgefit.tokens import tokenizer_sha256

LAYERS, HIDDEN, SPLIT = 6, 32, 4


@pytest.fixture(scope="module")
def maps(tmp_path_factory: pytest.TempPathFactory, tiny: LoadedModel) -> Path:
    """A = I, b = 0.2, with a frequency table beside them."""
    folder = tmp_path_factory.mktemp("maps")
    layers = {n: LayerMap(torch.eye(HIDDEN), torch.full((HIDDEN,), 0.2)) for n in range(SPLIT, LAYERS)}
    write_source(folder / "s4.safetensors", MapSet.of(layers))
    sha256 = tokenizer_sha256(tiny.tokenizer)
    Frequencies.counted([torch.arange(256)], 256, sha256).write(folder / FREQUENCIES)
    return folder / "s4.safetensors"


def arm(*rows: Any, **more: Any) -> ArmSettings:
    return ArmSettings(**{"kind": "ridge", "split": SPLIT, "rows": rows, **more})


def run(tiny: LoadedModel, documents: Path, maps: Path, out: Path, *arms: ArmSettings, **more: Any) -> Any:
    task = NllSettings(data=(str(documents),), prompt=120, tail=40, scored=30)
    settings = EvalSettings(
        **{"arms": arms, "tasks": (task,), "resamples": 200, "sink_effect": False, **more}
    )
    return evaluate(tiny, settings, maps, out)


@pytest.mark.filterwarnings("ignore:maps")
def test_all_rows_and_both_splices_are_exact(
    tiny: LoadedModel, documents: Path, maps: Path, tmp_path: Path
) -> None:
    found = run(
        tiny,
        documents,
        maps,
        tmp_path,
        arm(),
        arm("random share=1.0"),
        arm(splice="both"),
        arm(splice="keys"),
        arm("attention share=0.2"),
        arm("attention share=0.2", splice="both"),
    )
    task = found.tasks[0]
    loss = task.measure("nll")
    assert [a.label for a in found.arms] == [
        "exact",
        "ridge s4",
        "ridge s4 + random 100 %",
        "ridge s4 + exact keys and values",
        "ridge s4 + exact keys",
        "ridge s4 + attention 20 %",
        "ridge s4 + attention 20 % + exact keys and values",
    ]
    assert loss.arm("ridge s4").difference.mean > 0.01
    for label in ("ridge s4 + random 100 %", "ridge s4 + exact keys and values"):
        assert abs(loss.arm(label).difference.mean) < 1e-4
    removed = {(r.arm, r.against): r for r in loss.removed}
    assert removed["ridge s4 + exact keys and values", "ridge s4"].share == pytest.approx(1, abs=0.01)
    whole = removed["ridge s4 + attention 20 % + exact keys and values", "ridge s4 + attention 20 %"]
    assert whole.share is None or whole.share == pytest.approx(1, abs=0.05)
    keys = removed["ridge s4 + exact keys", "ridge s4"]
    plain, spliced = (loss.arm(label).difference.mean for label in ("ridge s4", "ridge s4 + exact keys"))
    assert keys.share == pytest.approx(1 - spliced / plain)
    assert task.rows_chosen == {
        "ridge s4 + random 100 %": 80,
        "ridge s4 + attention 20 %": 24,
        "ridge s4 + attention 20 % + exact keys and values": 24,
    }
    assert any("loss removed" in head for grid in grids(found) for head in grid.heads)


@pytest.mark.filterwarnings("ignore:maps")
def test_batches_choose_the_rows_of_their_samples(
    tiny: LoadedModel, documents: Path, maps: Path, tmp_path: Path
) -> None:
    arms = (arm("probe window=20 share=0.2"), arm("digits"), arm("random like=protected"), arm("protected"))
    one, three = (run(tiny, documents, maps, tmp_path / str(batch), *arms, batch=batch) for batch in (1, 3))
    for label in (a.label for a in one.arms):
        for measure in ("novel_nll", "nll"):
            found = [result.tasks[0].measure(measure).arm(label).mean for result in (one, three)]
            assert found[0] == pytest.approx(found[1], abs=1e-5)
    chosen = one.tasks[0].rows_chosen
    assert chosen == three.tasks[0].rows_chosen
    assert chosen["ridge s4 + protected"] == chosen["ridge s4 + random like protected"] > 0
    assert chosen["ridge s4 + digits"] == 0
    assert any("chose no row" in line for line in one.warnings)


@pytest.mark.filterwarnings("ignore:maps")
def test_sink_rows_are_set_beside_every_plain_ridge_arm(
    tiny: LoadedModel, documents: Path, maps: Path, tmp_path: Path
) -> None:
    found = run(tiny, documents, maps, tmp_path, arm(), arm("sinks 2"), sink_effect=True)
    assert [a.label for a in found.arms] == [
        "exact",
        "ridge s4",
        "ridge s4 +4 sink rows",
        "ridge s4 + sinks 2",
    ]
    pairs = {(c.arm, c.against) for c in found.tasks[0].measures[0].contrasts}
    assert ("ridge s4 +4 sink rows", "ridge s4") in pairs
    named, _ = expanded(
        EvalSettings(arms=(arm(), arm(sink_rows=8)), tasks=(NeedleSettings(),), sink_effect=True), None
    )
    assert len(named.arms) == 2  # the user has one already


@pytest.mark.filterwarnings("ignore:maps")
def test_auto_rows_tries_every_selector_at_equal_count(
    tiny: LoadedModel, documents: Path, maps: Path, tmp_path: Path
) -> None:
    found = run(tiny, documents, maps, tmp_path, arm(), auto_rows=True, auto_share=0.2)
    (choice,) = found.rows_choices
    tried = {trial.selector: trial for trial in choice.trials}
    assert set(tried) == {
        "attention 20 %",
        "attention (pool=31 share=0.2 layers=0/1/2/3)",
        "probe (share=0.2 window=40)",
        "digits",
        "special",
        "lexical net",
        "protected",
    }
    chosen = found.tasks[0].rows_chosen
    for trial in choice.trials:
        assert chosen[trial.arm] == chosen[trial.control] == trial.rows
    assert chosen[tried["attention 20 %"].arm] == 24
    lines = [json.loads(line) for line in (tmp_path / RESULTS).read_text().splitlines()]
    assert {line["arm"] for line in lines if line["kind"] == "sample"} == {a.label for a in found.arms}
    assert choice.sentence in [grid.title for grid in grids(found)]
    assert (
        evaluate(tiny, EvalSettings.model_validate(found.identity["settings"]), maps, tmp_path).tasks
        == found.tasks
    )


def test_the_rule_of_auto_rows(tiny: LoadedModel, documents: Path, maps: Path, tmp_path: Path) -> None:
    """On invented scores: it pays to beat random rows and harm nowhere; the most given back wins."""
    found = run(tiny, documents, maps, tmp_path, arm(), auto_rows=True)
    settings = EvalSettings.model_validate(found.identity["settings"])
    named = settings.model_copy(update={"arms": (arm(),), "auto_rows": True})
    _, tried = expanded(named, maps)

    def with_(differences: dict[tuple[str, str], tuple[float, float]], shares: dict[str, float]) -> Any:
        plain = found.model_dump()
        measure = plain["tasks"][0]["measures"][0]
        for contrast in measure["contrasts"]:
            low, high = differences.get((contrast["arm"], contrast["against"]), (-0.1, 0.1))
            contrast["difference"] |= {"low": low, "high": high, "mean": (low + high) / 2}
        for removed in measure["removed"]:
            removed["share"] = shares.get(removed["arm"], 0.0)
        return choices(tried, type(found).model_validate(plain))[0]

    attention, probe, random = (
        f"ridge s4 + {n}" for n in ("attention 10 %", "probe (share=0.1 window=40)", "random 10 %")
    )
    good, bad, open_ = (-0.3, -0.1), (0.1, 0.3), (-0.1, 0.1)
    assert with_({}, {}).chosen is None
    assert "none of 7 selectors" in with_({}, {}).sentence
    one = with_({(attention, random): good}, {attention: 0.2})
    assert (one.chosen, one.rows) == (attention, ({"select": "attention", "share": 0.1},))
    both = {(attention, random): good, (probe, random): good}
    assert with_(both, {attention: 0.2, probe: 0.3}).chosen == probe
    assert with_({**both, (probe, "ridge s4"): bad}, {attention: 0.2, probe: 0.3}).chosen == attention
    digits, like = "ridge s4 + digits", "ridge s4 + random like digits"
    rows = found.tasks[0].rows_chosen
    fewer = min((attention, digits), key=rows.__getitem__)
    assert rows[attention] != rows[digits]
    equal = {(attention, random): good, (digits, like): good}
    assert with_(equal, {attention: 0.3, digits: 0.3}).chosen == fewer
    more = attention if fewer == digits else digits
    assert with_(equal, {fewer: 0.3, more: 0.31}).chosen == more
    assert with_({(attention, random): bad}, {attention: 0.9}).chosen is None
    assert with_({(attention, random): open_, (attention, "ridge s4"): good}, {attention: 0.9}).chosen is None
    again = arm(*one.rows)
    assert row_label(again.rows) == "attention 10 %"


def test_what_is_set_against_what(maps: Path) -> None:
    arms = [
        resolve_arm(settings, maps, LAYERS)
        for settings in (
            ArmSettings(kind="exact"),
            arm(),
            arm(sink_rows=4),
            arm("attention share=0.1", sink_rows=4),
            arm("random share=0.1", sink_rows=4),
            arm("question_blind share=0.1", sink_rows=4),
            arm("random share=0.1"),
            arm("attention share=0.1", sink_rows=4, corrections=("key_rescale",)),
            ArmSettings(kind="identity", split=SPLIT, rows=("attention share=0.1",), sink_rows=4),
        )
    ]
    for one, base in ((2, 1), (3, 2), (4, 2), (7, 3)):
        assert base_of(arms[one], arms) is arms[base]
    assert base_of(arms[1], arms) is None
    pairs = [(arms.index(a), arms.index(b)) for a, b in contrasted(arms)]
    assert (3, 4) in pairs  # against random rows
    assert (3, 5) in pairs  # against the question hidden
    assert (3, 6) not in pairs  # other sink rows
    assert (3, 8) in pairs  # against identity with the same rows
    assert (7, 4) not in pairs
    assert len(pairs) == len(set(pairs))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (ArmSettings(kind="none", split=SPLIT, rows=("special",)), "none is none"),
        (ArmSettings(kind="exact", splice="keys"), "exact is none"),
        (arm("random like=words"), "like 'words'"),
        (arm({"attention": {"share": 0.1, "count": 4}}), "both a share and a count"),
    ],
)
def test_arms_that_contradict_themselves(given: ArmSettings, said: str, maps: Path) -> None:
    with pytest.raises(BadInput, match=said):
        resolve_arm(given, maps, LAYERS)


def test_every_way_of_writing_rows() -> None:
    wanted = arm(
        {"select": "sinks", "count": 4},
        {"select": "special"},
        {"select": "lexical_net", "run": 5},
        {"select": "probe", "base_rules": True},
        {"select": "attention", "share": 0.2, "layers": (1, 2)},
        {"select": "explicit", "rows": (1, 5)},
    )
    assert (
        arm(
            "sinks 4",
            "special",
            {"lexical_net": {"run": 5}},
            {"probe": {"base_rules": True}},
            "attention share=0.2 layers=1/2",
            {"explicit": {"rows": [1, 5]}},
        )
        == wanted
    )
    assert arm({"sinks": 4}, {"special": None}).rows == arm("sinks 4", "special").rows
    assert "rows" not in arm().model_dump()  # results of before keep their identity
    for name in ("attention", "question_blind", "probe"):
        assert "pool" not in arm(name).model_dump()["rows"][0]
        assert arm(f"{name} pool=1") == arm(name)
        pooled = arm(f"{name} pool=31")
        assert ArmSettings.model_validate_json(pooled.model_dump_json()) == pooled != arm(name)
        assert row_label(pooled.rows) == f"{name.replace('_', ' ')} (pool=31)"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("attention share=1.5", "less than or equal to 1"),
        ("attention pool=30", "a pool of 30 rows has no middle one; use an odd number"),
        ("probe pool=0", "greater than or equal to 1"),
        ("sink 4", "sink"),
        ({"probe": {"windows": 3}}, "windows"),
        ("explicit", "required"),
    ],
)
def test_rows_that_nobody_knows(rows: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        arm(rows)


def test_tables_of_another_tokenizer_are_refused(
    tiny: LoadedModel, maps: Path, tmp_path: Path, tiny_model: Callable[..., Any]
) -> None:
    sound = tmp_path / "sound.safetensors"
    Frequencies.counted([torch.tensor([1, 1, 2])], 256, tokenizer_sha256(tiny.tokenizer)).write(sound)
    table = Frequencies.read(sound).logfreq.double().exp() * (3 + 256)
    torch.testing.assert_close(table[:4], torch.tensor([1, 3, 2, 1]).double(), rtol=0, atol=1e-4)
    for name, vocab, sha256, said in (
        ("short", 255, tokenizer_sha256(tiny.tokenizer), "counts 255 tokens, the model has 256"),
        ("other", 256, "ab" * 32, "another tokenizer.*abababababab"),
    ):
        path = tmp_path / f"{name}.safetensors"
        Frequencies.counted([torch.tensor([1])], vocab, sha256).write(path)
        one = resolve_arm(arm(f"protected frequencies={path}"), maps, LAYERS)
        with pytest.raises(BadInput, match=said), one.applied(tiny.model, 10, tiny.tokenizer):
            pass
    missing = resolve_arm(arm("protected frequencies=/nowhere/table"), maps, LAYERS)
    with pytest.raises(BadInput, match="no frequency table"), missing.applied(tiny.model, 10, tiny.tokenizer):
        pass
    alone = tmp_path / "alone" / "s4.safetensors"
    alone.parent.mkdir()
    alone.write_bytes(maps.read_bytes())
    lacking = resolve_arm(arm("protected"), alone, LAYERS)
    with (
        pytest.raises(BadInput, match="none lies beside the maps"),
        lacking.applied(tiny.model, 10, tiny.tokenizer),
    ):
        pass
