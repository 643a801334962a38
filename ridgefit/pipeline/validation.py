"""A pydantic refusal as one sentence: which key, what is wrong with it, and the nearest known name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from ridgefit.errors import BadInput

Location = tuple[str | int, ...]
M = TypeVar("M", bound=BaseModel)


def dotted(location: Location) -> str:
    """`("evaluate", "arms", 0, "kind")` as `evaluate.arms[0].kind`."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def validated(
    model: type[M],
    values: object,
    *,
    name: Callable[[Location], str] = dotted,
    place: Callable[[Location], str] = lambda _: "",
) -> M:
    """`values` as a checked `model`.

    Args:
        model: a settings class.
        values: a mapping, usually from YAML or the command line.
        name: how a key is written where the user wrote it.
        place: where a key stands, such as "recipe.yaml line 3: ", put before the sentence.

    Raises:
        BadInput: one sentence about the first key that is wrong, and how many more there are.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise refusal(error, model, name=name, place=place) from error


def refusal(
    error: ValidationError,
    model: type[BaseModel],
    *,
    name: Callable[[Location], str] = dotted,
    place: Callable[[Location], str] = lambda _: "",
) -> BadInput:
    """The exception `validated` raises, for a `ValidationError` that `model` raised elsewhere."""
    errors = _one_per_key(error, model)
    location, first = errors[0]
    what, fix = _sentence(first, location, model, name)
    more = len(errors) - 1
    if more:
        what += f" (and {more} more {'key is' if more == 1 else 'keys are'} wrong)"
    return BadInput(f"{place(location)}{what}", fix)


def nearest(word: str, known: Sequence[str]) -> str | None:
    """The known name most like `word`, if any is like it; hyphens and underscores are the same."""
    plain = {item.replace("-", "_").lower(): item for item in known}
    found = difflib.get_close_matches(word.replace("-", "_").lower(), plain, n=1, cutoff=0.5)
    return plain[found[0]] if found else None


def known_names(model: Any, location: Location) -> tuple[str, ...]:
    """Keys that may stand beside the last part of `location` in a settings class."""
    for branch in _branches(model):
        if isinstance(branch, type) and issubclass(branch, BaseModel):
            if len(location) <= 1 or location[0] not in branch.model_fields:
                return tuple(branch.model_fields)
            return known_names(branch.model_fields[str(location[0])].annotation, location[1:])
        if get_origin(branch) is tuple and location and isinstance(location[0], int):
            return known_names(get_args(branch)[0], location[1:])
        if isinstance(branch, _Tagged) and location and location[0] in branch.members:
            return known_names(branch.members[str(location[0])], location[1:])
    return ()


class _Tagged:
    """Members of a discriminated union by the value that names them."""

    def __init__(self, members: dict[str, Any]) -> None:
        self.members = members


def _branches(annotation: Any) -> list[Any]:
    """What a value of this annotation may be: unions taken apart, discriminated ones kept together."""
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        key = next((item.discriminator for item in metadata if getattr(item, "discriminator", None)), None)
        if isinstance(key, str):
            return [_Tagged({get_args(m.model_fields[key].annotation)[0]: m for m in get_args(inner)})]
        return _branches(inner)
    if get_origin(annotation) in (Union, UnionType):
        return [branch for member in get_args(annotation) for branch in _branches(member)]
    return [annotation]


def _written(location: Location, model: Any) -> Location:
    """The location without what pydantic adds to tell members of a union apart."""
    kept: list[str | int] = []
    annotation: Any = model
    for part in location:
        step = _step(annotation, part)
        if step is None:
            # The key itself is unknown, or the part is pydantic's name for a member of a union.
            if any(isinstance(b, type) and issubclass(b, BaseModel) for b in _branches(annotation)):
                kept.append(part)
            break
        annotation, is_tag = step
        if not is_tag:
            kept.append(part)
    return tuple(kept)


def _step(annotation: Any, part: str | int) -> tuple[Any, bool] | None:
    for branch in _branches(annotation):
        if isinstance(branch, _Tagged) and part in branch.members:
            return branch.members[str(part)], True
        if isinstance(branch, type) and issubclass(branch, BaseModel) and part in branch.model_fields:
            return branch.model_fields[str(part)].annotation, False
        if get_origin(branch) is tuple and isinstance(part, int):
            return get_args(branch)[0], False
    return None


def _one_per_key(error: ValidationError, model: type[BaseModel]) -> list[tuple[Location, Any]]:
    """Keys and what is wrong with them, unknown keys first, since they explain what is then missing.

    A union reports every member that did not fit, and a list whose items were refused reports that it
    is too short as well: one error for a key, and none for what only contains it.
    """
    unique: dict[Location, Any] = {}
    for item in error.errors(include_url=False):
        location = _written(item["loc"], model)
        if not any(other[: len(location)] == location for other in unique):
            unique[location] = item
    return sorted(unique.items(), key=lambda pair: pair[1]["type"] != "extra_forbidden")


def _sentence(
    error: Any, location: Location, model: type[BaseModel], name: Callable[[Location], str]
) -> tuple[str, str]:
    key, kind = name(location), error["type"]
    if kind == "extra_forbidden":
        close = nearest(str(location[-1]), known_names(model, error["loc"]))
        return f"there is no setting {key}", f"did you mean {name((*location[:-1], close))}" if close else ""
    if kind == "missing":
        return f"{key} is required", ""
    if kind in {"union_tag_invalid", "union_tag_not_found"}:
        tag = str(error["ctx"]["discriminator"]).strip("'")
        choices = [choice for branch in _at(model, location) for choice in _tags(branch)]
        given = error["ctx"].get("tag")
        said = "is missing" if given is None else f"is {given!r}"
        return f"{name((*location, tag))} {said}, must be one of {', '.join(choices)}", _meant(given, choices)
    message = str(error["msg"]).removeprefix("Value error, ")
    if kind == "value_error":
        return f"{key}: {message}" if location else message, ""
    choices = [
        str(v) for branch in _at(model, location) if get_origin(branch) is Literal for v in get_args(branch)
    ]
    if kind == "literal_error":
        message = f"must be one of {', '.join(choices)}"
    if kind == "model_type":
        message = "must hold settings"
    message = message.replace("Input should", "must").replace("should", "must")
    message = message.replace("valid tuple", "list").replace("Tuple", "it")
    return f"{key} is {_shown(error['input'])}, {message[:1].lower()}{message[1:]}", _meant(
        error["input"], choices
    )


def _at(model: Any, location: Location) -> list[Any]:
    """What the value at a location may be."""
    annotation: Any = model
    for part in location:
        step = _step(annotation, part)
        if step is None:
            return []
        annotation = step[0]
    return _branches(annotation)


def _tags(branch: Any) -> list[str]:
    return list(branch.members) if isinstance(branch, _Tagged) else []


def _meant(word: object, choices: Sequence[str]) -> str:
    close = nearest(str(word), choices)
    return f"did you mean {close}" if close else ""


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
