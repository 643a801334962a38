"""Settings of rows that are computed exactly, and of what is done to filled ones.

Each class here is the settings of a selector of the same name in the runtime. In a recipe a selector is a
word (`special`), a word with its number (`sinks 4`), a word with settings (`attention share=0.2`), or a
mapping (`{lexical_net: {run: 5}}`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    field_validator,
    model_serializer,
)

from ridgefit.recipe.base import Settings
from ridgefit.recipe.idle import Idle

Splice = Literal["keys", "values", "both"]
Correction = Literal["value_rescale", "key_rescale", "key_shift", "key_temperature"]
Share = Annotated[
    float | None, Field(gt=0, le=1, description="rows, as a share of the prompt; 0.1 if there is no count")
]
Count = Annotated[int | None, Field(ge=1, description="rows")]
Layers = Annotated[
    tuple[int, ...] | None,
    Field(min_length=1, description="exact layers; default: those of 3, 7, 11, 15 below the split"),
]


class PooledSettings(Settings):
    """A ranking in which neighbours lift one another."""

    select: str = Field(description="selector; here so that the word stands before everything else")
    pool: int = Field(
        1, ge=1, description="a row counts as the highest of this many around it, an odd number; 1: itself"
    )

    @field_validator("pool")
    @classmethod
    def _has_a_middle(cls, pool: int) -> int:
        if pool % 2 == 0:
            raise ValueError(f"a pool of {pool} rows has no middle one; use an odd number")
        return pool

    @model_serializer(mode="wrap")
    def _no_pool_goes_unsaid(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Results from before there was a pool keep their identity."""
        saved: dict[str, Any] = plain(self)
        return {name: value for name, value in saved.items() if name != "pool" or self.pool > 1}


class SinksSettings(Settings):
    """The prompt's first rows."""

    select: Literal["sinks"] = Field("sinks", description="first rows")
    count: int = Field(4, ge=1, description="rows")


class SpecialSettings(Settings):
    """Control, unknown and user-defined tokens."""

    select: Literal["special"] = Field("special", description="special tokens")


class DigitsSettings(Settings):
    """Tokens that hold a digit."""

    select: Literal["digits"] = Field("digits", description="tokens with a digit")


class ProtectedSettings(Settings):
    """The rarest tokens of some classes (RidgeFill section 2.4)."""

    select: Literal["protected"] = Field("protected", description="rare tokens of some classes")
    share: float = Field(0.25, gt=0, le=1, description="rows, as a share of those of the classes")
    classes: tuple[Literal["cap", "mixed", "piece"], ...] = Field(
        ("cap", "mixed", "piece"), min_length=1, description="classes of tokens"
    )
    frequencies: Path | None = Field(None, description="frequency table; default: the one beside the maps")


class LexicalNetSettings(Settings):
    """Sentences that the end of the prompt quotes (RidgeFill section 2.4)."""

    select: Literal["lexical_net"] = Field("lexical_net", description="sentences that the question quotes")
    run: int = Field(4, ge=1, description="words in a row that must be shared")
    window: int = Field(64, ge=1, description="last content tokens that may quote")
    rare: int = Field(2, ge=1, description="most times that one of the words may occur in the prefix")
    sentence_rows: int = Field(80, ge=1, description="first rows kept of a sentence")
    share: float = Field(0.05, gt=0, le=1, description="most rows kept, as a share of the prefix")


class AttentionSettings(PooledSettings):
    """Rows that the last rows attend to in exact lower layers (RidgeFill section 2.4)."""

    select: Literal["attention"] = Field("attention", description="rows that the last rows attend to")
    share: Share = None
    count: Count = None
    window: int = Field(64, ge=1, description="last rows that ask")
    layers: Layers = None


class QuestionBlindSettings(PooledSettings):
    """The same from the rows before the tail, which hold no question: a control."""

    select: Literal["question_blind"] = Field("question_blind", description="the same without the question")
    share: Share = None
    count: Count = None
    window: int = Field(64, ge=1, description="rows before the tail that ask")
    layers: Layers = None


