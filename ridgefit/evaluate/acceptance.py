"""Acceptance length of a draft under cache policies, paired over prompts (RIFT sections 3 and 4.4)."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from ridgefit.corpus import read_documents
from ridgefit.corpus.prompts import Prompt, cut_prompts, documents_of
from ridgefit.errors import BadInput, CheckFailed
from ridgefit.evaluate.acceptance_lines import Progress, scored
from ridgefit.evaluate.acceptance_needles import (
    ANSWER,
    Hidden,
    hidden_prompts,
    needle_scores,
    require_needles_fit,
    score_hidden,
)
from ridgefit.evaluate.acceptance_summary import LINES, RESULT, AcceptanceResult, NeedleScore, summarise
from ridgefit.evaluate.journal import require_same
from ridgefit.files import canonical_json, folder_lock, read_json, sha256_bytes, write_json
from ridgefit.maps.refresh import RefreshController, load_controller
from ridgefit.recipe import require_used
from ridgefit.recipe.drafting import AcceptanceSettings, DraftCacheSettings
from ridgefit.recipe.idle import as_key
from ridgefit.runtime.draft import POLICIES, CacheSettings, policy_of
from ridgefit.runtime.draft.frozen import controller_from
from ridgefit.runtime.draft.reads import unread
from ridgefit.runtime.speculative import (
    Decoded,
    Draft,
    Sampling,
    decode,
    known_text,
    replay_known,
    require_whole_round,
)
from ridgefit.runtime.speculative.pair import (
    Pair,
    PairPool,
    end_tokens,
    load_pair,
    require_positions,
    stop_at,
)
from ridgefit.runtime.speculative.standalone import along
from ridgefit.versions import library_versions, machine

NEEDLES, IDENTITY = "needles.jsonl", "identity.json"
ALL = "all"
FORMAT = "ridgefit-acceptance-2"
Asked = TypeVar("Asked", Prompt, Hidden)


@dataclass(frozen=True)
class Job(Generic[Asked]):
    """One prompt under every policy."""

    prompt: Asked
    settings: AcceptanceSettings
    policies: tuple[str, ...]
    frozen: RefreshController | None
    seed: int

    @property
    def id(self) -> str:
        """Of the prompt."""
        return self.prompt.id

    def drafts(self, pair: Pair) -> dict[str, Draft]:
        """The draft under every policy."""
        return {name: draft_of(pair, name, self.settings, self.frozen) for name in self.policies}


def evaluate_acceptance(
    target: dict[str, Any],
    settings: AcceptanceSettings,
    out: Path,
    *,
    fraction: float = 1.0,
    resamples: int = 5000,
    seed: int = 0,
    progress: Progress | None = None,
) -> AcceptanceResult:
    """Every policy on every prompt; the same call goes on after the last finished prompt.

    `out/acceptance.jsonl` gets one line per prompt and policy, `out/acceptance.json` the summary.

    Args:
        target: keyword arguments of `load_decoder`.
        settings: draft, prompts, policies, cache sizes.
        out: folder for the results.
        fraction: share of the prompts.
        resamples: bootstrap resamples behind each interval.
        seed: seed of the resamples, and of sampled text.
        progress: called after each prompt.

    Raises:
        BadInput: policies, sizes, models or a controller that do not fit; a folder with other results.
        CheckFailed: output of the real loop that is not the target's own.
    """
    require_used(settings)
    policies = _policies(settings)
    ignored = [unread(policy_of(name)) for name in policies]
    cache = cache_settings(settings)
    require_whole_round(settings.drafted, settings.new_tokens)
    read_documents(settings.data)
    frozen = load_controller(settings.controller) if settings.controller else None
    if "rift-ada" in policies and frozen is None:
        raise BadInput("policy rift-ada needs a controller", "name one with controller=FOLDER")
    if settings.reference not in policies:
        raise BadInput(
            f"the reference {settings.reference!r} is not among the policies",
            f"add it to policies=, or set reference= to one of {', '.join(policies)}",
        )
    if settings.needles:
        require_needles_fit(settings)
    settings.require_read(set(ignored[0]).intersection(*ignored), policies, as_key)
    pair = load_pair(target, settings.draft)
    prompts = _prompts(pair, settings, fraction)
    if frozen is not None:
        frozen.require_models(pair.target.identity(), pair.draft.identity())
        frozen.require_unseen(documents_of(prompts))
    for prompt in prompts:
        require_positions(pair, prompt.id, len(prompt.tokens) + settings.new_tokens)
    hidden = hidden_prompts(pair.target, settings, cache, seed) if settings.needles else []
    for one in hidden:
        require_positions(pair, one.id, len(one.tokens) + ANSWER)
    identity = _identity(pair, settings, prompts, policies, frozen, seed)
    pool = PairPool(target, settings.draft, pair, settings.workers)
    with folder_lock(out):
        _open(out, identity)
        jobs = [Job(prompt, settings, policies, frozen, seed) for prompt in prompts]
        count = len(policies)
        records = scored(out / LINES, jobs, score_prompt, pool, policies=count, progress=progress)
        needles: tuple[NeedleScore, ...] = ()
        if hidden:
            own = tuple(name for name in policies if name != "rift-ada")  # it needs a draft to read
            asked = [Job(one, settings, own, None, seed) for one in hidden]
            answers = scored(out / NEEDLES, asked, score_needle, pool, policies=len(own), progress=progress)
            needles = needle_scores(answers, own, resamples=resamples, seed=seed)
        context = {"machine": machine(), "fraction": fraction, "resamples": resamples, "seed": seed}
        result = summarise(records, policies, settings, identity, context, resamples=resamples, seed=seed)
        result = result.model_copy(update={"needles": needles})
        write_json(out / RESULT, result.model_dump(mode="json"))
    return result


def score_prompt(pair: Pair, job: Job[Prompt]) -> list[dict[str, Any]]:
    """Records of one prompt, one per policy; the target's own text is made once and replayed."""
    settings = job.settings
    tokens = list(job.prompt.tokens)
    ends = frozenset[int]() if settings.forced else end_tokens(pair.target)
    stop = stop_at(ends)
    sampling = Sampling(settings.temperature, f"{job.seed}/{job.prompt.sha256}")
    started = time.perf_counter()
    # In a real loop that samples, every policy commits a text of its own.
    known = (
        None
        if settings.temperature and settings.loop == "real" and not settings.standalone
        else known_text(
            pair.target.model, tokens, settings.new_tokens, stop, sampling, beyond=settings.drafted
        )
    )
    plain = time.perf_counter() - started
    records = []
    for name, draft in job.drafts(pair).items():
        if settings.loop == "real" or known is None:
            found = decode(
                pair.target.model,
                draft,
                tokens,
                settings.new_tokens,
                stop=stop,
                chooser=sampling.chooser("real"),
                measure_every=settings.measure_every,
            )
        else:
            found = replay_known(
                draft, known, settings.new_tokens, stop=stop, measure_every=settings.measure_every
            )
        if found.budget is not None and found.widest > found.budget:
            raise CheckFailed(
                f"policy {name} let attention see {found.widest} columns with a budget of {found.budget}"
            )
        record = _record(job.prompt, name, found)
        record["target_seconds"] = None if known is None else plain
        record["equal"] = found.tokens == known.output if known and not settings.temperature else None
        if settings.standalone and known is not None and draft.policy.controller is not None:
            forced = along(replace(draft, model=pair.target.model), tokens, known.output)
            record |= {
                "agreed": sum(forced.agreed) / len(forced.agreed),
                "nll": sum(forced.nll) / len(forced.nll),
            }
        records.append(record)
    return records


