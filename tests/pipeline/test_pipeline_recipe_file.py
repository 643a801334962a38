"""Recipes: what is unknown, repeated, missing or wrong is one sentence with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgefit.errors import BadInput
from ridgefit.pipeline.recipe_file import load_recipe, load_sections, read_yaml
from ridgefit.recipe import RunRecipe

GOOD = """\
name: demo
work: work/demo
model:
  model: bundled:llama
data:
  data: [a.jsonl, b.jsonl]
capture: {split: [6]}
solve:
  alphas: [1e-3, 0.1]
evaluate:
  arms:
    - kind: exact
    - {kind: ridge, sink_rows: 4}
  tasks:
    - {task: nll, data: [a.jsonl], prompt: 96, tail: 24}
    - {task: needle, prompt: 96}
"""


def loaded(tmp_path: Path, text: str, *overrides: str) -> RunRecipe:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    return load_recipe(path, overrides)


def sentence(tmp_path: Path, text: str, *overrides: str) -> str:
    with pytest.raises(BadInput) as caught:
        loaded(tmp_path, text, *overrides)
    said = str(caught.value)
    assert "\n" not in said
    return said.replace(f"{tmp_path}/", "")


def test_a_good_recipe(tmp_path: Path) -> None:
    recipe = loaded(tmp_path, GOOD)
    assert recipe.capture.split == (6,)
    assert recipe.solve.alphas == (0.001, 0.1)
    assert recipe.evaluate.arms[1].sink_rows == 4
    assert [task.task for task in recipe.evaluate.tasks] == ["nll", "needle"]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("capture:", "captur:", "recipe.yaml line 7: there is no setting captur (and 1 more key is wrong)"),
        ("captur", "capturs", "did you mean capture"),
        ("sink_rows", "sinks_row", "line 13: there is no setting evaluate.arms[1].sinks_row: did you mean"),
        ("prompt: 96,", "promt: 96,", "did you mean evaluate.tasks[0].prompt"),
        ("kind: exact", "kind: exct", "line 12: evaluate.arms[0].kind is 'exct', must be one of exact, none"),
        ("task: nll", "task: nil", "line 15: evaluate.tasks[0].task is 'nil', must be one of nll, needle"),
        ("task: nll, ", "", "evaluate.tasks[0].task is missing"),
        ("[6]", "[six]", "line 7: capture.split[0] is 'six', must be a whole number"),
        ("[6]", "[]", "line 7: capture.split is [], must hold at least one"),
        ("[6]", "6", "line 7: capture.split is 6, must be a list"),
        (
            "data: [a.jsonl, b.jsonl]",
            "data: [a]\n  data: [b]",
            "line 7: data.data is set twice, first on line 6",
        ),
        ("name: demo\n", "", "name is required"),
        ("1e-3", "-1", "line 8: solve: alphas must be distinct, finite and not negative"),
        ("1e-3", ".nan", "line 8: solve: alphas must be distinct, finite and not negative"),
        ("1e-3", ".inf", "line 8: solve: alphas must be distinct, finite and not negative"),
        ("{split: [6]}", "fast", "line 7: capture is 'fast', must hold settings"),
        ("bundled:llama", "bundled:llama\n  dtype: bf16", "line 5: model.dtype is 'bf16', must be one of"),
        ("name: demo", "name: [", "line 3 is not YAML"),
        ("name: demo", "name: yes", "line 1: name is True, must be a valid string"),
        ("name: demo", "name: ''", "line 1: name is '', must look like qwen3-8b"),
        ("{split: [6]}", "{split: [6], shard: half}", "capture.shard is 'half', must look like 2/4"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in GOOD
    assert words in sentence(tmp_path, GOOD.replace(old, new))


@pytest.mark.parametrize("text", ["", "- a\n", "word\n", "# nothing\n"])
def test_a_file_without_settings(tmp_path: Path, text: str) -> None:
    assert "does not hold settings" in sentence(tmp_path, text)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path, words in ((tmp_path / "none", "does not exist"), (tmp_path, "is not a file")):
        with pytest.raises(BadInput, match=words):
            load_recipe(path)
    (tmp_path / "latin").write_bytes("name: caf\xe9".encode("latin-1"))
    with pytest.raises(BadInput, match="not UTF-8"):
        load_recipe(tmp_path / "latin")


def test_a_setting_that_contains_itself(tmp_path: Path) -> None:
    assert "contains itself" in sentence(tmp_path, "model: &m\n  model: *m\n")


def test_code_in_a_recipe_is_not_run(tmp_path: Path) -> None:
    assert "is not YAML" in sentence(tmp_path, "name: !!python/object/apply:os.getcwd []\n")


def test_lines_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("a: 1\nb:\n  - c: 2\n  - d: 3\n")
    values, lines = read_yaml(path)
    assert values == {"a": 1, "b": [{"c": 2}, {"d": 3}]}
    assert (lines["a",], lines["b", 0, "c"], lines["b", 1, "d"]) == (1, 3, 4)


def test_overrides(tmp_path: Path) -> None:
    recipe = loaded(
        tmp_path,
        GOOD,
        "capture.batch=2",
        "capture.split=[3]",
        "model.dtype=float32",
        "data.max-windows=8",
        "solve.drop_lead=true",
        "work=elsewhere",
        "quantize=false",
    )
    assert (recipe.capture.batch, recipe.capture.split, recipe.model.dtype) == (2, (3,), "float32")
    assert (recipe.data.max_windows, recipe.solve.drop_lead, recipe.quantize) == (8, True, False)
    assert recipe.work == Path("elsewhere")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("capture.bach=2", "did you mean capture.batch"),
        ("captur.batch=2", "did you mean capture"),
        ("capture", "not of the form key=value"),
        ("=3", "not of the form key=value"),
        ("model.model.x=2", "model.model is one value"),
        ("work.x=2", "work is one value"),
        ("evaluate.arms.9.split=2", "evaluate.arms.9 is not in a list of"),
        ("evaluate.arms.x=2", "evaluate.arms.x is not in a list of"),
        ("capture.split=[3, 4]", "needs one of the captured splits, 3, 4"),
        ("solve.features=auto", "capture.features holds the state alone"),
        ("solve.features=[state, mlp]", "'mlp', which capture.features leaves out"),
        ("solve.candidates=[previous-1/rank=4]", "'previous-1', which capture.features leaves out"),
        ("evaluate.arms=[{kind: ridge, maps: plain, split: 6}]", "needs solve.candidates"),
        ("capture.batch=[", "the value is not YAML"),
        ("capture.batch=0", "capture.batch is 0, must be greater than or equal to 1"),
    ],
)
def test_bad_overrides(tmp_path: Path, override: str, words: str) -> None:
    assert words in sentence(tmp_path, GOOD, override)


def test_recipes_of_this_repository_are_valid() -> None:
    """Those of `smollm2-window.sh` are for single commands, and need not be whole."""
    found = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))
    for path in found:
        if path.name.startswith("smollm2-window"):
            assert load_sections(path)
        else:
            assert load_recipe(path).name
