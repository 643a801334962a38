"""A page about an acceptance evaluation, every sentence made from its numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ridgefit.evaluate.acceptance_plots import write_acceptance_plots
from ridgefit.evaluate.acceptance_summary import AcceptanceResult, Gap, load_acceptance
from ridgefit.evaluate.acceptance_tables import (
    Rows,
    budget,
    by_place,
    costs,
    interval,
    lengths,
    mass,
    needles,
    prompt_lengths,
    staleness,
    title,
)
from ridgefit.evaluate.tables import Grid, markdown
from ridgefit.files import write_text
from ridgefit.maps.refresh_rows import controller_cautions
from ridgefit.recipe import AcceptanceSettings

REPORT = "report.md"
FEW = 8  # documents below which a bootstrap interval is too narrow to be taken at its word


def acceptance_report(folder: Path) -> Path:
    """Write `report.md`, and plots beside it where matplotlib is installed.

    Args:
        folder: output folder of a finished acceptance evaluation.

    Returns:
        Path of the report.

    Raises:
        BadInput: the evaluation is not finished, damaged or of another version.
    """
    result = load_acceptance(folder)
    plots = write_acceptance_plots(result, folder)
    path = folder / REPORT
    write_text(path, "\n\n".join(_page(result, plots)) + "\n")
    return path


def cautions(result: AcceptanceResult) -> Iterator[str]:
    """What a reader must know before the numbers."""
    settings = result.identity["settings"]
    if result.documents == 1:
        yield "One document gives no interval, so no difference between policies can be claimed."
    elif result.documents < FEW:
        yield f"Intervals over {result.documents} documents are narrower than they should be."
    least, most = result.prompt_tokens
    columns = settings["budget"]
    if columns and columns >= least:
        which = "No prompt is" if columns >= most else "Not every prompt is"
        yield f"{which} longer than the budget of {columns} columns: until it is, nothing is compressed."
    unlike = {score.policy: score.equal for score in result.policies if (score.equal or 0) < 1}
    if not settings["temperature"] and unlike:
        least_equal = min(value or 0 for value in unlike.values())
        yield (
            f"In {', '.join(unlike)} not every output is the target's own stepwise text (least: "
            f"{100 * least_equal:.0f} % of the prompts), as happens where a pass over several tokens rounds "
            "differently from single steps."
        )
    if settings["forced"]:
        yield "Outputs went on after their end token: such text gets repetitive, which flatters `swa`."
    if settings["temperature"] and settings["loop"] == "real":
        yield (
            "Text was sampled in the real loop, so every policy committed a text of its own; differences "
            "hold that luck too. A replay (loop=replay) judges all policies along one sampled text."
        )
    yield from _of_controller(result)


def sentences(result: AcceptanceResult) -> Iterator[str]:
    """What the intervals of each policy allow to be said, no more."""
    for score in result.policies:
        if not score.gaps:
            continue
        said = "; ".join(_verdict(gap) for gap in score.gaps)
        yield f"{score.policy}: AL {score.al_macro:.3f}, {100 * score.of_full:.1f} % of full; {said}."


def settings_rows(result: AcceptanceResult) -> Iterator[tuple[str, str]]:
    """Every setting of the evaluation by its name on the command line."""
    for name, value in result.identity["settings"].items():
        if isinstance(value, list):
            yield name, ", ".join(map(str, value))
        elif value is not None and name != "task":
            yield name, str(value)


def _of_controller(result: AcceptanceResult) -> Iterator[str]:
    made, settings = result.identity["controller"], result.identity["settings"]
    if made is None:
        return
    here = AcceptanceSettings.model_validate({**settings, "controller": None})
    yield from controller_cautions(
        made["rule"],
        {**made["cache"], "temperature": made["temperature"], "drafted": made["drafted"]},
        {**here.cache(), "temperature": here.temperature, "drafted": here.drafted},
    )


def _verdict(gap: Gap) -> str:
    if gap.low is None or gap.high is None:
        return f"{interval(gap)} against {gap.against}, from one document: no interval, no claim"
    if gap.low == gap.high == 0:
        return f"no document differs from {gap.against} (n = {gap.n})"
    if gap.low <= 0 <= gap.high:
        return f"not told apart from {gap.against} ({interval(gap)})"
    return f"{'above' if gap.mean > 0 else 'below'} {gap.against}: {interval(gap)}"


def _page(result: AcceptanceResult, plots: dict[str, str]) -> Iterator[str]:
    identity = result.identity
    yield f"# Acceptance length of {identity['draft']['name']} for {identity['target']['name']}"
    yield f"{title(result)[:1].upper()}{title(result)[1:]}."
    yield markdown(Grid("", ("what ran", "value"), tuple(facts(result))))
    found = list(cautions(result))
    if found:
        yield "## Read this first"
        yield "\n".join(f"- {line}" for line in found)
    yield "## Policies"
    yield "Acceptance length: output tokens of a round, the target's own included; brackets: 95 % intervals."
    yield _table(lengths(result))
    yield "\n".join(f"- {line}" for line in sentences(result))
    if "policies" in plots:
        yield f"![acceptance length by policy]({plots['policies']})"
    yield "## Staleness"
    yield f"Pooled acceptance length of the rounds that began in each {result.bin} output tokens:"
    yield _table(staleness(result))
    if any(score.retained is not None for score in result.policies):
        yield "Share of full attention on what was in sight, by output position:"
        yield _table(mass(result))
    if "staleness" in plots:
        yield f"![acceptance length by output position]({plots['staleness']})"
    yield "## What it took"
    yield _table(costs(result))
    yield "## Acceptance by place"
    yield "Share of rounds that accepted at least so many drafted tokens:"
    yield _table(by_place(result))
    if result.needles:
        yield "## Standalone"
        yield (
            "The target by itself with each policy's cache, greedy and unverified: numbers that lie outside "
            "the newest columns of the budget, asked for at the prompt's end."
        )
        yield _table(needles(result))
    yield "## Settings"
    yield markdown(Grid("", ("setting", "value"), tuple(settings_rows(result))))
    yield "## How the numbers were made"
    yield _method(result)


def facts(result: AcceptanceResult) -> Iterator[tuple[str, str]]:
    """What ran, on what."""
    identity, context = result.identity, result.context
    for role in ("target", "draft"):
        model = identity[role]
        revision = f"@{model['revision']}" if model.get("revision") else ""
        sizes = f"{model['family']}, {model['layers']} layers, {model['dtype']}"
        yield role, f"{model['name']}{revision} ({sizes}, {model['weights_sample_sha256'][:12]})"
    machine = context["machine"]
    yield "device", f"{identity['device']}: {machine['gpu'] or machine['cpu']}, {machine['cores']} cores"
    versions = identity["versions"]
    shown = ("ridgefit", "torch", "transformers", "python")
    yield "versions", ", ".join(f"{name} {versions[name]}" for name in shown if name in versions)
    yield (
        "prompts",
        f"{result.prompts} of {prompt_lengths(result)} tokens from {result.documents} documents "
        f"(sha256 {identity['prompts_sha256'][:12]})",
    )
    yield "output", f"{result.output_tokens:,} tokens under `full`"
    yield "cache", f"{budget(identity['settings'])}, selected from {result.candidates}"
    made = identity["controller"]
    if made is not None:
        yield "controller", f"{made['rule']}, frozen sha256 {made['sha256'][:12]}"
    seed = "" if identity["sampling_seed"] is None else f", sampled with seed {identity['sampling_seed']}"
    yield "share of prompts, seed", f"{context['fraction']:g}, {context['seed']}{seed}"


def _table(rows: Rows) -> str:
    heads, body = rows
    return markdown(Grid("", heads, tuple(body)))


def _method(result: AcceptanceResult) -> str:
    settings = result.identity["settings"]
    if settings["loop"] == "real":
        ran = "Every policy decoded with the target in the real loop."
    elif settings["temperature"]:
        ran = (
            "The target sampled its text once per prompt, and every policy was replayed along it: a token "
            "was drafted and kept with the probability that rejection sampling gives it there, by the same "
            "numbers for every policy."
        )
    else:
        ran = "The target's greedy text was made once per prompt, and every policy was replayed along it."
    return (
        f"{ran} AL is the mean over documents of the mean over their prompts of 1 + accepted tokens per "
        "round; pooled is over all rounds. Rounds near the length limit that drafted fewer count nowhere; "
        "a round counts before anything is cut at an end token. Differences are paired over documents; "
        f"intervals: bias-corrected accelerated bootstrap, {result.context['resamples']} resamples, 95 %. "
        "The selection after the prefill is no refresh. Times fewer: refreshes of the reference per one of "
        "the policy's, over documents. Replaced: share of selected columns that a refresh "
        "changes. Mass: share of full attention of the newest query on columns in sight. Draft ms/token: "
        "drafting and selecting after the prefill; a real loop's time is also the target's and is left out. "
        "Overhead: time of re-selections as a share of all other time after the prefill, of drafting in a "
        "replay, of decoding in a real loop. Widest: most columns that attention saw while decoding."
    )
