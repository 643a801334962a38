"""Options that would do nothing: refused in one sentence, before a model is loaded or a file is written."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import yaml

import ridgefit.recipe
from ridgefit.cli.app import main
from ridgefit.models import load
from ridgefit.pipeline.recipe_file import load_sections
from ridgefit.recipe import Settings, require_used
from ridgefit.recipe.idle import as_key, as_option

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))
SETTINGS = sorted(
    {
        found
        for room in ("arms", "costing", "drafting", "recall", "rows", "solving")
        for module in (ridgefit.recipe, getattr(ridgefit.recipe, room))
        for _, found in inspect.getmembers(module, inspect.isclass)
        if issubclass(found, Settings) and vars(found).get("idle")
    },
    key=lambda found: found.__name__,
)
SOLVE = "solve gone --out OUT"
EVAL = "eval bundled:llama --out OUT --arms identity,split=6"
ACCEPTANCE = "eval bundled:llama --out OUT --tasks acceptance,data=bundled:development,policies=swa"
DRAFT = "generate bundled:llama --draft self --prompt x"
GENERATE = "generate bundled:llama --prompt x"
POLICY = "generate bundled:kimi_linear --prompt x --policy gone"
REFRESH = "calibrate refresh bundled:llama --data bundled:calibration --out OUT"
RECALL = "calibrate recall bundled:kimi_linear --data bundled:calibration --out OUT"
JUDGE = "eval bundled:kimi_linear --policy gone --out OUT"
TRAIN = "train draft bundled:draft --target bundled:llama --data bundled:calibration --out OUT"
BENCH = "bench prefill --preset cpu"

CASES = [
    # what goes before, options that would do nothing, why
    (SOLVE, "--keep-candidates", "without candidates: name candidates, or features auto, or leave it out"),
    (SOLVE, "--probe-samples 4 --probe-tail 32", "without candidates: name candidates, or features auto"),
    (
        SOLVE,
        "--probe-strings words --probe-windows 4 --probe-batch 2 --probe-prompt 64 --probe-sink-rows 0",
        "without candidates",
    ),
    (SOLVE, "--metric values", "without a bottleneck: give a rank, or leave it out"),
    (f"{SOLVE} --candidates previous-1/rank=3", "--metric both", "without a bottleneck"),
    (f"{SOLVE} --alphas 0.1", "--per-layer", "with one alpha to choose from"),
    ("plan bundled:llama --arm exact", "--split 4 --tail 64 --sink-rows 4", "for the exact arm"),
    ("plan bundled:llama --arm pop", "--sink-rows 4", "for the pop arm, which has none"),
    (GENERATE + " --arm exact", "--split 4 --tail 64 --sink-rows 4", "with the exact arm"),
    (GENERATE + " --arm exact", "--maps gone", "with an arm that reads none: use arm ridge"),
    (GENERATE + " --arm pop", "--maps gone", "with an arm that reads none: use arm ridge"),
    (GENERATE + " --arm identity --split 6", "--maps gone", "with an arm that reads none and has a split"),
    (POLICY, "--arm pop --split 4 --tail 8", "with --policy, which fills no rows: leave them out"),
    (POLICY, "--sink-rows 4 --rows special --prefill-chunk 64", "with --policy, which fills no rows"),
    (DRAFT, "--tail 8 --prefill-chunk 4", "with --draft, which fills no rows: leave them out"),
    (DRAFT, "--rows special", "with --draft, which fills no rows: leave it out"),
    (DRAFT, "--controller gone", "without the policy rift-ada: name it, or leave it out"),
    (f"{DRAFT} --draft none", "--drafted 3", "without a draft: name one, or leave it out"),
    (f"{DRAFT} --window 16", "--recent-share 0.25", "beside a window, which takes its place: leave it out"),
    (f"{DRAFT} --draft-policy full", "--budget 64 --observe 8", "with the policy full: leave them out"),
    (f"{DRAFT} --draft-policy swa", "--observe 8 --kernel 3", "with the policy swa: leave them out"),
    (DRAFT, "--every 16 --select-from since", "with the policy rift-stat: leave them out"),
    (f"{DRAFT} --draft-policy snapkv", "--window 8", "with the policy snapkv: leave it out"),
    (f"{REFRESH} --window 16", "--recent-share 0.25", "beside a window, which takes its place"),
    (TRAIN, "--rank 4", "where every weight is trained: use method lora, or leave it out"),
    (f"{RECALL} --no-gate", "--gate-off 0.5", "without the gate: leave it out"),
    (f"{RECALL} --thresholds prompt", "--held-out 0.5", "where each prompt finds its own thresholds"),
    (
        f"{JUDGE} --trials 0 --data bundled:development",
        "--needle-tokens 128 --needles 2 --haystack gone --intact 2",
        "without needle prompts: set trials, or leave them out",
    ),
    (
        JUDGE,
        "--text-field t --document-tokens 128 --continuation 8 --documents 2",
        "without documents: name data, or leave them out",
    ),
    (JUDGE, "--maps gone", "with --policy, which reads no maps: leave it out"),
    (f"{EVAL} --tasks needle", "--maps gone", "with arms that read none of them: add a ridge arm"),
    (f"{EVAL} --tasks needle", "--auto-share 0.2", "without auto_rows: set it, or leave it out"),
    (ACCEPTANCE, "--batch 2 --auto-rows", "with acceptance, which judges drafts one prompt at a time"),
    (ACCEPTANCE, "--no-sink-effect", "with acceptance, which judges drafts one prompt at a time"),
    ("doctor bundled:llama --needle-samples 0", "--needle-prompt 256", "without needle prompts"),
    ("verify gone", "--prompt 32 --tail 8", "without a model to run: name one with --model"),
    ("bench prefill --model bundled:llama", "--preset qwen3-8b", "beside a model with its own weights"),
    (f"{BENCH} --arms pop", "--split 4 --tail 64 --sink-rows 4 --rows random", "for the pop arm, which"),
    ("bench prefill --model bundled:llama --arms pop", "--maps gone", "for the pop arm, which has"),
    (
        f"{BENCH} --arms identity",
        "--features state,mlp --rank 4 --layers first:2",
        "without the ridge arm, whose maps they describe: time ridge, or leave them out",
    ),
]  # fmt: skip

NESTED = [
    # settings of an item of a list, how the sentence names them, why
    (f"{SOLVE} --candidates previous-1/metric=values", "--candidates[0].metric", "without a bottleneck"),
    (
        "eval bundled:llama --out OUT --tasks needle --arms exact,split=4,tail=8,sink-rows=2",
        "--arms[0].split, --arms[0].tail, --arms[0].sink_rows",
        "in the exact arm, which fills nothing",
    ),
    (
        "eval bundled:llama --out OUT --tasks needle --arms identity,split=6,correction-rows=64",
        "--arms[0].correction_rows",
        "without corrections that are measured on them",
    ),
    (
        f"{EVAL},rows=probe_factor=2_window=64,rows=special --tasks needle",
        "--arms[0].rows[0].factor",
        "without base rules",
    ),
    (
        f"{GENERATE} --arm identity --split 6 --tail 300 --rows probe,frequencies=gone",
        "--rows[0].frequencies",
        "without base rules",
    ),
    (
        f"{EVAL} --tasks copying,strings=numbers,length=64,cue=4",
        "--tasks[0].length, --tasks[0].cue",
        "for numbers, which have their own",
    ),
    (f"{ACCEPTANCE},policies=h2o,reference=swa,observe=8", "observe", "with the policies full, swa, h2o"),
    (
        f"{ACCEPTANCE},window=16,recent-share=0.25",
        "--tasks[0].recent_share",
        "beside a window, which takes its place",
    ),
]  # fmt: skip


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where nothing may be written; a model that is loaded fails the test."""

    def loaded(*_: object, **__: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(load, "_loaded", loaded)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "out"


def refused(line: str, out: Path, capsys: pytest.CaptureFixture[str]) -> str:
    words = [
        word.replace("probe_factor=2_window", "probe factor=2 window").replace("OUT", str(out))
        for word in line.split()
    ]
    status = main([*words, "--quiet"])
    said = capsys.readouterr()
    assert (status, said.out) == (2, ""), said.err
    assert len(said.err.strip().splitlines()) == 1, said.err
    assert list(out.parent.iterdir()) == [], "something was written"
    return said.err


@pytest.mark.parametrize(("before", "options", "why"), CASES)
def test_options_that_would_do_nothing(
    before: str, options: str, why: str, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(f"{before} {options}", out, capsys)
    for option in options.split():
        if option.startswith("--"):
            assert option.replace("--no-", "--") in said
    assert f"would do nothing {why}" in said


@pytest.mark.parametrize(("line", "named", "why"), NESTED)
def test_settings_of_an_item_that_would_do_nothing(
    line: str, named: str, why: str, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"{named} would do nothing {why}" in refused(line, out, capsys)


@pytest.mark.parametrize("settings", SETTINGS)
def test_every_rule_is_tried_above(settings: type[Settings]) -> None:
    """A rule that no command line reaches would be a sentence that nobody ever reads."""
    tried = [(given.replace("--no-", "--"), why.split(":")[0]) for _, given, why in (*CASES, *NESTED)]
    for rule in vars(settings)["idle"]:
        for field in rule.fields:
            reached = [
                given
                for given, why in tried
                if rule.why.startswith(why) and (as_option((field,)) in given or f".{field}" in given)
            ]
            assert reached, (field, rule.why)


def test_options_at_their_defaults_are_taken(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a script spells out without changing it is no mistake; the capture is then what is missing."""
    assert "would do nothing" not in refused(f"{SOLVE} --metric keys --probe-samples 24", out, capsys)


def test_a_recipe_is_refused_by_its_keys(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = yaml.safe_load((RECIPES[0].parent / "demo.yaml").read_text())
    recipe["work"] = str(out)
    recipe["solve"] = {"keep_candidates": True}
    recipe["evaluate"]["arms"][0]["correction_rows"] = 64
    place = out.parent.parent / "idle.yaml"
    place.write_text(yaml.safe_dump(recipe))
    assert "solve.keep_candidates would do nothing without candidates" in refused(f"run {place}", out, capsys)
    recipe["solve"] = {}
    place.write_text(yaml.safe_dump(recipe))
    said = refused(f"run {place}", out, capsys)
    assert "evaluate.arms[0].correction_rows would do nothing without corrections" in said
    recipe["evaluate"]["arms"][0].pop("correction_rows")
    recipe["capture"]["shard"] = "1/2"
    place.write_text(yaml.safe_dump(recipe))
    assert "a run reads all of the text: leave capture.shard out" in refused(f"run {place}", out, capsys)
    recipe["capture"].pop("shard")
    recipe["capture"]["lead"] = 0
    recipe["solve"] = {"drop_lead": True}
    place.write_text(yaml.safe_dump(recipe))
    assert "of which capture.lead keeps none" in refused(f"run {place}", out, capsys)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_the_recipes_set_nothing_that_does_nothing(path: Path) -> None:
    for section, values in load_sections(path).items():
        require_used(section.model_validate(values), written=as_key)
