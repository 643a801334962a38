"""A recall policy made into a repository: the shared layout with `policy.json` in place of splits."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ridgefit.errors import BadInput
from ridgefit.files import new_folder, sha256_file, write_json, write_text
from ridgefit.hub.build import Base, without_places
from ridgefit.hub.card import About, document, table
from ridgefit.hub.check import check_repository, repository_files
from ridgefit.hub.layout import CARD, CONFIG, EVALUATION, NOTICE, PROVENANCE, SUMS, RepoConfig, sums_text
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
    origin = found.manifest.fingerprint
    if origin.tokenizer_sha256 is None:
        raise BadInput(f"the policy in {policy} names no tokenizer", "calibrate it with ridgefit")
    versions = found.manifest.provenance.get("versions")
    config = RepoConfig(
        kind="recall-policy",
        base_model=base.name,
        base_model_revision=base.revision,
        base_model_stated_by="fit" if base.stated_by == "fit" else "publisher",
        family=origin.family,
        dims=origin.dims,
        layer_kinds=origin.layer_kinds,
        dtype=origin.dtype,
        config_sha256=origin.config_sha256,
        tokenizer_sha256=origin.tokenizer_sha256,
        splits={},
        versions=versions if isinstance(versions, dict) else {},
    )
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
        if about.licence.notice:
            write_text(folder / NOTICE, about.licence.notice)
        hashes = {path: sha256_file(folder / path) for path in repository_files(folder)}
        write_text(folder / SUMS, sums_text(hashes))
        write_text(folder / CARD, document(config, about, _body(config, found, about), _TAGS))
        check_repository(folder)
    return config


def _body(config: RepoConfig, policy: RecallPolicy, about: About) -> Iterator[str]:
    s = policy.settings
    base = (
        f"[{config.base_model}](https://huggingface.co/{config.base_model}/tree/{config.base_model_revision})"
    )
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
