"""Recipes as YAML: duplicate and unknown keys refused with the line they stand on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml
from pydantic import ConfigDict, create_model

from ridgefit.errors import BadInput
from ridgefit.pipeline.validation import Location, dotted, known_names, nearest, validated
from ridgefit.recipe import CalibrateRecallSettings, RecallEvalSettings, RunRecipe, Settings

BESIDE_RUN: dict[str, type[Settings]] = {
    "calibrate_recall": CalibrateRecallSettings,
    "evaluate_recall": RecallEvalSettings,
}
"""Sections of recipes that `run` does not take: what each holds."""


def load_recipe(path: Path, overrides: Iterable[str] = ()) -> RunRecipe:
    """The checked recipe in a YAML file.

    Args:
        path: the file.
        overrides: settings that replace the file's, as `key.key=value` with a YAML value.

    Raises:
        BadInput: the file cannot be read, is not YAML, repeats a key, or has a setting that is unknown,
            missing or wrong; the sentence names the line.
    """
    values, lines = read_yaml(path)
    for override in overrides:
        _replace(values, override)
    return validated(RunRecipe, values, place=_placing(path, lines))


def load_sections(path: Path, overrides: Iterable[str] = ()) -> dict[type[Settings], dict[str, Any]]:
    """What each section of a recipe sets; the recipe need not be whole, as a command reads few of them.

    `overrides` replace settings of the file, as in `load_recipe`.

    Raises:
        BadInput: as `load_recipe`, but for sections that are missing.
    """
    values, lines = read_yaml(path)
    for override in overrides:
        _replace(values, override)
    fields: dict[str, Any] = {name: (info.annotation, None) for name, info in RunRecipe.model_fields.items()}
    fields |= {name: (section, None) for name, section in BESIDE_RUN.items()}
    part = create_model("RecipePart", __config__=ConfigDict(extra="forbid"), **fields)
    found = validated(part, values, place=_placing(path, lines))
    return {
        type(section): section.model_dump(exclude_unset=True)
        for section in vars(found).values()
        if isinstance(section, Settings)
    }


def _placing(path: Path, lines: dict[Location, int]) -> Callable[[Location], str]:
    return lambda location: f"{path} line {_line(lines, location)}: "


def read_yaml(path: Path) -> tuple[dict[str, Any], dict[Location, int]]:
    """A YAML mapping, and the line (from 1) on which each of its keys stands.

    Raises:
        BadInput: the file cannot be read, is not YAML, is not a mapping, or repeats a key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise BadInput(f"{path} does not exist") from error
    except (IsADirectoryError, NotADirectoryError) as error:
        raise BadInput(f"{path} is not a file", "name a recipe, a YAML file") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from error
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        lines: dict[Location, int] = {(): 1}
        if root is not None:
            _note_lines(root, (), lines, path, frozenset())
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark is not None else ""
        raise BadInput(f"{path}{where} is not YAML ({getattr(error, 'problem', None) or error})") from error
    if not isinstance(values, dict):
        raise BadInput(f"{path} does not hold settings", "write `key: value` lines, as in recipes/demo.yaml")
    return values, lines


def _note_lines(
    node: yaml.Node, at: Location, lines: dict[Location, int], path: Path, above: frozenset[int]
) -> None:
    if id(node) in above:
        raise BadInput(f"{path} line {node.start_mark.line + 1}: a setting contains itself")
    above |= {id(node)}
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[(*at, index)] = item.start_mark.line + 1
            _note_lines(item, (*at, index), lines, path, above)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            location, line = (*at, str(key.value)), key.start_mark.line + 1
            if location in lines:
                raise BadInput(
                    f"{path} line {line}: {dotted(location)} is set twice, first on line {lines[location]}",
                    "keep one of them",
                )
            lines[location] = line
            _note_lines(value, location, lines, path, above)


def _line(lines: dict[Location, int], location: Location) -> int:
    while location not in lines:
        location = location[:-1]
    return lines[location]


def _replace(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    words = key.strip().replace("-", "_").split(".")
    if not equals or not all(words):
        raise BadInput(f"--set {override!r} is not of the form key=value", "write --set capture.batch=2")
    path: Location = tuple(int(word) if word.isdecimal() else word for word in words)
    target: Any = values
    for depth, part in enumerate(path):
        where = ".".join(words[: depth + 1])
        if isinstance(target, list):
            if not isinstance(part, int) or part >= len(target):
                raise BadInput(
                    f"--set {override!r}: {where} is not in a list of {len(target)}", "count from 0"
                )
        elif isinstance(target, dict):
            names = known_names(RunRecipe, path[: depth + 1])
            if part not in names:
                close = nearest(words[depth], names)
                raise BadInput(
                    f"--set {override!r}: there is no setting {where}",
                    f"did you mean {'.'.join((*words[:depth], close))}?" if close else "",
                )
            if depth < len(path) - 1 and target.get(part) is None:
                target[part] = {}
        else:
            raise BadInput(
                f"--set {override!r}: {'.'.join(words[:depth])} is one value, without settings of its own"
            )
        if depth < len(path) - 1:
            target = target[part]
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadInput(f"--set {override!r}: the value is not YAML", "quote it") from error
    target[path[-1]] = value
