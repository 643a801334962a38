"""Options, recipe keys and Python settings are one thing: every field of every command is walked."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import typer
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ridgefit import recipe
from ridgefit.cli.app import COMMANDS, full_command, main
from ridgefit.cli.options import command, option_name, shown_default
from ridgefit.cli.output import Output
from ridgefit.pipeline.fields import branches, item_type, kinds
from ridgefit.recipe import (
    ArmSettings,
    BenchPrefillSettings,
    CaptureSettings,
    DataSettings,
    DoctorSettings,
    EvalSettings,
    GenerateSettings,
    ModelSettings,
    PlanSettings,
    PullSettings,
    PushSettings,
    Settings,
    SolveSettings,
    VerifySettings,
)

SECTIONS: dict[str, tuple[type[Settings], ...]] = {
    "plan": (PlanSettings,),
    "doctor": (ModelSettings, DoctorSettings),
    "capture": (ModelSettings, DataSettings, CaptureSettings),
    "solve": (SolveSettings, ModelSettings),
    "verify": (VerifySettings, ModelSettings),
    "eval": (ModelSettings, EvalSettings, recipe.RecallEvalSettings),
    "calibrate recall": (ModelSettings, recipe.CalibrateRecallSettings),
    "calibrate refresh": (ModelSettings, recipe.CalibrateRefreshSettings),
    "train draft": (ModelSettings, recipe.TrainDraftSettings),
    "generate": (ModelSettings, GenerateSettings, recipe.DraftGenerateSettings),
    "bench prefill": (BenchPrefillSettings,),
    "push": (PushSettings,),
    "pull": (PullSettings,),
}
OTHERS = {"run", "merge", "quantize", "inspect", "report"}
ALL = tuple(dict.fromkeys(section for sections in SECTIONS.values() for section in sections))
TASK_DATA = {"nll": ["a.txt", "b.txt"], "agreement": ["a.txt"], "acceptance": ["a.txt"]}


def parameters(name: str) -> dict[str, Any]:
    """Every parameter of a command, by each of its spellings."""
    first, *rest = name.split()
    found = full_command(first)
    for part in rest:
        found = found.commands[part]
    spelled: dict[str, Any] = {}
    for parameter in found.params:
        names = [parameter.name] if parameter.param_type_name == "argument" else parameter.opts
        spelled |= dict.fromkeys(names, parameter)
    return spelled


def test_every_command_is_walked() -> None:
    assert {name.split()[0] for name in SECTIONS} | OTHERS == set(COMMANDS)
    used = {settings for settings in vars(recipe).values() if isinstance(settings, type)}
    within = {Settings, recipe.RunRecipe, ArmSettings, recipe.CandidateSettings, recipe.MapReadsSettings}
    top = {s for s in used if issubclass(s, Settings)} - within
    assert top - set(kinds(item_type(EvalSettings.model_fields["tasks"].annotation)).values()) == set(ALL)


@pytest.mark.parametrize("name", [*SECTIONS, *sorted(OTHERS)])
def test_every_field_is_an_option_with_its_help_and_default(name: str) -> None:
    found = parameters(name)
    assert {"--json", "--quiet", "--verbose", "--seed"} <= set(found)
    for section in SECTIONS.get(name, ()):
        for field, info in section.model_fields.items():
            parameter = found.get(option_name(field)) or found[field]
            assert info.description, f"{section.__name__}.{field} says nothing"
            if field == "seed":
                continue
            help_text = parameter.help.replace("\\[", "[")
            assert info.description in help_text
            if info.default is not None and not info.is_required() and info.default != ():
                assert f"[default: {shown_default(info.default)}]" in help_text


def test_nothing_else_is_an_option() -> None:
    """An option that is no setting would be one that a recipe cannot say."""
    own = {"out", "maps", "recipe", "overrides", "help", "as_json", "quiet", "verbose", "seed"}
    for name, sections in SECTIONS.items():
        fields = {field for section in sections for field in section.model_fields}
        names = {parameter.name for parameter in parameters(name).values()}
        extra = names - fields - own
        assert extra <= {"moments"}, (name, extra)


def sample(field: str, info: FieldInfo) -> Any:
    """A value other than the default, as a recipe would hold it."""
    item = item_type(info.annotation)
    if item is not None and kinds(item):
        return [_nested(word, settings) for word, settings in kinds(item).items()]
    if item is not None:
        return [_plain(field, item, None), _plain(field, item, 1)]
    low = next((rule.ge for rule in info.metadata if hasattr(rule, "ge")), 1)
    return _plain(field, info.annotation, None, info.default, low=low)


def _nested(word: str, settings: type[BaseModel]) -> dict[str, Any]:
    first = next(iter(settings.model_fields))
    given: dict[str, Any] = {first: word}
    for field, info in settings.model_fields.items():
        if field == first:
            continue
        given[field] = TASK_DATA.get(word, ["c"]) if field == "data" else sample(field, info)
    return given


def _plain(field: str, annotation: Any, second: int | None, default: Any = None, low: int = 7) -> Any:
    if field == "pool":
        return 5  # an odd number
    known = {
        "device": "cuda:1",
        "shard": "2/3",
        "alphas": [0.5, 0.25],
        "layers": "first:5",
        "candidates": ["mlp", "previous-1/rank=3/layers=4-9"],
    }
    if field in known and annotation is not int:
        value = known[field]
        return value[second or 0] if isinstance(value, list) else value
    for branch in branches(annotation):
        if get_origin(branch) is Literal:
            return next(v for v in get_args(branch)[second or 0 :] if v != default)
        if branch is bool:
            return True
        if branch is float:
            return 0.375 if default != 0.375 else 0.5
        if branch is int:
            value = low + 1 + (second or 0)
            return value if value != default else value + 1
        if branch in (str, Path):
            return f"word-{field}{second or ''}"
    raise AssertionError(f"no sample for {field}: {annotation}")


def words(value: Any, inner: bool = False) -> str:
    """A recipe's value as the command line takes it; a selector of an arm is one word with its settings."""
    if isinstance(value, dict) and inner:
        (_, kind), *rest = value.items()
        plain = ((key, "/".join(map(str, v)) if isinstance(v, list) else v) for key, v in rest)
        return " ".join([kind, *(f"{key}={v}" for key, v in plain)])
    if isinstance(value, dict):
        (_, kind), *rest = value.items()
        listed = [(k, item) for k, v in rest for item in (v if isinstance(v, list) else [v])]
        return ",".join([kind, *(f"{key}={words(item, inner=True)}" for key, item in listed)])
    if isinstance(value, list):
        return ",".join(words(item) for item in value)
    return str(value)