def score_needle(pair: Pair, job: Job[Hidden]) -> list[dict[str, Any]]:
    """Records of one hidden number, one per policy: the target answers by itself, without verification."""
    drafts = {name: replace(draft, model=pair.target.model) for name, draft in job.drafts(pair).items()}
    return score_hidden(pair.target, job.prompt, drafts)


def draft_of(
    pair: Pair, policy: str, settings: AcceptanceSettings, frozen: RefreshController | None
) -> Draft:
    """The draft of a pair under a policy."""
    controller = controller_from(frozen) if policy == "rift-ada" and frozen is not None else None
    cache = cache_settings(settings)
    return Draft(pair.draft.model, policy_of(policy), cache, controller, settings.drafted)


def cache_settings(settings: DraftCacheSettings) -> CacheSettings:
    """Sizes of the draft cache."""
    return CacheSettings(**settings.cache())


def _record(prompt: Prompt, policy: str, found: Decoded) -> dict[str, Any]:
    return {
        "prompt": prompt.id,
        "unit": prompt.document,
        "domain": prompt.domain,
        "prompt_tokens": len(prompt.tokens),
        "policy": policy,
        "tokens": len(found.tokens),
        "rounds": [list(asdict(r).values()) for r in found.rounds],
        "refreshes": found.refreshes,
        "selections": found.selections,
        "score_seconds": found.score_seconds,
        "changed": found.changed,
        "widest": found.widest,
        "budget": found.budget,
        "repeated": found.repeated,
        "prefill_seconds": found.prefill_seconds,
        "seconds": found.seconds,
    }


