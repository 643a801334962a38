"""Text of a target with a draft whose cache is compressed: the target's own text, in fewer of its steps."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from pydantic import BaseModel, ConfigDict

from ridgefit.errors import BadInput
from ridgefit.hub import local_maps
from ridgefit.maps.refresh import RefreshController, load_controller
from ridgefit.maps.refresh_rows import controller_cautions
from ridgefit.pipeline.prompting import OF_A_FILL, Clock, decoding, prompt_ids, prompt_text
from ridgefit.recipe import (
    DraftGenerateSettings,
    GenerateSettings,
    ModelSettings,
    refuse_idle,
    require_used,
)
from ridgefit.runtime.draft import CacheSettings, policy_of
from ridgefit.runtime.draft.frozen import controller_from
from ridgefit.runtime.draft.reads import unread
from ridgefit.runtime.speculative import Decoded, Draft, drafting
from ridgefit.runtime.speculative.pair import SELF, load_pair
from ridgefit.runtime.speculative.standalone import Alone, require_own_controller, writing

NONE = "none"
"""In place of a draft: the target alone, with a small cache and no verification."""


class Drafted(BaseModel):
    """What a prompt became.

    Attributes:
        text: the new text, special tokens left out.
        policy: of the draft's cache.
        controller: what decided over refreshes under rift-ada; "none" is a file that found no rule.
        prompt_tokens: tokens of the prompt.
        new_tokens: tokens generated.
        acceptance_length: tokens per verification, the target's own included.
        rounds: verifications; 0 without a draft.
        refreshes: re-selections of the draft's cache.
        budget: most columns that draft attention may see; None without compression.
        widest: most that it saw.
        first_token_seconds: from the call to the first new token.
        seconds: the whole call.
        warnings: one line each.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str
    policy: str
    controller: str | None
    prompt_tokens: int
    new_tokens: int
    acceptance_length: float | None
    rounds: int
    refreshes: int
    budget: int | None
    widest: int
    first_token_seconds: float
    seconds: float
    warnings: tuple[str, ...]


def generate_draft(
    model: ModelSettings, settings: GenerateSettings, drafted: DraftGenerateSettings
) -> Drafted:
    """Generate from one prompt by speculative decoding, or by the target alone with the policy's cache.

    Raises:
        BadInput: no prompt, sizes or models that do not fit, a controller of another pair, or maps beside.
    """
    if settings.maps is not None or settings.policy is not None:
        raise BadInput(
            "a draft is not combined with maps or a recall policy", "leave --maps and --policy out"
        )
    refuse_idle(settings, OF_A_FILL, "with --draft, which fills no rows")
    require_used(drafted)
    text = prompt_text(settings)
    policy = policy_of(drafted.draft_policy)
    drafted.require_read(unread(policy), [policy.name])
    alone = drafted.draft == NONE
    if alone:
        require_own_controller(policy)
    cache = CacheSettings(**drafted.cache())
    frozen = load_controller(local_maps(drafted.controller)) if drafted.controller else None
    if policy.controller is None and frozen is None:
        raise BadInput(f"policy {policy.name} needs a controller", "name one with --controller")
    pair = load_pair(model.load_options(), SELF if alone else drafted.draft)
    if frozen is not None:
        frozen.require_models(pair.target.identity(), pair.draft.identity())
    ids = prompt_ids(pair.target, text, settings)
    controller = controller_from(frozen) if frozen is not None else None
    draft = Draft(pair.draft.model, policy, cache, controller, drafted.drafted)
    clock = Clock()
    reports: list[Decoded | Alone] = []
    how = (
        writing(policy, cache, reports.append, streamer=clock)
        if alone
        else drafting(draft, reports.append, streamer=clock)
    )
    asked = decoding(ids, settings, pair.target.tokenizer, clock)
    started = time.perf_counter()
    with torch.no_grad():
        sequence = pair.target.model.generate(**asked, custom_generate=how)
    seconds = time.perf_counter() - started
    found = reports[0]
    rounds = found.rounds if isinstance(found, Decoded) else []
    whole = [row.accepted for row in rounds if row.drafted == drafted.drafted]
    return Drafted(
        text=str(pair.target.tokenizer.decode(sequence[0, ids.shape[1] :], skip_special_tokens=True)),
        policy=policy.name,
        controller=frozen.rule.kind if frozen else None,
        prompt_tokens=ids.shape[1],
        new_tokens=len(found.tokens),
        acceptance_length=1 + sum(whole) / len(whole) if whole else None,
        rounds=len(rounds),
        refreshes=found.refreshes,
        budget=found.budget,
        widest=found.widest,
        first_token_seconds=clock.first - started,
        seconds=seconds,
        warnings=() if frozen is None else tuple(_cautions(frozen, drafted, settings.temperature)),
    )


def _cautions(frozen: RefreshController, drafted: DraftGenerateSettings, temperature: float) -> Iterator[str]:
    here = {**drafted.cache(), "temperature": temperature, "drafted": drafted.drafted}
    made = {**frozen.cache, "temperature": frozen.temperature, "drafted": frozen.drafted}
    return controller_cautions(frozen.rule.kind, made, here)