class ProbeSettings(PooledSettings):
    """Rows that the last rows attend to in the late layers over the filled cache (RidgeFill section 2.4)."""

    select: Literal["probe"] = Field("probe", description="rows that the late layers attend to")
    share: Share = None
    count: Count = None
    window: int = Field(256, ge=1, description="last rows that ask; they must lie in the tail")
    base_rules: bool = Field(False, description="budget: what the base rules of the 27B would choose")
    factor: float = Field(1.0, gt=0, description="multiplies the base rules' budget")
    frequencies: Path | None = Field(None, description="frequency table; default: the one beside the maps")

    idle: ClassVar[tuple[Idle, ...]] = (
        Idle(("factor", "frequencies"), lambda s: not s.base_rules, "without base rules", "set base_rules"),
    )


class RandomSettings(Settings):
    """Rows drawn at random: a control."""

    select: Literal["random"] = Field("random", description="random rows")
    share: Share = None
    count: Count = None
    seed: int = Field(0, ge=0, description="drawn from together with the prompt")
    like: str | None = Field(
        None, examples=["digits"], description="as many rows as this selector would choose"
    )


class LongerTailSettings(Settings):
    """The rows just before the tail: a control."""

    select: Literal["longer_tail"] = Field("longer_tail", description="rows just before the tail")
    share: Share = None
    count: Count = None


class ExplicitSettings(Settings):
    """Rows by number."""

    select: Literal["explicit"] = Field("explicit", description="rows by number")
    rows: tuple[Annotated[int, Field(ge=0)], ...] = Field(min_length=1, description="rows, counted from 0")


def _spelled_out(value: Any) -> Any:
    """A selector as a mapping, whichever way it was written."""
    if isinstance(value, str):
        name, *rest = value.split()
        given: dict[str, Any] = {"select": name}
        for word in rest:
            key, equals, text = word.partition("=")
            key = key if equals else "share" if "." in key else "count"
            text = text if equals else word
            listed = key in ("layers", "classes", "rows")
            given[key] = text.split("/") if listed else text
        return given
    if isinstance(value, dict) and " " in str(value.get("select", "")):
        return {
            **_spelled_out(value["select"]),
            **{key: own for key, own in value.items() if key != "select"},
        }
    if isinstance(value, dict) and "select" not in value and len(value) == 1:
        ((name, settings),) = value.items()
        if settings is None:
            return {"select": name}
        if isinstance(settings, dict):
            return {"select": name, **settings}
        return _spelled_out(f"{name} {settings}")
    return value


RowSettings = Annotated[
    SinksSettings
    | SpecialSettings
    | DigitsSettings
    | ProtectedSettings
    | LexicalNetSettings
    | AttentionSettings
    | QuestionBlindSettings
    | ProbeSettings
    | RandomSettings
    | LongerTailSettings
    | ExplicitSettings,
    Field(discriminator="select"),
]
RowsField = tuple[Annotated[RowSettings, BeforeValidator(_spelled_out)], ...]


def selector_settings(text: str) -> RowSettings:
    """Settings of one selector from one line, as in `attention share=0.2`.

    Raises:
        ValidationError: pydantic's, where it is none.
    """
    found: RowSettings = TypeAdapter(RowsField).validate_python([text])[0]
    return found


def row_label(rows: RowsField) -> str:
    """Selectors as a person would write them, settings that are not the default in brackets."""
    return ", ".join(_one_label(settings) for settings in rows)


def _one_label(settings: Any) -> str:
    name = settings.select.replace("_", " ")
    own = settings.model_dump(mode="json", exclude_defaults=True, exclude={"select"})
    if set(own) == {"share"}:
        return f"{name} {100 * own['share']:g} %"
    if set(own) == {"count"}:
        return f"{name} {own['count']}"
    if set(own) == {"like"}:
        return f"{name} like {own['like']}"
    given = " ".join(f"{key}={_plain(value)}" for key, value in own.items())
    return f"{name} ({given})" if given else name


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return "/".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
