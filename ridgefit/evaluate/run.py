"""Arms x tasks on one model: paired, streamed to disk, resumable (paper sections 3.1 to 3.4)."""

from __future__ import annotations

import math
import re
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ridgefit.errors import BadInput, CheckFailed, Interrupted
from ridgefit.evaluate.arms import CANDIDATES, Arm, maps_of, reach_of, resolve_arms
from ridgefit.evaluate.auto_rows import choices, expanded
from ridgefit.evaluate.journal import Journal, Key, require_results_folder
from ridgefit.evaluate.macs import prefill_shares
from ridgefit.evaluate.preflight import Known, require_possible
from ridgefit.evaluate.result import EVALUATION, ArmDescription, EvalResult
from ridgefit.evaluate.samples import Sample, Scored, Task
from ridgefit.evaluate.summary import TaskRun, prompts_sha256, summarise_task, warnings_of
from ridgefit.evaluate.tasks import TASKS, task_names
from ridgefit.files import canonical_json, folder_lock, sha256_bytes, sha256_file, write_json
from ridgefit.models import LoadedModel
from ridgefit.models.decoder import weights_sample_sha256
from ridgefit.recipe import EvalSettings, require_used
from ridgefit.recipe.rows import row_label
from ridgefit.runtime import FillReport
from ridgefit.versions import library_versions, machine

Progress = Callable[[int, int, str], None]
"""Called after each arm of each batch with (done, total, what was scored)."""


def evaluate(
    loaded: LoadedModel,
    settings: EvalSettings,
    maps: Path | None,
    out: Path,
    *,
    progress: Progress | None = None,
) -> EvalResult:
    """Run every arm on every sample of every task, each paired with exact in the same process.

    Arms that `sink_effect` and `auto_rows` ask for are added to those named, and are part of the identity.

    `out/results.jsonl` gets a line per sample and arm as it is scored. The same call on the same folder
    goes on after the last complete batch of samples; one that was cut off runs again whole, so that its
    arms stay paired. `out/evaluation.json` is written at the end, with the same bytes whether the run was
    interrupted or not.

    Args:
        loaded: model and tokenizer.
        settings: arms, tasks, share of the samples, bootstrap.
        maps: source file or folder of maps; None if no arm needs them.
        out: folder for the results.
        progress: called after each score.

    Raises:
        BadInput: settings that do not fit the model or each other; a folder with results of another
            identity (the field is named) or in use.
        CheckFailed: an arm filled nothing, or gave scores that are not finite.
        Interrupted: SIGINT or SIGTERM; what was scored is kept.
    """
    require_used(settings)
    require_results_folder(out)
    settings, tried = expanded(settings, maps)
    arms = resolve_arms(settings.arms, maps, loaded.port.n_layers)
    require_possible(settings, arms, Known.of(loaded.port))
    tasks = [TASKS[task.task](task) for task in settings.tasks]
    runs = [
        _task_run(name, task, task_settings, arms, loaded, settings)
        for name, task, task_settings in zip(task_names(settings.tasks), tasks, settings.tasks, strict=True)
    ]
    identity = _identity(loaded, settings, maps, runs)
    notes = sorted(
        {line for arm in arms if arm.fill for line in arm.fill.check(loaded.port, loaded.tokenizer)}
    )
    context = {
        "maps": str(maps) if maps else None,
        "machine": machine(),
        "threads": torch.get_num_threads(),
        "macs": {run.name: dict(run.macs) for run in runs},
    }
    total = len(arms) * sum(len(run.samples) for run in runs)
    done = 0
    with folder_lock(out), Journal(out, identity, context) as journal, _interruptible(out), _said(notes):
        for run, task in zip(runs, tasks, strict=True):
            for samples in _batches(run.samples, settings.batch):
                what = f"{run.name}, {_named(samples)}"
                if _complete(journal, run, samples, arms):
                    done += len(arms) * len(samples)
                    if progress:
                        progress(done, total, f"{what}, done before")
                    continue
                for arm, scored in _score(loaded, task, samples, arms):
                    for sample, found in zip(samples, scored, strict=True):
                        journal.append(_key(run, sample, arm), _body(run, sample, found))
                    done += len(samples)
                    if progress:
                        progress(done, total, f"{what}, {arm.label}")
        result = _summarise(runs, arms, journal, identity, settings, notes)
        result = result.model_copy(update={"rows_choices": choices(tried, result)})
        write_json(out / EVALUATION, result.model_dump(mode="json"))
    return result