def arguments_of(section: type[Settings], values: dict[str, Any], *, repeat: bool = False) -> list[str]:
    """Options that say `values`."""
    given: list[str] = []
    for field, value in values.items():
        if section.model_fields[field].annotation is bool:
            given.append(option_name(field))
        elif repeat and isinstance(value, list):
            for item in value:
                given += [option_name(field), words(item)]
        else:
            given += [option_name(field), words(value)]
    return given


def built(section: type[Settings], given: list[str]) -> Any:
    """What a command with this section receives for a command line."""
    seen: list[Any] = []

    def probe(settings, output) -> None:  # type: ignore[no-untyped-def]
        seen.append(settings)

    probe.__annotations__ = {"settings": section, "output": Output}
    app = typer.Typer(add_completion=False)
    app.command()(command(probe))
    status = typer.main.get_command(app).main(given, standalone_mode=False)
    assert status == 0
    return seen[0]


def required(section: type[Settings]) -> dict[str, Any]:
    fields = section.model_fields.items()
    values = {field: sample(field, info) for field, info in fields if info.is_required()}
    return values | ({"prompt": "word"} if section is GenerateSettings else {})


@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize("section", ALL, ids=lambda s: s.__name__)
def test_the_command_line_says_what_a_recipe_says(section: type[Settings], repeat: bool) -> None:
    """All fields at once: from YAML and from options, the same frozen object."""
    values = {field: sample(field, info) for field, info in section.model_fields.items()}
    if section is GenerateSettings:
        del values["prompt_file"]
    from_yaml = section.model_validate(yaml.safe_load(yaml.safe_dump(json.loads(json.dumps(values)))))
    assert built(section, arguments_of(section, values, repeat=repeat)) == from_yaml


@pytest.mark.parametrize("section", ALL, ids=lambda s: s.__name__)
def test_defaults_are_the_settings_own(section: type[Settings]) -> None:
    assert built(section, arguments_of(section, required(section))) == section.model_validate(
        required(section)
    )


