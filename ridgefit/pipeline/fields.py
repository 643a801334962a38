"""What a settings field may hold, read from its annotation: choices, items of a list, nested settings."""

from __future__ import annotations

from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel


def branches(annotation: Any) -> list[Any]:
    """Everything a value of this annotation may be: unions taken apart, metadata left out."""
    if get_origin(annotation) is Annotated:
        return branches(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [branch for member in get_args(annotation) for branch in branches(member)]
    return [annotation]


def choices(annotation: Any) -> list[str]:
    """The words a field may be set to; empty where it is not a choice of words."""
    literals = (branch for branch in branches(annotation) if get_origin(branch) is Literal)
    return [str(value) for literal in literals for value in get_args(literal)]


def item_type(annotation: Any) -> Any | None:
    """What a list field holds; None for a field that is not a list."""
    return next((get_args(branch)[0] for branch in branches(annotation) if get_origin(branch) is tuple), None)


def settings_classes(annotation: Any) -> list[type[BaseModel]]:
    """Settings classes among what a value may be."""
    return [
        branch
        for branch in branches(annotation)
        if isinstance(branch, type) and issubclass(branch, BaseModel)
    ]


def kinds(annotation: Any) -> dict[str, type[BaseModel]]:
    """Settings classes among what a value may be, by each word that their first field may be set to.

    `{"nll": NllSettings, …}` for a task, `{"exact": ArmSettings, "none": ArmSettings, …}` for an arm.
    """
    return {
        word: settings
        for settings in settings_classes(annotation)
        for word in choices(next(iter(settings.model_fields.values())).annotation)
    }
