"""Arms x samples on one model: paired with dense, streamed to disk, resumable (VestigeKV, section 5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ridgefit.corpus import read_documents
from ridgefit.errors import Interrupted
from ridgefit.evaluate.journal import Journal, Key, require_results_folder
from ridgefit.evaluate.recall.arms import RecallArm, resolve_recall_arms
from ridgefit.evaluate.recall.result import EVALUATION, RecallResult
from ridgefit.evaluate.recall.samples import RecallSample
from ridgefit.evaluate.recall.scoring import score_sample
from ridgefit.evaluate.recall.summary import summarised
from ridgefit.evaluate.recall.tasks import RECALL_TASKS
from ridgefit.files import canonical_json, folder_lock, sha256_bytes, write_json
from ridgefit.models.load import LoadedLatent
from ridgefit.recipe import RecallEvalSettings, require_used
from ridgefit.versions import library_versions, machine

Progress = Callable[[int, int, str], None]
"""Called after each arm of each sample with (done, total, what was scored)."""


def evaluate_recall(
    loaded: LoadedLatent, settings: RecallEvalSettings, out: Path, *, progress: Progress | None = None
) -> RecallResult:
    """Judge recall policies and baselines on prefixes that are compressed before their questions exist.

    `out/results.jsonl` gets a line per sample and arm; the same call on the same folder goes on after the
    last complete sample. `out/recall.json` is written at the end.

    Args:
        loaded: the model.
        settings: policies, selectors, samples.
        out: folder for the results.
        progress: called after each score.

    Raises:
        BadInput: a policy of another model, samples that cannot be made, a folder of other results.
        CheckFailed: an arm did not read what it should have.
        Interrupted: Ctrl-C; what was scored is kept.
    """
    require_used(settings)
    require_results_folder(out)
    arms = resolve_recall_arms(settings, loaded)
    samples = {name: task.samples(loaded, settings) for name, task in RECALL_TASKS.items()}
    identity = _identity(loaded, settings, arms, samples)
    total, done = sum(map(len, samples.values())) * (len(arms) + 1), 0
    labels = ("dense", *(arm.label for arm in arms))
    with folder_lock(out), Journal(out, identity, {"machine": machine()}) as journal:
        try:
            for name, found in samples.items():
                for sample in found:
                    keys = {label: Key(name, sample.id, sample.sha256, label) for label in labels}
                    if all(key in journal.records for key in keys.values()):
                        done += len(labels)
                        continue
                    scores = score_sample(loaded, sample, arms, mass=RECALL_TASKS[name].mass)
                    for label, score in scores:
                        journal.append(keys[label], {"group": sample.group, **score.body()})
                        done += 1
                        if progress:
                            progress(done, total, f"{sample.id}, {label}")
        except KeyboardInterrupt as error:
            raise Interrupted(
                f"the evaluation in {out} was stopped, and what was scored is kept",
                "run the same command again to go on",
            ) from error
        records = {
            (name, sample.id, label): journal.records[Key(name, sample.id, sample.sha256, label)]
            for name, found in samples.items()
            for sample in found
            for label in labels
        }
        result = summarised(identity, arms, samples, records, settings)
        write_json(out / EVALUATION, result.model_dump(mode="json"))
    return result


def require_samples(settings: RecallEvalSettings) -> None:
    """Look the text that samples are made of up.

    Raises:
        BadInput: it is not there.
    """
    if settings.data:
        read_documents(settings.data)
    if settings.trials and settings.haystack != "noise":
        read_documents([settings.haystack])


def _identity(
    loaded: LoadedLatent,
    settings: RecallEvalSettings,
    arms: tuple[RecallArm, ...],
    samples: Mapping[str, tuple[RecallSample, ...]],
) -> dict[str, Any]:
    """Everything that decides the results."""
    hashes = {name: [[s.id, s.sha256] for s in found] for name, found in samples.items()}
    policies = {
        arm.label: arm.policy.manifest.model_dump(mode="json") for arm in arms if arm.role == "policy"
    }
    return {
        "settings": settings.model_dump(mode="json", exclude={"policy"}),
        "model": loaded.identity(),
        "policies": policies,
        "device": loaded.latent.device.type,
        "versions": library_versions(),
        "samples": {name: sha256_bytes(canonical_json(found)) for name, found in hashes.items()},
    }
