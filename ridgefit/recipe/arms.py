"""Settings of one arm of an evaluation."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from ridgefit.recipe.base import ArmKind, Settings
from ridgefit.recipe.idle import Idle
from ridgefit.recipe.rows import Correction, RowsField, Splice, row_label

_LATER = {"rows": (), "corrections": (), "correction_rows": 512, "splice": None}


class ArmSettings(Settings):
    """One way of handling the prompt's prefix in the late layers (paper table 3)."""

    kind: ArmKind = Field(description="what the late layers of a prefix row compute")
    split: int | None = Field(None, ge=1, description="ridge: the maps'; pop: two thirds of the depth")
    tail: int | None = Field(None, ge=1, description="last prompt rows that run every layer; pop: 1")
    sink_rows: int = Field(0, ge=0, description="first prompt rows that run every layer")
    maps: str | None = Field(
        None,
        min_length=1,
        description="ridge: maps of its own; a plain name is a candidate that solve kept beside --maps, "
        "anything with a / a file or folder",
    )
    rows: RowsField = Field((), description="selectors of further prefix rows that run every layer")
    corrections: tuple[Correction, ...] = Field(
        (), description="of filled keys and values, measured on each prompt's tail"
    )
    correction_rows: int = Field(512, ge=1, description="first tail rows that corrections are measured on")
    splice: Splice | None = Field(None, description="put exact keys, values or both in place of filled ones")
    name: str | None = Field(None, description="label in tables; made from the rest if absent")

    idle: ClassVar[tuple[Idle, ...]] = (
        Idle(
            ("split", "tail", "sink_rows"),
            lambda s: s.kind == "exact",
            "in the exact arm, which fills nothing",
        ),
        Idle(
            ("correction_rows",),
            lambda s: not s.corrections,
            "without corrections that are measured on them",
            "name corrections",
        ),
    )

    @model_serializer(mode="wrap")
    def _what_is_off_goes_unsaid(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Results from before there were rows and corrections keep their identity."""
        saved: dict[str, Any] = plain(self)
        return {n: value for n, value in saved.items() if n not in _LATER or getattr(self, n) != _LATER[n]}

    @property
    def label(self) -> str:
        """Name shown in tables and stored in results."""
        if self.name:
            return self.name
        parts: list[str] = [self.kind]
        if self.split is not None and self.kind != "exact":
            parts.append(f"s{self.split}")
        if self.maps is not None:
            parts.append(self.maps)
        if self.sink_rows:
            parts.append(f"+{self.sink_rows} sink rows")
        if self.rows:
            parts.append(f"+ {row_label(self.rows)}")
        if self.corrections:
            rows = f" ({self.correction_rows} rows)" if self.correction_rows != 512 else ""
            parts.append(f"+ {', '.join(self.corrections).replace('_', ' ')}{rows}")
        if self.splice:
            parts.append(f"+ exact {'keys and values' if self.splice == 'both' else self.splice}")
        return " ".join(parts)
