"""A frozen refresh controller: one JSON file that knows which models, texts and sizes it was made for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from ridgefit.errors import BadInput
from ridgefit.files import canonical_json, read_json, sha256_bytes, write_json
from ridgefit.maps.fingerprint import Fingerprint

CONTROLLER = "controller.json"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class GateRule(_Frozen):
    """Thresholds on signals."""

    kind: Literal["gate"] = "gate"
    below: dict[str, float]
    above: dict[str, float]
    combine: Literal["any", "all"] = "any"


class LinearRule(_Frozen):
    """A weighted score of standardised signals, in the order of `signals`."""

    kind: Literal["linear"] = "linear"
    signals: tuple[str, ...]
    weights: tuple[float, ...]
    mean: tuple[float, ...]
    spread: tuple[float, ...]
    bias: float
    threshold: float

    @model_validator(mode="after")
    def _one_each(self) -> LinearRule:
        if len({len(self.signals), len(self.weights), len(self.mean), len(self.spread)}) != 1:
            raise ValueError("signals, weights, mean and spread must be equally many")
        return self


class NoRule(_Frozen):
    """No controller passed the selection: refresh periodically."""

    kind: Literal["none"] = "none"
    every: int


class RefreshController(_Frozen):
    """What `ridgefit calibrate refresh` freezes.

    Attributes:
        format: of this file.
        rule: when to refresh.
        interval: committed tokens between checks.
        min_gap: no refresh sooner after the last one.
        max_gap: always a refresh after so many; None for never.
        horizon: tokens by which the fit judged a refresh.
        cache: sizes of the draft cache it was made under.
        drafted: tokens drafted per round.
        temperature: of the decoding it was made under.
        target: identity of the target.
        draft: identity of the draft.
        fit: documents it was fitted on, by hash.
        select: documents it was selected on.
        test: documents it was tested on once.
        texts: lengths of prompts and outputs, and the instruction; None in files that do not say.
        scores: what was measured.
        versions: libraries.
    """

    format: Literal["ridgefit-refresh-1"] = "ridgefit-refresh-1"
    rule: GateRule | LinearRule | NoRule
    interval: int
    min_gap: int
    max_gap: int | None
    horizon: int
    cache: dict[str, Any]
    drafted: int
    temperature: float
    target: dict[str, Any]
    draft: dict[str, Any]
    fit: tuple[str, ...]
    select: tuple[str, ...]
    test: tuple[str, ...]
    texts: dict[str, Any] | None = None
    scores: dict[str, Any]
    versions: dict[str, str]

    @property
    def frozen_sha256(self) -> str:
        """Hash of everything but what the test found, so that a test changes nothing."""
        unsaid = {"texts"} if self.texts is None else set()  # files that do not say keep their hash
        frozen = self.model_dump(mode="json", exclude={"test", "scores"} | unsaid)
        return sha256_bytes(canonical_json(frozen))

    @property
    def fingerprint(self) -> Fingerprint:
        """The target, as repositories state a base model."""
        target = self.target
        return Fingerprint(
            family=str(target["family"]),
            name=str(target["name"]),
            revision=target.get("revision"),
            dims={"n_layers": int(target["layers"]), "vocab": int(target["vocab"])},
            dtype=target.get("dtype"),
            config_sha256=target.get("config_sha256"),
            tokenizer_sha256=target.get("tokenizer_sha256"),
        )

    def require_models(self, target: Mapping[str, Any], draft: Mapping[str, Any]) -> None:
        """Refuse models it was not made for.

        Raises:
            BadInput: which one, and what differs.
        """
        for role, own, given in (("target", self.target, target), ("draft", self.draft, draft)):
            for key in ("family", "config_sha256", "tokenizer_sha256", "weights_sample_sha256"):
                if own.get(key) != given.get(key):
                    raise BadInput(
                        f"the controller is of another {role} model ({own.get('name')}): {key} differs",
                        "calibrate one for this pair with `ridgefit calibrate refresh`",
                    )

    def require_unseen(self, documents: Iterable[str]) -> None:
        """Refuse texts it was fitted or selected on.

        Raises:
            BadInput: how many of them.
        """
        met = {*self.fit, *self.select} & set(documents)
        if met:
            raise BadInput(
                f"{len(met)} of the documents were used to make the controller, so they cannot test it",
                "evaluate it on other texts",
            )


def save_controller(controller: RefreshController, folder: Path) -> None:
    """Write `controller.json` with its hash."""
    content = controller.model_dump(mode="json")
    write_json(folder / CONTROLLER, {"controller": content, "sha256": sha256_bytes(canonical_json(content))})


def load_controller(path: Path) -> RefreshController:
    """The controller in a folder or file.

    Raises:
        BadInput: it is missing, damaged or of another format.
    """
    if not path.exists():
        raise BadInput(f"controller {path} does not exist", "name a folder of `ridgefit calibrate refresh`")
    file = path / CONTROLLER if path.is_dir() else path
    found = read_json(file)
    if not isinstance(found, dict) or set(found) != {"controller", "sha256"}:
        raise BadInput(f"{file} is no refresh controller", "name a folder of `ridgefit calibrate refresh`")
    if sha256_bytes(canonical_json(found["controller"])) != found["sha256"]:
        raise BadInput(f"{file} was changed after it was frozen: its hash differs", "calibrate again")
    try:
        return RefreshController.model_validate(found["controller"])
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise BadInput(
            f"{file} is no refresh controller: {'.'.join(map(str, first['loc']))} {first['msg'].lower()}",
            "calibrate again",
        ) from error
