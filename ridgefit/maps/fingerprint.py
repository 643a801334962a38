"""Which model maps belong to: what must agree before they are applied, and what is worth a warning."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from ridgefit.errors import BadInput

_DIMS = ("n_layers", "hidden", "vocab", "kv_heads", "head_dim", "window")


class Fingerprint(BaseModel):
    """Identity of a base model as far as maps depend on it.

    Attributes:
        family: architecture family of the port.
        name: Hub name or folder name.
        revision: commit of the repository, if known.
        dims: sizes that must be equal: n_layers, hidden, vocab, kv_heads, head_dim, window.
        layer_kinds: one word per layer.
        dtype: compute dtype of the capture.
        config_sha256: of the model's config.
        tokenizer_sha256: of the tokenizer.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    family: str
    name: str
    revision: str | None = None
    dims: dict[str, int]
    layer_kinds: tuple[str, ...] = ()
    dtype: str | None = None
    config_sha256: str | None = None
    tokenizer_sha256: str | None = None

    @classmethod
    def of(cls, identity: Mapping[str, Any]) -> Fingerprint:
        """From a model's identity; keys that maps do not depend on are left out.

        A model loaded from a folder is named by the folder's last part, so that a checkpoint has the same
        fingerprint on every machine.

        Raises:
            BadInput: the identity lacks a needed key.
        """
        known = {key: identity[key] for key in cls.model_fields if key in identity}
        known["name"] = Path(known["name"]).name if _is_folder(known.get("name")) else known.get("name")
        known["dims"] = {key: identity[key] for key in _DIMS if identity.get(key) is not None}
        try:
            return cls.model_validate(known)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise BadInput(f"the model's identity is incomplete ({where}: {first['msg']})") from error

    def check(self, identity: Mapping[str, Any], *, subject: str = "maps") -> list[str]:
        """Compare with a loaded model.

        Args:
            identity: of the model that the maps shall be applied to.
            subject: what is checked, for the sentences.

        Returns:
            One line per difference that does not forbid the use: name, dtype, revision, config, a
            tokenizer that one side does not state, or an engine's own name for a family.

        Raises:
            BadInput: family, dimensions, layer kinds or tokenizer differ; names the field and both values.
        """
        model = Fingerprint.of(identity)
        # Equal sizes do not make equal layers: norms and rotary differ. Manifests of engines, which know no
        # hash of the config, name families in their own way: those are compared for a warning only.
        if self.family != model.family and self.config_sha256 and model.config_sha256:
            raise _refusal(subject, "family", self.family, model.family)
        for field, wanted in self.dims.items():
            if field in model.dims and model.dims[field] != wanted:
                raise _refusal(subject, field, wanted, model.dims[field])
        _check_kinds(subject, self.layer_kinds, model.layer_kinds)
        if self.tokenizer_sha256 and model.tokenizer_sha256:
            if self.tokenizer_sha256 != model.tokenizer_sha256:
                raise _refusal(subject, "tokenizer sha256", self.tokenizer_sha256, model.tokenizer_sha256)
            unchecked = []
        else:
            unchecked = ["the tokenizer was not checked: its hash is not known on both sides"]
        made = "maps were fitted on" if subject == "maps" else f"the {subject} was made for"
        differing = [
            f"{made} {field} {wanted}, this model has {found}"
            for field in ("family", "name", "dtype", "revision", "config_sha256")
            if (wanted := getattr(self, field)) is not None
            and (found := getattr(model, field)) is not None
            and wanted != found
        ]
        return differing + unchecked


def _is_folder(name: object) -> bool:
    return isinstance(name, str) and name.startswith(("/", ".", "~"))


def _check_kinds(subject: str, wanted: tuple[str, ...], found: tuple[str, ...]) -> None:
    if not wanted or not found or wanted == found:
        return
    if len(wanted) != len(found):
        raise _refusal(subject, "number of layers", len(wanted), len(found))
    layer = next(i for i, pair in enumerate(zip(wanted, found, strict=True)) if pair[0] != pair[1])
    raise _refusal(subject, f"kind of layer {layer}", wanted[layer], found[layer])


def _refusal(subject: str, field: str, wanted: object, found: object) -> BadInput:
    verb, made = ("do", "fitted on") if subject == "maps" else ("does", "made for")
    return BadInput(
        f"the {subject} {verb} not belong to this model: {field} is {wanted} in the {subject} and {found} in "
        "the model",
        f"use {subject} {made} this model" if subject == "maps" else f"use a {subject} {made} this model",
    )
