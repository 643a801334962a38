"""The base of every settings class, and values that several of them take."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

DType = Literal["bfloat16", "float16", "float32"]
Device = Annotated[
    str, Field(pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$", examples=["auto", "cpu", "mps", "cuda", "cuda:1"])
]
ArmKind = Literal["exact", "none", "identity", "ridge", "pop"]


class Settings(BaseModel):
    """Base of every settings class: immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
