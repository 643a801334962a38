"""A refresh controller made into a repository: the shared layout, `controller.json` in place of splits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ridgefit.errors import BadInput
from ridgefit.files import new_folder, write_json
from ridgefit.hub.build import Base, without_places
from ridgefit.hub.card import About, document, table
from ridgefit.hub.layout import CONFIG, PROVENANCE, RepoConfig
from ridgefit.hub.seal import config_of, seal
from ridgefit.maps.refresh import CONTROLLER, RefreshController, load_controller, save_controller
from ridgefit.maps.refresh_rows import settings_rows, test_heads, test_rows, verdict

_SIZES = ("budget", "keep_ratio", "recent_share", "window", "observe", "kernel")
_TAGS = ("ridgefit", "rift", "speculative-decoding", "kv-cache")


def is_controller(folder: Path) -> bool:
    """Whether a folder holds a refresh controller; says nothing about its state."""
    return (folder / CONTROLLER).is_file()


def build_controller_repository(source: Path, out: Path, base: Base, about: About) -> RepoConfig:
    """Write a repository, whole or not at all, and judge what was written.

    Args:
        source: folder of `ridgefit calibrate refresh`.
        out: must not exist or be empty.
        base: the target model.
        about: licence and data for the card; results are the controller's own test.

    Raises:
        BadInput: a damaged controller, one that found no rule, or a folder that cannot be written.
    """
    found = load_controller(source)
    if found.rule.kind == "none":
        raise BadInput(
            f"the calibration in {source} found no controller, so there is nothing to publish",
            "publish one that passed its selection",
        )
    config = config_of("refresh-controller", found.fingerprint, base, dict(found.versions))
    with new_folder(out) as folder:
        save_controller(found, folder)
        write_json(folder / CONFIG, config.model_dump(mode="json"))
        provenance = {"draft": found.draft, "versions": found.versions, "documents": len(found.test)}
        write_json(folder / PROVENANCE, {"format": "ridgefit-provenance-1", **without_places(provenance)})
        seal(folder, about.licence.notice, document(config, about, _body(config, found, about), _TAGS))
    return config


def _body(config: RepoConfig, found: RefreshController, about: About) -> Iterator[str]:
    base = config.base_link
    itself = found.draft.get("weights_sample_sha256") == found.target.get("weights_sample_sha256")
    drafter = "itself" if itself else f"{found.draft.get('name')}"
    yield f"\n# {about.repo.partition('/')[2]}\n"
    yield (
        f"A controller for speculative decoding with {base} as the target and {drafter} as the draft: it "
        "decides from what the draft knows by itself when the draft's compressed cache is selected again. "
        "The output is the target's own, whatever it decides."
    )
    if about.licence.sentence:
        yield f"\n{about.licence.sentence}"
    yield "\n## Use\n"
    yield (
        f"```\nridgefit pull {about.repo} --out FOLDER\n"
        "ridgefit generate TARGET --draft DRAFT --draft-policy rift-ada --controller FOLDER "
        f"{_options(found)} --prompt-file prompt.txt\n```"
    )
    yield "\n## Controller\n"
    yield table(("setting", "value"), list(settings_rows(found)))
    yield "\n## Tested once, on documents of its own\n"
    yield table(test_heads(found), test_rows(found))
    yield f"\n{verdict(found)[:1].upper()}{verdict(found)[1:]}. Brackets are 95 % intervals over documents."
    warm = f"temperature {found.temperature:g}" if found.temperature else "greedy decoding"
    yield "\n## Limits\n"
    yield (
        f"- Thresholds are of this pair, this budget, {warm} and texts like those it was made on.\n"
        "- A refresh costs time on the drafting device, which is not measured here."
    )


def _options(found: RefreshController) -> str:
    """The sizes that it was made under, as options."""
    given = {name: value for name, value in found.cache.items() if name in _SIZES and value is not None}
    given |= {"drafted": found.drafted, "temperature": found.temperature}
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in given.items())
