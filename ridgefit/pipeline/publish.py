"""Maps and their evaluation made into a repository and published."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ridgefit import hub
from ridgefit.errors import BadInput
from ridgefit.evaluate.penalties import penalty_grids
from ridgefit.evaluate.plots import write_plots
from ridgefit.evaluate.recall.result import load_recall_result
from ridgefit.evaluate.recall.tables import recall_markdown
from ridgefit.evaluate.result import EvalResult, load_result
from ridgefit.evaluate.run import maps_identity
from ridgefit.evaluate.tables import arm_grid, contrast_grid, markdown, task_title
from ridgefit.files import require_space
from ridgefit.maps import MapsManifest, kind_of
from ridgefit.maps.recall import RecallPolicy
from ridgefit.maps.refresh import load_controller
from ridgefit.pipeline.publish_speed import load_bench, speed
from ridgefit.recipe import PullSettings, PushSettings, refuse_idle

Say = Callable[[str], None]
Progress = Callable[[int, int | None, str], None]


def publish(settings: PushSettings, at: hub.Hub | None = None, say: Say | None = None) -> hub.PushReport:
    """Build a repository of maps, judge it and push it; a repository that is built already goes as it is.

    Args:
        settings: what and where to.
        at: which Hub, and as whom.
        say: called with what is being done.

    Raises:
        BadInput: damaged maps, no fingerprint, base model or licence, an evaluation of something else, or
            what `ridgefit.hub.push` raises.
        CheckFailed: the Hub holds other bytes than were sent.
    """
    at = at or hub.Hub()
    hub.RepoRef.parse(settings.repo)
    target = hub.Target(
        settings.repo,
        branch=settings.revision,
        private=settings.private,
        pull_request=settings.pr,
        tag=settings.tag,
        keep_card=settings.keep_card,
    )
    if hub.is_repository(settings.maps) and settings.evaluation is None and settings.bench is None:
        refuse_idle(
            settings,
            ("base_model", "license", "datasets", "out"),
            f"for {settings.maps}, a repository that is built already and goes as it is",
            "push the maps it was built from",
        )
        return hub.push(settings.maps, target, at, dry_run=settings.dry_run, say=say)
    if hub.is_policy(settings.maps):
        return _publish_policy(settings, target, at, say)
    if hub.is_controller(settings.maps):
        return _publish_controller(settings, target, at, say)
    manifest, _ = hub.opened(settings.maps)
    base = hub.base_of(manifest.fingerprint, settings.base_model, settings.maps)
    result = load_result(settings.evaluation) if settings.evaluation else None
    if result is not None:
        require_evaluation_of(result, manifest, settings.maps)
    bench = load_bench(settings.bench, manifest, settings.maps) if settings.bench else None
    licence = _licence(settings, base, at)
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ridgefit-push-")))
        plots = _plots(result, settings.maps, place) if result else {}
        about = hub.About(
            repo=settings.repo,
            licence=licence,
            datasets=settings.datasets or hub.data_sets(manifest, settings.maps),
            results="\n\n".join(results(result, manifest, settings.maps)) if result else "",
            speed=speed(bench) if bench else "",
            plots={caption: f"plots/{file.name}" for caption, file in plots.items()},
        )
        folder = settings.out or place / "repository"
        require_space(folder, _size(settings.maps), "the repository")
        if say:
            say("building the repository")
        hub.build_repository(
            settings.maps,
            folder,
            base,
            about,
            evaluation=result.model_dump(mode="json") if result else None,
            bench=bench.model_dump(mode="json") if bench else None,
            plots={file.name: file for file in plots.values()},
        )
        return hub.push(folder, target, at, dry_run=settings.dry_run, say=say)


def _publish_policy(
    settings: PushSettings, target: hub.Target, at: hub.Hub, say: Say | None
) -> hub.PushReport:
    """The same for a recall policy.

    Raises:
        BadInput: see `publish`; also an evaluation of other policies.
    """
    refuse_idle(settings, ("bench",), "for a recall policy, which fills no prompt")
    policy = RecallPolicy.load(settings.maps)
    base = hub.base_of(policy.manifest.fingerprint, settings.base_model, settings.maps)
    result = load_recall_result(settings.evaluation) if settings.evaluation else None
    judged = {} if result is None else result.identity["policies"]
    if result is not None and policy.manifest.model_dump(mode="json") not in judged.values():
        raise BadInput("the evaluation is of other policies", "evaluate this one")
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ridgefit-push-")))
        about = hub.About(
            repo=settings.repo,
            licence=_licence(settings, base, at),
            datasets=settings.datasets,
            results="\n\n".join(recall_markdown(result)) if result else "",
        )
        folder = settings.out or place / "repository"
        hub.build_policy_repository(
            settings.maps,
            folder,
            base,
            about,
            evaluation=result.model_dump(mode="json") if result else None,
        )
        return hub.push(folder, target, at, dry_run=settings.dry_run, say=say)


def _publish_controller(
    settings: PushSettings, target: hub.Target, at: hub.Hub, say: Say | None
) -> hub.PushReport:
    """The same for a refresh controller, whose one test travels inside it.

    Raises:
        BadInput: see `publish`; also an evaluation beside it.
    """
    if settings.evaluation is not None or settings.bench is not None:
        raise BadInput("a controller carries its own test", "leave --evaluation and --bench out")
    base = hub.base_of(load_controller(settings.maps).fingerprint, settings.base_model, settings.maps)
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ridgefit-push-")))
        about = hub.About(
            repo=settings.repo, licence=_licence(settings, base, at), datasets=settings.datasets
        )
        folder = settings.out or place / "repository"
        hub.build_controller_repository(settings.maps, folder, base, about)
        return hub.push(folder, target, at, dry_run=settings.dry_run, say=say)


def fetch(
    settings: PullSettings, at: hub.Hub | None = None, progress: Progress | None = None
) -> hub.PullReport:
    """Fetch a repository, or some of its splits; see `ridgefit.hub.pull`."""
    return hub.pull(settings.repo, splits=settings.split, out=settings.out, hub=at, progress=progress)


def require_evaluation_of(result: EvalResult, manifest: MapsManifest, maps: Path) -> None:
    """Refuse numbers that belong to other maps or another model.

    Maps that were quantized may carry the evaluation of the maps they were made from; the card says so.

    Raises:
        BadInput: naming what differs.
    """
    model, origin = result.identity["model"], manifest.fingerprint
    for field in ("tokenizer_sha256", "config_sha256"):
        wanted = getattr(origin, field)
        if wanted and model.get(field) != wanted:
            raise BadInput(
                f"the evaluation is of another model: its {field} is {str(model.get(field))[:12]}…, "
                f"the maps were fitted on {wanted[:12]}…",
                "evaluate these maps on their own model",
            )
    judged = result.identity["maps"] or {}
    if not judged:
        raise BadInput("the evaluation has no ridge arm, so it says nothing of these maps", "evaluate them")
    here = set((maps_identity(maps) or {}).values())
    if set(judged.values()) <= here or _quantized_from(manifest) in judged.values():
        return
    name = next(name for name, sha256 in judged.items() if sha256 not in here)
    raise BadInput(
        f"the evaluation is of other maps: {name} had sha256 {judged[name][:12]}…", "evaluate these maps"
    )


def results(result: EvalResult, manifest: MapsManifest, maps: Path) -> Iterator[str]:
    """Markdown of an evaluation; every number in it is one of evaluation.json, rounded."""
    identity = result.identity
    versions = identity["versions"]
    yield (
        f"Measured on {identity['device']} in {identity['dtype']}, attention {identity['attention']}, "
        + ", ".join(f"{name} {versions[name]}" for name in ("ridgefit", "torch", "transformers"))
        + ". Arms: the mean, then its difference to an exact run of the same samples with a 95 % interval. "
        "An interval that includes zero does not show equality. Differences of shares are in points."
    )
    if not set((result.identity["maps"] or {}).values()) <= set((maps_identity(maps) or {}).values()):
        yield f"The maps measured are those that these {_layouts(manifest)} maps were quantized from."
    if result.warnings:
        yield "\n".join(f"- **{warning}**" for warning in result.warnings)
    for task in result.tasks:
        yield f"### {task_title(task)}"
        yield markdown(arm_grid(task))
        contrasts = contrast_grid(task)
        if contrasts.rows:
            yield markdown(contrasts)
    kinds = {task.settings["task"] for task in result.tasks}
    if not {"needle", "nll"} <= kinds:
        missing = " and ".join(sorted({"needle", "nll"} - kinds))
        yield f"Not measured: {missing}. One kind of task alone does not show that the prefix can be read."


def _licence(settings: PushSettings, base: hub.Base, at: hub.Hub) -> hub.Licence:
    """The base model's own card is asked, except by a dry run that states a licence."""
    card: Mapping[str, Any] | None = None
    if settings.license is None or not settings.dry_run:
        try:
            info = hub.asked(
                f"the card of the base model {base.name}",
                lambda: at.api.model_info(base.name, revision=base.revision),
            )
            card = vars(info.card_data) if info.card_data else {}
        except BadInput as error:
            if settings.license is None:
                raise BadInput(
                    f"the licence of {base.name} is not known ({error.what})", "name it with --license"
                ) from error
    return hub.licence_of(base.name, settings.license, card)


def _plots(result: EvalResult, maps: Path, folder: Path) -> dict[str, Path]:
    penalties = penalty_grids(maps) if kind_of(maps) == "maps" else []
    return {caption: folder / name for caption, name in write_plots(result, penalties, folder).items()}


def _layouts(manifest: MapsManifest) -> str:
    return " and ".join(sorted({record.layout.rpartition("-")[2] for record in manifest.splits.values()}))


def _quantized_from(manifest: MapsManifest) -> object:
    return manifest.provenance.get("quantized_from")


def _size(maps: Path) -> int:
    if maps.is_file():
        return maps.stat().st_size
    return sum(item.stat().st_size for item in maps.rglob("*") if item.is_file())
