"""Settings that would do nothing: a choice that is silently dropped lets its user believe in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from ridgefit.errors import BadInput

Place = tuple[str | int, ...]
Written = Callable[[Place], str]


@dataclass(frozen=True)
class Idle:
    """Fields of a settings class that do nothing for some values of its others.

    Attributes:
        fields: their names.
        when: whether they do nothing, from the settings.
        why: ends the sentence "… would do nothing", such as "without a rank".
        mend: what else could be meant; "" where leaving them out is all there is.
    """

    fields: tuple[str, ...]
    when: Callable[[Any], bool]
    why: str
    mend: str = ""


def as_option(place: Place) -> str:
    """`("arms", 0, "tail")` as `--arms[0].tail`, which is how refusals of a command line name it."""
    first, *rest = place
    inner = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in rest)
    return f"--{str(first).replace('_', '-')}{inner}"


def as_key(place: Place) -> str:
    """The same as a recipe names it: `arms[0].tail`."""
    first, *rest = place
    return f"{first}" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in rest)


def require_used(settings: BaseModel, *, written: Written = as_option, place: Place = ()) -> None:
    """Refuse settings, and those inside them, that their classes' `idle` rules say do nothing.

    Args:
        settings: what was asked for.
        written: how a field is named.
        place: where `settings` stand in what the user wrote.

    Raises:
        BadInput: naming the fields that are set and why they have no effect.
    """
    for kind in type(settings).__mro__:
        for rule in vars(kind).get("idle", ()):
            if rule.when(settings):
                refuse_idle(settings, rule.fields, rule.why, rule.mend, written=written, place=place)
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            require_used(value, written=written, place=(*place, name))
        elif isinstance(value, tuple):
            for index, item in enumerate(value):
                if isinstance(item, BaseModel):
                    require_used(item, written=written, place=(*place, name, index))


def refuse_idle(
    settings: BaseModel,
    names: Iterable[str],
    why: str,
    mend: str = "",
    *,
    written: Written = as_option,
    place: Place = (),
) -> None:
    """Refuse fields that are set to something else than their default.

    Args:
        settings: that hold them.
        names: fields that would do nothing.
        why: ends the sentence "… would do nothing".
        mend: what else could be meant.
        written: how a field is named.
        place: where `settings` stand.

    Raises:
        BadInput: naming those that are set.
    """
    fields = type(settings).model_fields
    idle = [name for name in names if getattr(settings, name) != fields[name].default]
    if idle:
        listed = ", ".join(written((*place, name)) for name in idle)
        out = f"leave {'it' if len(idle) == 1 else 'them'} out"
        raise BadInput(f"{listed} would do nothing {why}", f"{mend}, or {out}" if mend else out)
