"""Command lines made from settings classes, so that an option, a recipe key and an argument are one thing.

A command is a plain function. A parameter annotated with a settings class becomes one option per
field: the name with hyphens, the description as help, the default shown, a tuple repeatable or
comma-separated. Lists of settings (`--arms`, `--tasks`) are written `identity,split=11,ridge`: a word
begins an item, `key=value` belongs to the item before it, and a repeated key makes a list.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ridgefit.cli.errors import fail
from ridgefit.cli.output import Output
from ridgefit.errors import BadInput
from ridgefit.pipeline.fields import branches, choices, item_type, kinds
from ridgefit.pipeline.validation import Location, dotted, validated
from ridgefit.recipe import Settings

Out = Annotated[Path, typer.Option("--out", help="where the result goes", show_default=False)]
_COMMON = {
    "as_json": (bool, "--json", "print one JSON object on stdout, and nothing else there"),
    "quiet": (bool, "--quiet", "no progress, notes or warnings"),
    "verbose": (bool, "--verbose", "say on stderr what is being done"),
    "seed": (int | None, "--seed", "seed of whatever this command draws at random"),
}


def command(
    function: Callable[..., int | None], *, arguments: Sequence[str] = (), recipe: bool = False
) -> Callable[..., int]:
    """A typer callback for `function`, which returns an exit status and never raises an Exception.

    Args:
        function: parameters annotated with a `Settings` subclass are built from options, or are None if
            annotated so and none of those options is given; one annotated with `Output` gets `--json`,
            `--quiet`, `--verbose` and `--seed`; all others are typer's.
        arguments: fields that are positional.
        recipe: also take `--recipe`, whose sections fill what the command line leaves out, and `--set`.

    Raises:
        TypeError: two settings classes of the function share a field name.
    """
    hints = get_type_hints(function, include_extras=True)
    hints.pop("return", None)
    sections = {name: found for name, hint in hints.items() if (found := _Section.of(hint, arguments))}
    options: dict[str, inspect.Parameter] = {}
    for section in sections.values():
        for name, info in section.settings.model_fields.items():
            if name == "seed":
                continue
            if name in options:
                raise TypeError(f"two settings of {function.__name__} are named {name}")
            options[name] = section.parameter(name, info, elsewhere=recipe)
    own = [
        parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in sections and hints[name] is not Output
    ]
    common = [_common(name, *row) for name, row in _COMMON.items()]
    if recipe:
        text = "YAML recipe whose sections fill what is not given here"
        replace = "replace a setting of the recipe: --set evaluate.batch=4; repeatable"
        common[:0] = [
            _parameter_of("recipe", Path | None, typer.Option("--recipe", help=text)),
            _parameter_of(
                "overrides", list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=replace)
            ),
        ]

    def call(**given: Any) -> int:
        output = Output(
            json=given.pop("as_json"),
            quiet=given.pop("quiet"),
            verbose=given.pop("verbose"),
            seed=given.pop("seed"),
        )
        try:
            with output.speaking():
                base = _recipe_sections(given.pop("recipe"), given.pop("overrides")) if recipe else {}
                values = {name: given.pop(name) for name in options}
                built = {
                    name: section.build(base.get(section.settings, {}), values, output.seed)
                    for name, section in sections.items()
                }
                outputs = {name: output for name, hint in hints.items() if hint is Output}
                return function(**built, **outputs, **given) or 0
        except (Exception, KeyboardInterrupt) as error:
            return fail(error, as_json=output.json, stdout=output.stdout)

    signature = inspect.Signature([*options.values(), *own, *common])
    call.__name__, call.__doc__ = function.__name__, function.__doc__
    call.__annotations__ = {name: item.annotation for name, item in signature.parameters.items()}
    vars(call)["__signature__"] = signature
    return call


@dataclass(frozen=True)
class _Section:
    """A settings class of a command.

    Args:
        settings: the class.
        optional: whether the command does without it.
        arguments: fields that are positional.
    """

    settings: type[Settings]
    optional: bool
    arguments: Sequence[str]

    @classmethod
    def of(cls, hint: Any, arguments: Sequence[str]) -> _Section | None:
        """The section that a parameter's annotation means, None for other parameters."""
        settings = [
            branch for branch in branches(hint) if isinstance(branch, type) and issubclass(branch, Settings)
        ]
        return cls(settings[0], type(None) in branches(hint), arguments) if settings else None

    def parameter(self, name: str, info: FieldInfo, *, elsewhere: bool) -> inspect.Parameter:
        """The option or argument of one field; `elsewhere` if a recipe may hold it instead."""
        kind: Any = str | None
        if item_type(info.annotation) is not None:
            kind = list[str] | None
        elif info.annotation is bool:
            kind = bool | None
        required = info.is_required() and not self.optional
        if name in self.arguments:
            # Without a recipe the parser itself asks for it, and says so in the usage.
            by_parser = required and not elsewhere
            text = _help(info, "required here or in the recipe" if required and elsewhere else "")
            argument = typer.Argument(help=text, metavar=name.upper(), show_default=False)
            return _parameter_of(name, kind, argument, default=inspect.Parameter.empty if by_parser else None)
        asked = f"required{' here or in the recipe' if elsewhere else ''}" if required else ""
        text = _help(info, asked)
        flag = option_name(name)
        option = typer.Option(
            f"{flag}/--no-{flag[2:]}" if info.annotation is bool else flag,
            help=text,
            metavar=None if info.annotation is bool else _metavar(info.annotation),
            show_default=False,
            rich_help_panel=self.settings.__name__.removesuffix("Settings"),
        )
        return _parameter_of(name, kind, option)

    def build(self, base: Mapping[str, Any], values: Mapping[str, Any], seed: int | None) -> Settings | None:
        """The settings from a recipe's section and what the command line gave."""
        fields = self.settings.model_fields
        given = {n: parsed(fields[n], values[n]) for n in fields if values.get(n) not in (None, [], ())}
        if self.optional and not given and not base:
            return None
        missing = [n for n in fields if fields[n].is_required() and n not in (*base, *given)]
        if self.optional and given and missing:
            options, them = [option_name(n) for n in given], "it" if len(given) == 1 else "them"
            raise BadInput(
                f"{' and '.join(map(option_name, missing))} is required with {', '.join(options)}",
                f"give it, or leave {them} out",
            )
        if seed is not None and "seed" in fields:
            given["seed"] = seed
        return validated(self.settings, {**base, **given}, name=self._written)

    def _written(self, location: Location) -> str:
        if not location:
            return ""
        first = str(location[0])
        return dotted((first.upper() if first in self.arguments else option_name(first), *location[1:]))


