"""What a recall evaluation found: gates, then needles, loss and attention mass by arm."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from ridgefit.errors import BadInput
from ridgefit.files import read_json

EVALUATION = "recall.json"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Gate(_Frozen):
    """A condition without which the tables say nothing.

    Attributes:
        name: what is checked.
        passed: whether it holds.
        detail: the numbers behind it.
    """

    name: str
    passed: bool
    detail: str


class Interval(_Frozen):
    """A mean with its two-sided 95 % interval; ends are None with a single sample."""

    mean: float
    low: float | None
    high: float | None
    n: int


class LayerCost(_Frozen):
    """What an arm read in one layer.

    Attributes:
        kept: closed rows that stay attended, sinks included.
        archived: the other closed rows.
        dims_per_row: cache entries read per row and step (VestigeKV, Eq. 2).
        fetched: mean rows fetched per step.
        p50: rows fetched that half of the steps do not exceed.
        p90: the same for 90 %.
        p99: the same for 99 %.
        fire_rate: share of steps that fetched.
        overflow_rate: share of steps that read everything.
        z: certificate factor of the last sample.
        gate: entropy gate of the last sample; None where it is open.
        hard: hard calibration queries of the last sample.
    """

    kept: int
    archived: int
    dims_per_row: float
    fetched: float
    p50: int
    p90: int
    p99: int
    fire_rate: float
    overflow_rate: float
    z: float | None
    gate: float | None
    hard: int | None


class ArmResult(_Frozen):
    """One arm.

    Attributes:
        arm: label.
        role: see `RecallArm`.
        ratio: closed rows per kept row.
        intact: share of answers whose loss rose by less than the limit, Wilson interval.
        retrieved: share of answers whose every token is the likeliest one.
        loss: rise of the continuation's loss over dense, nats per token, paired bootstrap.
        mass: dense attention on rows that the arm reads, share.
        layers: costs on needle prompts (on documents where there are none), by layer.
    """

    arm: str
    role: Literal["dense", "selector", "recall", "policy", "identity", "floor"]
    ratio: float | None
    intact: Interval | None
    retrieved: Interval | None
    loss: Interval | None
    mass: Interval | None
    layers: dict[int, LayerCost]

    @field_validator("layers")
    @classmethod
    def _in_order(cls, value: dict[int, LayerCost]) -> dict[int, LayerCost]:
        """JSON sorts numbers as words."""
        return dict(sorted(value.items()))


class RecallResult(_Frozen):
    """A whole evaluation.

    Attributes:
        format: 1.
        identity: settings, model, policies, versions, hashes of all samples.
        gates: conditions that must hold.
        dense_loss: continuation loss of the dense model, nats per token.
        arms: dense first.
    """

    format: Literal[1] = 1
    identity: dict[str, Any]
    gates: tuple[Gate, ...]
    dense_loss: float | None
    arms: tuple[ArmResult, ...]

    @property
    def passed(self) -> bool:
        """Whether every gate holds."""
        return all(gate.passed for gate in self.gates)


def load_recall_result(folder: Path) -> RecallResult:
    """Read `recall.json` of a results folder.

    Raises:
        BadInput: it is not there or not readable.
    """
    try:
        return RecallResult.model_validate(read_json(folder / EVALUATION))
    except ValidationError as error:
        raise BadInput(f"{folder / EVALUATION} is not readable", "run the evaluation again") from error
