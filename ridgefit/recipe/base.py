"""The base of every settings class, and values that several of them take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from ridgefit.files import names_a_path
from ridgefit.recipe.idle import Idle

DType = Literal["bfloat16", "float16", "float32"]
Device = Annotated[
    str, Field(pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$", examples=["auto", "cpu", "mps", "cuda", "cuda:1"])
]


def _still_a_path(given: Any) -> Any:
    """`./org/name`, which Path shortens to what looks like a repository's name, in full where nothing is."""
    if not isinstance(given, str) or not names_a_path(given) or names_a_path(str(Path(given))):
        return given
    return given if Path(given).exists() else Path(given).absolute()


PathOrName = Annotated[Path, BeforeValidator(_still_a_path)]
"""A file or folder, or the name of a Hub repository."""
ArmKind = Literal["exact", "none", "identity", "ridge", "pop"]


class Settings(BaseModel):
    """Base of every settings class: immutable, and an unknown key is an error.

    Attributes:
        idle: which fields do nothing when; see `require_used`. Not a validator, since a part of a recipe may
            set what only the whole gives a meaning.
    """

    idle: ClassVar[tuple[Idle, ...]] = ()
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
