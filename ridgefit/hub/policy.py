"""A recall policy made into a repository: the shared layout with `policy.json` in place of splits."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ridgefit.errors import BadInput
from ridgefit.files import new_folder, write_json
from ridgefit.hub.build import Base, without_places
from ridgefit.hub.card import About, document, table
from ridgefit.hub.layout import CONFIG, EVALUATION, PROVENANCE, RepoConfig
from ridgefit.hub.seal import config_of, seal
from ridgefit.maps.recall import POLICY, TENSORS, RecallPolicy

_TAGS = ("ridgefit", "vestigekv", "kv-cache", "mla", "safetensors")


def is_policy(folder: Path) -> bool:
    """Whether a folder holds a recall policy; says nothing about its state."""
    return (folder / POLICY).is_file()


def build_policy_repository(
    policy: Path, out: Path, base: Base, about: About, *, evaluation: Mapping[str, Any] | None = None
) -> RepoConfig:
    """Write a repository, whole or not at all, and judge what was written.

    Args:
        policy: policy folder.
        out: must not exist or be empty.
        base: the base model.
        about: licence, data, results for the card.
        evaluation: content of recall.json.

    Raises:
        BadInput: a damaged policy, a control arm, or a folder that cannot be written.
    """
    found = RecallPolicy.load(policy)
    if found.settings.control:
        raise BadInput(
            f"the policy in {policy} is a control arm for a rotated branch, which is for ablations only",
            "publish a policy of a model whose branch is not rotated",
        )
    manifest = found.manifest
    config = config_of("recall-policy", manifest.fingerprint, base, manifest.provenance.get("versions"))
    with new_folder(out) as folder:
        for name in (POLICY, *((TENSORS,) if found.bases else ())):
            shutil.copyfile(policy / name, folder / name)
        write_json(folder / CONFIG, config.model_dump(mode="json"))
        write_json(
            folder / PROVENANCE,
            {"format": "ridgefit-provenance-1", **without_places(found.manifest.provenance)},
        )
        if evaluation is not None:
            write_json(folder / EVALUATION, without_places(evaluation))
        seal(folder, about.licence.notice, document(config, about, _body(config, found, about), _TAGS))
    return config


def _body(config: RepoConfig, policy: RecallPolicy, about: About) -> Iterator[str]:
    s, base = policy.settings, config.base_link
    yield f"\n# {about.repo.partition('/')[2]}\n"
    kept = f"{s.rows:,}" if s.rows is not None else f"1/{s.ratio:g}"
    if s.recall:
        yield (
            f"A recall policy for the latent cache of {base}. Of the rows that a decode step would read, "
            f"{kept} stay attended, ranked by '{s.selector}'; the others are archived exactly, none is "
            "deleted, and a step fetches those that a calibrated index says may matter. What it misses "
            "is not read."
        )
    else:
        yield f"An eviction policy for the latent cache of {base}: {kept} of the rows stay attended."
    if about.licence.sentence:
        yield f"\n{about.licence.sentence}"
    yield "\n## Use\n"
    yield (
        "```python\nfrom ridgefit import Recall\n"
        f'recall = Recall.load("FOLDER")  # of `ridgefit pull {about.repo} --out FOLDER`\n'
        "with recall.applied(model): model.generate(**inputs)\n```"
    )
    yield "\n## Policy\n"
    closes = f"blocks of {s.block:,} rows" if s.window == "block" else "the prompt at once"
    yield table(
        ("setting", "value"),
        [
            ("rows close in", closes),
            ("low-pass bins", str(s.kappa)),
            ("sinks", str(s.sinks)),
            ("sketch rank", str(s.rank)),
            ("target", f"{100 * s.target:g} % of hard queries ({s.conformal})"),
            ("thresholds", "frozen here" if s.thresholds == "policy" else "from each prompt"),
        ],
    )
    if policy.manifest.layers:
        yield "\n## Held-out recall\n"
        yield table(
            ("layer", "z", "gate", "hard queries", "recall", "fires", "rows per step", "archive"),
            [
                (
                    str(index),
                    f"{layer.z:.2f}",
                    "open" if layer.gate is None else f"{layer.gate:.2f}",
                    f"{layer.held_out_hard:,}",
                    _share(layer.recall),
                    _share(layer.fire_rate),
                    "–" if layer.rows_per_step is None else f"{layer.rows_per_step:.1f}",
                    "–" if layer.archive is None else f"{layer.archive:.0f}",
                )
                for index, layer in policy.manifest.layers.items()
            ],
        )
    yield "\n## Results\n"
    yield (
        about.results or "No evaluation was published with this policy: nothing is claimed of its quality."
    )
    yield "\n## Limits\n"
    yield (
        "- An archive on the device saves reads and no memory.\n"
        "- Recall was measured on documents like those of the calibration; other texts may be harder.\n"
        f"- Calibrated on {config.base_model} alone: a fine-tune needs its own thresholds."
    )


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"
