"""Text of a target with a draft whose cache is compressed: the target's own text, in fewer of its steps."""

from __future__ import annotations

import time

import torch
from pydantic import BaseModel, ConfigDict

from ridgefit.errors import BadInput
from ridgefit.hub import local_maps
from ridgefit.maps.refresh import RefreshController, load_controller
from ridgefit.pipeline.prompting import Clock, numbers, pad_id, prompt_ids, prompt_text, sampling
from ridgefit.recipe import DraftGenerateSettings, GenerateSettings, ModelSettings
from ridgefit.runtime.draft import CacheSettings, policy_of
from ridgefit.runtime.draft.frozen import controller_from
from ridgefit.runtime.speculative import Decoded, Draft, drafting
from ridgefit.runtime.speculative.pair import SELF, Pair, load_pair
from ridgefit.runtime.speculative.standalone import Alone, require_own_controller, writing

NONE = "none"
"""In place of a draft: the target alone, with a small cache and no verification."""

# A draft reads the prompt in one dense pass; silence would let a user believe that these were applied.
_OF_A_FILL = ("arm", "split", "tail", "sink_rows", "rows", "prefill_chunk")
_UNSET = GenerateSettings.model_fields


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
    unused = [name for name in _OF_A_FILL if getattr(settings, name) != _UNSET[name].default]
    if unused:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in unused)
        raise BadInput(
            f"{options} would do nothing with --draft, which fills no rows", f"leave {options} out"
        )
    text = prompt_text(settings)
    policy = policy_of(drafted.draft_policy)
    if drafted.controller is not None and policy.controller is not None:
        raise BadInput(
            f"policy {policy.name} decides over refreshes by itself, so a controller would change it",
            "add --draft-policy rift-ada, or leave --controller out",
        )
    alone = drafted.draft == NONE
    if alone:
        require_own_controller(policy)
        if drafted.drafted != DraftGenerateSettings.model_fields["drafted"].default:
            raise BadInput("--drafted would do nothing with --draft none", "leave --drafted out")
    cache = CacheSettings(**drafted.cache())
    pair = load_pair(model.load_options(), SELF if alone else drafted.draft)
    ids = prompt_ids(pair.target, text, settings)
    frozen = _controller(pair, drafted)
    draft = Draft(
        pair.draft.model, policy, cache, controller_from(frozen) if frozen else None, drafted.drafted
    )
    clock = Clock()
    reports: list[Decoded | Alone] = []
    how = (
        writing(policy, cache, reports.append, streamer=clock)
        if alone
        else drafting(draft, reports.append, streamer=clock)
    )
    torch.manual_seed(settings.seed)  # both models sample from the global generator
    started = time.perf_counter()
    with torch.no_grad():
        sequence = pair.target.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=settings.new_tokens,
            streamer=clock,
            logits_processor=[numbers],
            pad_token_id=pad_id(pair.target.tokenizer),
            custom_generate=how,
            **sampling(settings.temperature),
        )
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
    )


def _controller(pair: Pair, drafted: DraftGenerateSettings) -> RefreshController | None:
    if drafted.controller is None:
        return None
    frozen = load_controller(local_maps(drafted.controller))
    frozen.require_models(pair.target.identity(), pair.draft.identity())
    return frozen
