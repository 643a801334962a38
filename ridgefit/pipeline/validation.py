"""A pydantic refusal as one sentence: which key, what is wrong with it, and the nearest known name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ridgefit.errors import BadInput
from ridgefit.pipeline.fields import choices, item_type, kinds, settings_classes

Location = tuple[str | int, ...]
M = TypeVar("M", bound=BaseModel)
# Of pydantic's sentences, those that say one thing twice.
_PLAIN = {
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "bool_parsing": "must be true or false",
    "too_short": "must hold at least one",
}


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
    """Keys that may stand where the last part of `location` stands in a settings class."""
    annotation: Any = model
    for part in location[:-1]:
        step = _step(annotation, part)
        if step is None:
            break
        annotation = step[0]
    return tuple(name for settings in settings_classes(annotation) for name in settings.model_fields)


def _written(location: Location, model: Any) -> Location:
    """The location as the user wrote it: without pydantic's names for the members of a union."""
    kept: list[str | int] = []
    annotation: Any = model
    for part in location:
        step = _step(annotation, part)
        if step is None:
            if settings_classes(annotation):
                kept.append(part)  # a key that nobody knows
            break
        annotation, is_kind = step
        if not is_kind:
            kept.append(part)
    return tuple(kept)


def _step(annotation: Any, part: str | int) -> tuple[Any, bool] | None:
    """What stands under `part`, and whether `part` only tells which member of a union is meant."""
    if isinstance(part, int):
        item = item_type(annotation)
        return None if item is None else (item, False)
    for settings in settings_classes(annotation):
        if part in settings.model_fields:
            return settings.model_fields[part].annotation, False
    found = kinds(annotation).get(part)
    return None if found is None else (found, True)


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
        return f"there is no setting {key}", f"did you mean {name((*location[:-1], close))}?" if close else ""
    if kind == "missing":
        return f"{key} is required", ""
    if kind in {"union_tag_invalid", "union_tag_not_found"}:
        tag = str(error["ctx"]["discriminator"]).strip("'")
        words = list(kinds(_at(model, location)))
        given = error["ctx"].get("tag")
        said = "is missing" if given is None else f"is {given!r}"
        return f"{name((*location, tag))} {said}, must be one of {', '.join(words)}", _meant(given, words)
    message = str(error["msg"]).removeprefix("Value error, ")
    if kind == "value_error":
        return f"{key}: {message}" if location else message, ""
    words = choices(_at(model, location))
    if kind == "literal_error":
        message = f"must be one of {', '.join(words)}"
    if kind == "model_type":
        message = "must hold settings"
    if kind in _PLAIN:
        message = _PLAIN[kind]
    if kind == "string_pattern_mismatch":
        message = f"must look like {_examples(model, location)}"
    message = message.replace("Input should", "must").replace("should", "must")
    message = message.replace("valid tuple", "list").replace("Tuple", "it")
    return f"{key} is {_shown(error['input'])}, {message[:1].lower()}{message[1:]}", _meant(
        error["input"], words
    )


def _examples(model: type[BaseModel], location: Location) -> str:
    """What a field of a certain form looks like, as its settings class shows it."""
    for settings in settings_classes(_at(model, location[:-1]) if location[1:] else model):
        field = settings.model_fields.get(str(location[-1]))
        if field is not None and field.examples:
            return " or ".join(map(str, field.examples))
    return "its pattern"


def _at(model: Any, location: Location) -> Any:
    """Annotation of the value at a location, None where there is none."""
    annotation: Any = model
    for part in location:
        step = _step(annotation, part)
        if step is None:
            return None
        annotation = step[0]
    return annotation


def _meant(word: object, known: Sequence[str]) -> str:
    close = nearest(str(word), known)
    return f"did you mean {close}?" if close else ""


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