@pytest.mark.parametrize("section", ALL, ids=lambda s: s.__name__)
def test_fields_one_at_a_time(section: type[Settings]) -> None:
    """Each option reaches its own field and no other."""
    base = required(section)
    for field, info in section.model_fields.items():
        if field in base or (section is GenerateSettings and field == "prompt_file"):
            continue
        values = base | {field: sample(field, info)}
        assert built(section, arguments_of(section, values)) == section.model_validate(values), field


def test_flags_can_be_taken_back() -> None:
    assert built(SolveSettings, ["--drop-lead", "--no-drop-lead"]).drop_lead is False


def test_none_empties_an_optional_setting() -> None:
    assert built(DataSettings, ["--data", "a", "--max-windows", "none"]).max_windows is None


def test_a_list_may_be_spread_over_options() -> None:
    given = ["--arms", "exact,ridge,split=3", "--arms", "sink-rows=4,identity", "--tasks", "needle"]
    arms = built(EvalSettings, given).arms
    assert [(a.kind, a.split, a.sink_rows) for a in arms] == [
        ("exact", None, 0),
        ("ridge", 3, 4),
        ("identity", None, 0),
    ]


def test_two_settings_may_not_share_a_name() -> None:
    def clash(one: DataSettings, two: DataSettings) -> None: ...

    clash.__annotations__ = {"one": DataSettings, "two": DataSettings}
    with pytest.raises(TypeError, match="named data"):
        command(clash)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("eval m --out o --tasks needle --arms split=3", "'split=3' belongs to nothing"),
        ("eval m --out o --tasks needle --arms ridge,split=3,split=4", "split of ridge is given twice"),
        ("eval m --out o --tasks needle --arms ridg", "must be one of exact, none, identity, ridge, pop"),
        ("eval m --out o --tasks needle,promt=9 --arms exact", "did you mean --tasks[0].prompt"),
        ("eval m --out o --arms exact", "--tasks is required with --arms: give it, or leave it out"),
        (
            "eval m --out o --tasks needle --data x",
            "--policy is required with --data: give it, or leave it out",
        ),
        ("verify m --device cpu --dtype float32", "--model is required with --dtype, --device: give it, or"),
        ("generate m --prompt x --budget 9", "--draft is required with --budget: give it, or leave it out"),
        ("train draft m --target t --data d --out o --least 0.5 --most 0.1", "smallest budget 0.5 is above"),
        ("eval --out o --arms exact --tasks needle", "MODEL is required"),
        ("doctor", "missing argument 'MODEL'"),
        ("verify --split 3", "missing argument 'MAPS'"),
        ("eval m --arms exact --tasks needle", "missing option '--out'"),
        ("doctor m --dtype bf16", "did you mean bfloat16"),
        ("doctor m --needle-prompt 3", "--needle-prompt is '3', must be greater than or equal to 64"),
        ("doctor m --seed x", "--seed"),
        ("doctor m extra", "unexpected extra argument"),
        ("doctr m", "Did you mean 'doctor'"),
        ("doctor m --nedle-prompt 3", "no such option: --nedle-prompt"),
        ("generate m", "give either --prompt or --prompt-file"),
    ],
)
def test_a_bad_command_line_is_one_sentence(
    line: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert said.err.startswith("ridgefit: ")
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_summaries_are_the_commands_own() -> None:
    """The table lists commands without importing them, so it repeats their first sentence."""
    for name, summary in COMMANDS.items():
        module = import_module(f"ridgefit.cli.{name}")
        callback = getattr(module, "entry", None)
        text = callback.__doc__ if callback is not None else module.app.info.help
        assert summary == text.strip().splitlines()[0], name


@pytest.mark.parametrize(
    ("command", "usage"),
    [("doctor", "{MODEL}"), ("plan", "{MODEL}"), ("verify", "{MAPS}"), ("capture", "[MODEL]")],
)
def test_usage_and_help_agree_on_what_is_required(
    command: str, usage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main([command, "--help"])
    said = " ".join(capsys.readouterr().out.replace("│", "").split())
    assert f"ridgefit {command} [OPTIONS] {usage}" in said
    assert ("[required here or in the recipe]" in said) == (command == "capture")
