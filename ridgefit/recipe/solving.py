"""Settings of `ridgefit solve`: penalties, what maps read, and candidates to choose from."""

from __future__ import annotations

import re
from math import inf
from typing import Any, ClassVar, Literal

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from ridgefit.recipe.base import Settings
from ridgefit.recipe.idle import Idle

Metric = Literal["keys", "values", "both", "input"]
PLAIN = "plain"
LAYERS_PATTERN = r"^(all|first:[1-9][0-9]{0,3}|[0-9]{1,4}-[0-9]{1,4})$"
_OF_A_PROBE = (
    "probe_samples",
    "probe_strings",
    "probe_windows",
    "probe_batch",
    "probe_prompt",
    "probe_tail",
    "probe_sink_rows",
)
_WHOLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


def each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    """Features as they were given.

    Raises:
        ValueError: one is named twice.
    """
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{', '.join(names)} names {twice!r} twice; name each feature once")
    return names


class CandidateSettings(Settings):
    """One way for maps to read more than the split state.

    On a command line, and where YAML has a string, `previous-1+mlp/rank=32/layers=first:5`.
    """

    features: tuple[str, ...] = Field(min_length=1, description="what its maps read; state is always first")
    rank: int | None = Field(
        None, ge=1, description="width of the shared bottleneck for all but the state; default: none"
    )
    layers: str = Field(
        "all",
        pattern=LAYERS_PATTERN,
        examples=["all", "first:5", "16-20"],
        description="late layers that read more than the state: all, first few above the split, from-to",
    )
    metric: Metric = Field("keys", description="in what a bottleneck must lose little: late layers' keys, …")
    name: str | None = Field(None, description="label and folder name; made from the rest if absent")

    idle: ClassVar[tuple[Idle, ...]] = (
        Idle(("metric",), lambda s: s.rank is None, "without a bottleneck", "give a rank"),
    )

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, given: Any) -> Any:
        """`a+b/rank=32/layers=first:5` as a mapping."""
        if not isinstance(given, str):
            return given
        names, *settings = given.split("/")
        values: dict[str, Any] = {"features": [name for name in names.split("+") if name]}
        for item in settings:
            key, equals, value = item.partition("=")
            if not equals or key in values:
                raise ValueError(f"{given!r} is not FEATURE+FEATURE/rank=32/layers=first:5")
            values[key] = value
        return values

    @field_validator("features")
    @classmethod
    def _state_first(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        rest = tuple(name for name in names if name not in ("state", PLAIN))
        if len(set(rest)) != len(rest):
            raise ValueError(f"a candidate names a feature twice: {', '.join(names)}")
        return ("state", *rest)

    @field_validator("name")
    @classmethod
    def _folder_name(cls, name: str | None) -> str | None:
        if name is not None and not _WHOLE.fullmatch(name):
            raise ValueError(f"{name[:60]!r} is not a name of letters, digits, '.', '_', '+' and '-'")
        return name

    @model_validator(mode="after")
    def _plain_is_plain(self) -> CandidateSettings:
        if self.name == PLAIN and not self.plain:
            raise ValueError(f"only maps of the state alone may be called {PLAIN}")
        return self

    @property
    def plain(self) -> bool:
        """Whether its maps are the paper's."""
        return self.features == ("state",)

    @property
    def label(self) -> str:
        """Name in tables, and of its folder."""
        if self.name is not None:
            return self.name
        if self.plain:
            return PLAIN
        parts = ["+".join(self.features[1:])]
        if self.rank is not None:
            parts.append(f"r{self.rank}")
            if self.metric != "keys":
                parts.append(self.metric)
        if self.layers != "all":
            parts.append(self.layers.replace(":", ""))
        return "_".join(parts)


class SolveSettings(Settings):
    """From moments to maps."""

    penalty: Literal["mean-diag", "channel"] = Field(
        "mean-diag", description="alpha x trace(Sxx)/d (the paper), or on channels scaled to unit variance"
    )
    alphas: tuple[float, ...] = Field(
        (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0), min_length=1, description="penalty grid"
    )
    per_layer: bool = Field(False, description="one alpha per layer instead of one per split")
    drop_lead: bool = Field(False, description="leave the first positions of each window out of the fit")
    score_rows: int = Field(
        4096, ge=64, description="held-out rows, evenly spaced, on which penalties are scored"
    )
    features: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="what the maps read, of what was captured; auto chooses among the candidates by what "
        "they copy; default: all that was captured",
    )
    rank: int | None = Field(
        None, ge=1, description="width of one bottleneck for all features but the state; default: none"
    )
    layers: str = Field(
        "all",
        pattern=LAYERS_PATTERN,
        examples=["all", "first:5", "16-20"],
        description="late layers that read more than the state: all, first:5 above the split, or 16-20",
    )
    metric: Metric = Field(
        "keys", description="what of the late layers' inputs a bottleneck is made for: the keys they write, …"
    )
    candidates: tuple[CandidateSettings, ...] = Field(
        (),
        description="scored beside the maps, such as previous-1, previous-1/rank=32/layers=first:5; default "
        "with auto: every feature with several ranks",
    )
    keep_candidates: bool = Field(False, description="also write every candidate's maps, to candidates/NAME")
    probe_samples: int = Field(24, ge=2, description="prompts of the copying probe of candidates")
    probe_strings: Literal["mixed", "words", "numbers", "tokens"] = Field(
        "mixed", description="what is copied: random words, numbers in sentences, both in turn, or tokens"
    )
    probe_windows: int = Field(8, ge=1, description="held-out windows on which candidates' loss is taken")
    probe_batch: int = Field(1, ge=1, description="prompts or windows per forward pass of the probe")
    probe_prompt: int = Field(1024, ge=64, description="tokens of a copying prompt")
    probe_tail: int = Field(256, ge=1, description="exact rows at the end of a probe's prompt")
    probe_sink_rows: int = Field(4, ge=0, description="exact rows at its beginning")
    seed: int = Field(0, ge=0, description="seed of the copying probe")

    idle: ClassVar[tuple[Idle, ...]] = (
        Idle(("per_layer",), lambda s: len(s.alphas) == 1, "with one alpha to choose from", "give several"),
        Idle(("metric",), lambda s: s.rank is None, "without a bottleneck", "give a rank"),
        Idle(
            ("keep_candidates", *_OF_A_PROBE),
            lambda s: not s.compares,
            "without candidates",
            "name candidates, or features auto",
        ),
    )

    @field_validator("features", mode="before")
    @classmethod
    def _one_word(cls, given: Any) -> Any:
        """`features: auto` needs no brackets."""
        return (given,) if isinstance(given, str) else given

    @field_validator("features")
    @classmethod
    def _each_once(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if names is not None and "auto" in names[1:] + names[:-1]:
            raise ValueError("auto chooses the features itself; leave the others out, or leave auto out")
        return None if names is None else each_once(names)

    @model_validator(mode="after")
    def _grid(self) -> SolveSettings:
        if not all(0 <= a < inf for a in self.alphas) or len(set(self.alphas)) != len(self.alphas):
            raise ValueError("alphas must be distinct, finite and not negative")
        return self

    @model_validator(mode="after")
    def _one_way_to_choose(self) -> SolveSettings:
        if self.auto and (self.rank is not None or self.layers != "all" or self.metric != "keys"):
            raise ValueError(
                "with features auto, rank, layers and metric belong to the candidates: write --candidates "
                "previous-1/rank=32/layers=first:5"
            )
        labels = [candidate.label for candidate in self.candidates]
        twice = next((label for label in labels if labels.count(label) > 1), None)
        if twice is not None:
            raise ValueError(f"two candidates are called {twice!r}; give one of them another name")
        return self

    @model_serializer(mode="wrap")
    def _plain_maps_say_nothing_new(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What maps of the state alone do not use goes unsaid, so that their files keep their bytes."""
        saved: dict[str, Any] = plain(self)
        old = ("penalty", "alphas", "per_layer", "drop_lead", "score_rows")
        fields = type(self).model_fields
        return {
            name: value
            for name, value in saved.items()
            if name in old or getattr(self, name) != fields[name].default
        }

    @property
    def auto(self) -> bool:
        """Whether the maps are chosen among candidates."""
        return self.features == ("auto",)

    @property
    def compares(self) -> bool:
        """Whether candidates are scored at all."""
        return self.auto or bool(self.candidates)

    def wanted(self, captured: tuple[str, ...]) -> CandidateSettings:
        """The maps to write where they are not chosen."""
        return CandidateSettings(
            features=captured if self.features is None else self.features,
            rank=self.rank,
            layers=self.layers,
            metric=self.metric,
        )
