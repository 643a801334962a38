"""Recall policies: which cache rows stay attended, how the others are found again, and for which model.

A folder with `policy.json` and, where thresholds are frozen in it, `policy.safetensors` with an fp32 sketch
basis `layer.<L>` `[rank, latent]` for each latent layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from torch import Tensor

from ridgefit.errors import BadInput
from ridgefit.files import new_folder, read_json, write_json
from ridgefit.maps.fingerprint import Fingerprint
from ridgefit.maps.tensorfile import TensorFile
from ridgefit.maps.tensorwrite import TensorSpec, write_tensors

POLICY = "policy.json"
TENSORS = "policy.safetensors"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RecallSettings(_Frozen):
    """What a recall policy does (VestigeKV, section 4; defaults of its published engine).

    Attributes:
        selector: what ranks closed rows; a name of `runtime.recall.selectors`.
        ratio: closed rows per kept row; 32 keeps 1/32. The number kept grows with the cache.
        rows: a fixed number of kept rows in place of `ratio`; 0 keeps the sinks alone.
        kappa: rFFT bins that count as low-pass, the mean included.
        window: rows are closed, scored and never scored again in blocks, or the whole prefix is one block.
        block: rows of a block; of a prefix, only those that close after it.
        sinks: first rows, always kept, on top of the others.
        recent: newest rows that are not closed yet, whatever their block.
        recall: whether archived rows are scanned for and fetched.
        rank: width of the sketch of a row's latent.
        top_rows: rows that one head may ask for in one step; None for no limit.
        cap: rows fetched in one step above which the step attends to everything.
        placement: where archived rows lie.
        thresholds: frozen in the policy, or found anew from each request's own prompt.
        target: share of hard queries whose best row shall be fetched.
        conformal: what z is calibrated against: beating the kept rows, or the row's true score.
        z: fixed certificate factor in place of a calibrated one; infinity fetches every archived row.
        z_max: largest z, and z itself where there is too little to calibrate from.
        gate: whether heads whose attention is concentrated skip the scan.
        gate_off: share of scanning queries above which the gate is left open.
        control: a policy for a rotated branch, whose premise does not hold.
        seed: of the random selector.
    """

    selector: str = "branch"
    ratio: float = Field(32.0, ge=1)
    rows: int | None = Field(None, ge=0)
    kappa: int = Field(16, ge=1)
    window: Literal["block", "prefix"] = "block"
    block: int = Field(4096, ge=2)
    sinks: int = Field(4, ge=0)
    recent: int = Field(0, ge=0)
    recall: bool = True
    rank: int = Field(64, ge=1)
    top_rows: int | None = Field(None, ge=1)
    cap: int = Field(4096, ge=0)
    placement: Literal["device", "host"] = "device"
    thresholds: Literal["policy", "prompt"] = "policy"
    target: float = Field(0.90, gt=0, lt=1)
    conformal: Literal["max1", "true"] = "max1"
    z: float | None = None
    z_max: float = Field(8.0, gt=0)
    gate: bool = True
    gate_off: float = Field(0.60, ge=0, le=1)
    control: bool = False
    seed: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _low_pass_below_block(self) -> RecallSettings:
        if self.block <= 2 * self.kappa - 1:
            raise ValueError(
                f"a block of {self.block} rows lies in the span of {self.kappa} low-pass bins, which leaves "
                f"nothing to rank by: use at least {2 * self.kappa} rows or fewer bins"
            )
        return self

    def kept(self, closed: int) -> int:
        """Rows kept of `closed` ones, sinks not counted; Python's rounding, halves to even."""
        wanted = self.rows if self.rows is not None else max(1, round(closed / self.ratio))
        return min(wanted, closed)