def _policies(settings: AcceptanceSettings) -> tuple[str, ...]:
    """Whole cache first; `all` is every policy, of which rift-ada needs its controller."""
    named = list(settings.policies)
    if ALL in named:
        named = [name for name in POLICIES if name != "rift-ada"]
    adaptive = ["rift-ada"] if settings.controller else []
    return tuple(dict.fromkeys(["full", *named, *adaptive]))


def _prompts(pair: Pair, settings: AcceptanceSettings, fraction: float) -> list[Prompt]:
    found = cut_prompts(
        pair.target.tokenizer,
        settings.data,
        lengths=settings.prompt,
        per_document=settings.per_document,
        stride=max(settings.prompt) + settings.new_tokens,
        instruction=settings.instruction,
        text_field=settings.text_field,
    )
    documents = list(dict.fromkeys(prompt.document for prompt in found))
    kept = set(documents[: max(1, round(fraction * len(documents)))])  # a document is kept whole
    return [prompt for prompt in found if prompt.document in kept]


def _identity(
    pair: Pair,
    settings: AcceptanceSettings,
    prompts: Sequence[Prompt],
    policies: Sequence[str],
    frozen: RefreshController | None,
    seed: int,
) -> dict[str, Any]:
    plain = settings.model_dump(mode="json", exclude={"workers", "controller"})
    return {
        "format": FORMAT,
        "settings": plain,
        "policies": list(policies),
        "sampling_seed": seed if settings.temperature or settings.needles else None,
        "target": pair.target.identity(),
        "draft": pair.draft.identity(),
        "controller": _made_for(frozen) if frozen else None,
        "documents": len(documents_of(prompts)),
        "prompts_sha256": sha256_bytes(canonical_json([prompt.sha256 for prompt in prompts])),
        "device": pair.target.model.device.type,
        "versions": library_versions(),
    }


def _made_for(frozen: RefreshController) -> dict[str, Any]:
    """Which controller, and what it was made under: a result must show where that differs."""
    return {
        "sha256": frozen.frozen_sha256,
        "rule": frozen.rule.kind,
        "temperature": frozen.temperature,
        "drafted": frozen.drafted,
        "cache": frozen.cache,
    }


def _open(out: Path, identity: Mapping[str, Any]) -> None:
    """Begin a folder, or go on in one.

    Raises:
        BadInput: the folder holds results of something else; the first field that differs is named.
    """
    if (out / IDENTITY).is_file():
        before = read_json(out / IDENTITY)
        if not isinstance(before, dict):
            raise BadInput(f"{out / IDENTITY} says nothing of an evaluation", "choose another --out")
        require_same(out, before, json.loads(json.dumps(identity)))
    elif any(path.name not in (".lock",) for path in out.iterdir()):
        raise BadInput(f"{out} already exists and is not empty", "choose another --out or remove it")
    else:
        write_json(out / IDENTITY, identity)