def option_name(field: str) -> str:
    """`held_out` as `--held-out`."""
    return "--" + field.replace("_", "-")


def parsed(info: FieldInfo, given: Sequence[str] | str | bool) -> object:
    """What the command line gave for a field, in the form its settings class checks."""
    if isinstance(given, bool):
        return given
    item = item_type(info.annotation)
    if item is None:
        return None if given == "none" and type(None) in branches(info.annotation) else given
    texts = [given] if isinstance(given, str) else given
    words = [word.strip() for text in texts for word in text.split(",") if word.strip()]
    members = kinds(item)
    return _items(words, members) if members else words


def _items(words: Sequence[str], members: Mapping[str, type[BaseModel]]) -> list[dict[str, Any]]:
    """A list of settings: words begin items, `key=value` belongs to the word before it."""
    items: list[tuple[str, dict[str, Any]]] = []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or " " in key:  # `random count=3` is an item with its settings
            items.append((word, {}))
            continue
        if not items:
            raise BadInput(f"{word!r} belongs to nothing", f"put one of {', '.join(members)} before it")
        kind, given = items[-1]
        key = key.strip().replace("-", "_")
        fields = members[kind].model_fields if kind in members else {}
        if key in fields and item_type(fields[key].annotation) is not None:
            given[key] = [*given.get(key, []), value]
        elif key in given:
            raise BadInput(f"{key} of {kind} is given twice", "keep one of them")
        else:
            given[key] = value
    # A word that nobody knows is left for the settings class, which knows what it should have been.
    first = next(iter(next(iter(members.values())).model_fields))
    return [{first: kind, **given} for kind, given in items]


def _recipe_sections(
    path: Path | None, overrides: Sequence[str] | None
) -> dict[type[Settings], dict[str, Any]]:
    if path is None:
        if overrides:
            raise BadInput(f"--set {overrides[0]!r} replaces a setting of a recipe", "name one with --recipe")
        return {}
    from ridgefit.pipeline.recipe_file import load_sections

    return load_sections(path, overrides or ())


def _common(name: str, kind: Any, flag: str, text: str) -> inspect.Parameter:
    option = typer.Option(flag, help=text, show_default=False, rich_help_panel="Every command")
    return _parameter_of(name, kind, option, default=False if kind is bool else None)


def _parameter_of(name: str, kind: Any, info: Any, default: Any = None) -> inspect.Parameter:
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=default, annotation=Annotated[kind, info])


def _help(info: FieldInfo, required: str) -> str:
    text = (info.description or "") + _item_help(info.annotation)
    if required:
        text += f" [{required}]"
    elif not info.is_required() and info.default is not None and info.default != ():
        text += f" [default: {shown_default(info.default)}]"
    return text.replace("[", "\\[")  # else rich takes what is in brackets for a style


def _item_help(annotation: Any) -> str:
    """Settings that may follow a word of a list of settings; "" for other fields."""
    lists: dict[str, str] = {}
    for word, settings in kinds(item_type(annotation)).items():
        keys = ", ".join(f"{name}=" for name in list(settings.model_fields)[1:])
        lists.setdefault(keys, word)
    if len(lists) == 1:
        return f" (each may be followed by {next(iter(lists))})"
    each = "; ".join(f"{word} by {keys}" for keys, word in lists.items())
    return f" (may be followed: {each})" if lists else ""


def shown_default(value: object) -> str:
    """A default as a user would type it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ",".join(shown_default(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _metavar(annotation: Any) -> str:
    item = item_type(annotation)
    if item is not None:
        return f"{'|'.join(kinds(item)) or _metavar(item)},..."
    names = {int: "INTEGER", float: "NUMBER", Path: "PATH"}
    plain = next((names[branch] for branch in branches(annotation) if branch in names), "TEXT")
    return "|".join(choices(annotation)) or plain
