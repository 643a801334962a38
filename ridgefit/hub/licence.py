"""The licence of maps: fitted on a model's activations, they are published under the model's own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ridgefit.errors import BadInput

_ID = re.compile(r"[a-z0-9][a-z0-9.+-]{0,60}")
_META = (
    "Llama {version} is licensed under the Llama {version} Community License, "
    "Copyright © Meta Platforms, Inc. All Rights Reserved."
)
_GEMMA = (
    "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms. "
    "The maps in this repository are derived from a Gemma model; they are not part of Gemma."
)
# Base models whose makers name the licence by the model's name; for all others the base's card is asked.
_BY_NAME = (
    (re.compile(r"meta-llama/(?:Meta-)?Llama-(2|3|3\.1|3\.2|3\.3|4)-.*"), "llama{0}"),
    (re.compile(r"google/gemma-[123]n?-.*"), "gemma"),
)


@dataclass(frozen=True)
class Licence:
    """What the card and the files say.

    Attributes:
        id: as the Hub writes it.
        name: for "other" only.
        link: for "other" only.
        notice: text of the NOTICE file, "" where none is asked for.
        sentence: what the card must show beside it, or "".
    """

    id: str
    name: str | None = None
    link: str | None = None
    notice: str = ""
    sentence: str = ""

    @property
    def metadata(self) -> dict[str, str]:
        """Keys of the card's metadata."""
        found = {"license": self.id}
        if self.name:
            found["license_name"] = self.name
        if self.link:
            found["license_link"] = self.link
        return found


def licence_of(base_model: str, stated: str | None, base_card: Mapping[str, Any] | None) -> Licence:
    """The licence that maps of a base model inherit.

    Args:
        base_model: Hub name.
        stated: what the publisher says, or None.
        base_card: `license`, `license_name` and `license_link` of the base model's card, if it was read.

    Raises:
        BadInput: nobody states one, the publisher contradicts a licence that binds what is derived from the
            model, or the licence is "other" without a name and a link.
    """
    card = dict(base_card or {})
    inherited = _by_name(base_model) or _text(card.get("license"))
    chosen = stated or inherited
    if chosen is None:
        raise BadInput(f"the licence of the base model {base_model} is not known", "name it with --license")
    if not _ID.fullmatch(chosen):
        raise BadInput(f"{chosen[:60]!r} is not a licence as the Hub writes them", "for example apache-2.0")
    if inherited and chosen != inherited and (inherited.startswith("llama") or inherited == "gemma"):
        raise BadInput(
            f"maps of {base_model} inherit its licence {inherited}, not {chosen}", "leave --license out"
        )
    if chosen.startswith("llama"):
        version = chosen.removeprefix("llama") or "2"
        return Licence(chosen, notice=_META.format(version=version) + "\n", sentence="Built with Llama.")
    if chosen == "gemma":
        return Licence(chosen, notice=_GEMMA + "\n", sentence=_GEMMA)
    if chosen != "other":
        return Licence(chosen)
    name, link = _text(card.get("license_name")), _text(card.get("license_link"))
    if not name or not link:
        raise BadInput(
            f"the licence of {base_model} is 'other' and its card gives no name and link",
            "name one of the Hub's licences with --license",
        )
    if "://" not in link:
        link = f"https://huggingface.co/{base_model}/blob/main/{link}"
    return Licence("other", name, link)


def _by_name(base_model: str) -> str | None:
    for form, licence in _BY_NAME:
        if match := form.fullmatch(base_model):
            return licence.format(*match.groups())
    return None


def _text(value: object) -> str | None:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value if isinstance(value, str) and value else None