class LayerThresholds(_Frozen):
    """What calibration found for one layer.

    Attributes:
        z: factor on the certificate; the mean over held-out documents where each prompt finds its own.
        gate: entropy in nats above which a head scans; None leaves the gate open.
        queries: (position, head) pairs that z and gate rest on.
        hard: of those, pairs whose best row is archived.
        held_out: pairs of held-out documents that the shares below rest on.
        held_out_hard: of those, hard ones.
        recall: share of the hard ones whose best row their own head asked for; None without any.
        recall_union: the same where any head asked for it, which is what the step attends to.
        fire_rate: share of held-out pairs that asked for at least one row.
        rows_per_step: mean rows fetched per position, the union over heads.
        archive: mean archived rows.
    """

    z: float
    gate: float | None = None
    queries: int = 0
    hard: int = 0
    held_out: int = 0
    held_out_hard: int = 0
    recall: float | None = None
    recall_union: float | None = None
    fire_rate: float | None = None
    rows_per_step: float | None = None
    archive: float | None = None


class PolicyManifest(_Frozen):
    """`policy.json`.

    Attributes:
        format: 1.
        settings: what the policy does.
        fingerprint: of the model.
        layers: thresholds and what they reached, by layer number; empty for a policy that was not judged.
        probe: largest spread of one vector's branch over positions, by layer.
        provenance: documents, tokens and versions behind the thresholds.
    """

    format: Literal[1] = 1
    settings: RecallSettings
    fingerprint: Fingerprint
    layers: dict[int, LayerThresholds] = {}
    probe: dict[int, float] = {}
    provenance: dict[str, Any] = {}

    @field_validator("layers", "probe")
    @classmethod
    def _in_order(cls, value: dict[int, Any]) -> dict[int, Any]:
        """JSON sorts numbers as words."""
        return dict(sorted(value.items()))


def read_policy(folder: Path) -> PolicyManifest:
    """`policy.json` of a folder.

    Raises:
        BadInput: there is none, or it holds a key this version does not know.
    """
    path = folder / POLICY
    if not folder.exists():
        raise BadInput(f"policy folder {folder} does not exist", "name one of `ridgefit calibrate recall`")
    if not path.is_file():
        raise BadInput(f"{folder} holds no recall policy", "make one with `ridgefit calibrate recall`")
    try:
        return PolicyManifest.model_validate(read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"{path} is not a readable policy ({where}: {first['msg']})") from error


@dataclass(frozen=True)
class RecallPolicy:
    """A policy with its sketch bases `[rank, latent]` fp32 by layer."""

    manifest: PolicyManifest
    bases: Mapping[int, Tensor] = field(default_factory=dict)

    @property
    def settings(self) -> RecallSettings:
        """What the policy does."""
        return self.manifest.settings

    def save(self, folder: Path) -> None:
        """Write the folder, whole or not at all.

        Raises:
            BadInput: it exists and is not empty, or cannot be written.
        """
        with new_folder(folder) as partial:
            if self.bases:
                specs = [
                    TensorSpec(f"layer.{layer}", torch.float32, tuple(basis.shape))
                    for layer, basis in self.bases.items()
                ]
                named = {f"layer.{layer}": basis for layer, basis in self.bases.items()}
                write_tensors(partial / TENSORS, specs, lambda name: named[name].cpu(), {"kind": "recall"})
            write_json(partial / POLICY, self.manifest.model_dump(mode="json"))

    @classmethod
    def load(cls, folder: Path) -> RecallPolicy:
        """Read a policy folder.

        Raises:
            BadInput: no policy there, a key this version does not know, or a basis missing or misshapen.
        """
        manifest = read_policy(folder)
        bases = {}
        if manifest.layers and manifest.settings.thresholds == "policy":
            file = TensorFile(folder / TENSORS)
            for layer in manifest.layers:
                entry = file.tensors.get(f"layer.{layer}")
                if entry is None or len(entry.shape) != 2 or entry.dtype != torch.float32:
                    raise BadInput(f"{folder / TENSORS} has no fp32 basis for layer {layer}")
                bases[layer] = file.read(f"layer.{layer}")
        return cls(manifest, bases)

    def check(self, identity: Mapping[str, Any]) -> list[str]:
        """Compare with a loaded model.

        Returns:
            One line per difference that does not forbid the use.

        Raises:
            BadInput: the policy belongs to another model.
        """
        return self.manifest.fingerprint.check(identity, subject="policy")