def _task_run(
    name: str,
    task: Task,
    task_settings: Any,
    arms: tuple[Arm, ...],
    loaded: LoadedModel,
    settings: EvalSettings,
) -> TaskRun:
    found = task.samples(loaded, reach_of(arms, task.tail), settings.seed)
    # A unit is kept whole: with half of its samples it would weigh as much and say less.
    units = list(dict.fromkeys(sample.unit for sample in found.samples))
    kept = set(units[: math.ceil(settings.fraction * len(units))])
    plain = task_settings.model_dump(mode="json")
    return TaskRun(
        name=name,
        sha256=sha256_bytes(canonical_json(plain)),
        settings=plain,
        measures=task.measures,
        samples=tuple(sample for sample in found.samples if sample.unit in kept),
        skipped=found.skipped,
        macs=prefill_shares(loaded.port, arms, task_settings.prompt, task.tail),
    )


def _batches(samples: tuple[Sample, ...], size: int) -> Iterator[tuple[Sample, ...]]:
    """Neighbouring samples; the same ones in every run, since padding shows in the last digits of a score."""
    for start in range(0, len(samples), size):
        yield samples[start : start + size]


def _score(
    loaded: LoadedModel, task: Task, samples: tuple[Sample, ...], arms: tuple[Arm, ...]
) -> Iterator[tuple[Arm, list[Scored]]]:
    """The exact arm, then the others with what it found."""
    carry: list[Any] | None = None
    for arm in arms:
        reports: list[FillReport | None] = []

        @contextmanager
        def apply(arm: Arm = arm, reports: list[FillReport | None] = reports) -> Iterator[None]:
            with arm.applied(loaded.model, task.tail, loaded.tokenizer) as report:
                yield
            reports.append(report)
            if report is not None and report.filled == 0:
                raise CheckFailed(
                    f"arm '{arm.label}' filled no prefill on {_named(samples)} "
                    f"({samples[0].prompt.numel()} tokens), so its scores would be those of the exact model",
                    "run `ridgefit verify --model` on this model",
                )

        try:
            scored = task.score(loaded, samples, apply, carry)
        except torch.OutOfMemoryError as error:
            raise BadInput(
                f"arm '{arm.label}' on {_named(samples)} needs more memory than the device has",
                "lower --batch" if len(samples) > 1 else "shorten the prompt or use a smaller dtype",
            ) from error
        for sample, found in zip(samples, scored, strict=True):
            _require_finite(arm, sample, found)
        if carry is None:
            carry = [found.carry for found in scored]
        if arm.selectors:
            scored = [replace(found, detail={**found.detail, **_chosen(reports)}) for found in scored]
        yield arm, scored


def _chosen(reports: Sequence[FillReport | None]) -> dict[str, float]:
    """Rows that selectors chose, mean over the prompts of a batch."""
    made = [report for report in reports if report is not None]
    prompts = sum(report.prompts for report in made)
    return {"rows_chosen": sum(report.rows_chosen for report in made) / max(prompts, 1)}


def _require_finite(arm: Arm, sample: Sample, scored: Scored) -> None:
    for name, value in scored.scores.items():
        if value is not None and not math.isfinite(value):
            raise CheckFailed(
                f"arm '{arm.label}' gives {name} = {value} on {sample.id}",
                "try --dtype float32, and run `ridgefit verify --model`",
            )


def _named(samples: tuple[Sample, ...]) -> str:
    """One sample's name, or the first and the last."""
    return samples[0].id if len(samples) == 1 else f"{samples[0].id} to {samples[-1].id}"


def _summarise(
    runs: list[TaskRun],
    arms: tuple[Arm, ...],
    journal: Journal,
    identity: Mapping[str, Any],
    settings: EvalSettings,
    notes: list[str],
) -> EvalResult:
    tasks = tuple(
        summarise_task(
            run,
            arms,
            {(s.id, arm.label): journal.records[_key(run, s, arm)] for s in run.samples for arm in arms},
            resamples=settings.resamples,
            seed=settings.seed,
        )
        for run in runs
    )
    return EvalResult(
        identity={name: value for name, value in identity.items() if name != "samples"},
        arms=tuple(
            ArmDescription(
                label=a.label,
                kind=a.kind,
                split=a.split,
                tail=a.tail,
                sink_rows=a.sink_rows,
                maps=a.maps,
                rows=row_label(a.rows),
                corrections=a.corrections.label if a.corrections else "",
                splice=a.splice,
            )
            for a in arms
        ),
        tasks=tasks,
        warnings=(*notes, *warnings_of(tasks, arms[0].label)),
    )


def _identity(
    loaded: LoadedModel, settings: EvalSettings, maps: Path | None, runs: list[TaskRun]
) -> dict[str, Any]:
    """Everything that decides the results; what differs is named when a folder is reopened."""
    device = loaded.port.device
    own = {arm.label: maps_identity(maps_of(arm, maps)) for arm in settings.arms if arm.maps is not None}
    return {
        "settings": settings.model_dump(mode="json"),
        "model": {**loaded.identity(), "weights_sample_sha256": weights_sample_sha256(loaded.model)},
        "maps": maps_identity(maps),
        **({"arm_maps": own} if own else {}),
        "dtype": str(loaded.port.dtype).removeprefix("torch."),
        "device": device.type if device.type != "cuda" else torch.cuda.get_device_name(device),
        "attention": loaded.port.attention,
        "versions": library_versions(),
        "prompts": {run.name: prompts_sha256(run.samples) for run in runs},
        "samples": {
            run.name: {s.id: {"prompt": s.prompt_sha256, "target": s.target_sha256} for s in run.samples}
            for run in runs
        },
    }


def maps_identity(maps: Path | None) -> dict[str, str] | None:
    """File name -> sha256 of the tensors and manifests in a maps file or folder, its candidates left out."""
    if maps is None:
        return None
    if maps.is_file():
        return {maps.name: sha256_file(maps)}
    return {
        path.relative_to(maps).as_posix(): sha256_file(path)
        for path in sorted(maps.rglob("*"))
        if path.is_file()
        and (path.suffix == ".safetensors" or path.name == "ridgefit.json")
        and path.relative_to(maps).parts[0] != CANDIDATES
    }


def _key(run: TaskRun, sample: Sample, arm: Arm) -> Key:
    return Key(run.sha256, sample.id, sample.prompt_sha256, arm.label)


def _complete(journal: Journal, run: TaskRun, samples: tuple[Sample, ...], arms: tuple[Arm, ...]) -> bool:
    """Whether a batch is on disk; its last line comes only after all others of its process."""
    return all(_key(run, sample, arm) in journal.records for sample in samples for arm in arms)


def _body(run: TaskRun, sample: Sample, scored: Scored) -> dict[str, Any]:
    unit = {} if sample.unit == sample.id else {"unit": sample.unit}
    return {"task": run.name, "group": sample.group, **unit, "scores": dict(scored.scores), **scored.detail}


@contextmanager
def _interruptible(out: Path) -> Iterator[None]:
    """Turn SIGTERM into the same clean stop as Ctrl-C, and either into `Interrupted`."""
    main = threading.current_thread() is threading.main_thread()
    previous = signal.signal(signal.SIGTERM, _stop) if main else None
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted(
            f"the evaluation in {out} was stopped, and what was scored is kept",
            "run the same command again to go on",
        ) from error
    finally:
        if main:
            signal.signal(signal.SIGTERM, previous)


@contextmanager
def _said(notes: list[str]) -> Iterator[None]:
    """Keep the runtime from repeating at every prefill what the result's warnings say once."""
    with warnings.catch_warnings():
        for line in notes:
            warnings.filterwarnings("ignore", message=re.escape(line))
        yield


def _stop(number: int, frame: object) -> None:
    del number, frame
    raise KeyboardInterrupt
