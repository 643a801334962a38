"""Train a draft under compressed attention, or, as the control, on the same texts without masks."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ridgefit.calibrate.compress.masks import Budget, compressed, full_layers, selected_columns
from ridgefit.calibrate.compress.rollouts import Rollouts, roll_out
from ridgefit.corpus import read_documents
from ridgefit.corpus.prompts import cut_prompts, documents_of
from ridgefit.errors import BadInput, CheckFailed
from ridgefit.files import new_folder, require_unused, write_json
from ridgefit.recipe import require_used
from ridgefit.recipe.drafting import TrainDraftSettings
from ridgefit.runtime.speculative.pair import Pair, end_tokens, load_pair
from ridgefit.versions import library_versions, machine

RECORD = "training.json"
_WARM_UP = 0.05
Progress = Callable[[int, int, str], None]


def train_draft(
    draft: dict[str, Any], settings: TrainDraftSettings, out: Path, *, progress: Progress | None = None
) -> dict[str, Any]:
    """A trained draft in `out`, with its tokenizer and `training.json`.

    Args:
        draft: keyword arguments of `load_decoder` for the draft; the target is loaded alike.
        settings: target, prompts, budgets, optimiser.
        out: a new folder.
        progress: called after each batch of rollouts and each update.

    Returns:
        what `training.json` holds: settings, identities, losses.

    Raises:
        BadInput: settings that would do nothing, no prompt is long enough, peft is missing, models that
            do not fit, a folder in use.
        CheckFailed: the loss is no number.
    """
    require_used(settings)
    require_unused(out)
    read_documents(settings.data)
    pair = load_pair({**draft, "ref": settings.target}, str(draft["ref"]))
    full_layers(pair.draft.model)
    prompts = cut_prompts(
        pair.target.tokenizer,
        settings.data,
        lengths=(settings.prompt,),
        per_document=settings.per_document,
        text_field=settings.text_field,
    )[: settings.prompts]
    rollouts = roll_out(
        pair.target.model,
        prompts,
        settings.rollout,
        end_tokens(pair.target),
        temperature=settings.temperature,
        seed=settings.seed,
        progress=progress,
    )
    before = pair.draft.identity()
    trainer = Trainer(pair, settings)
    losses = trainer.run(rollouts, progress)
    record = {
        "settings": settings.model_dump(mode="json"),
        "target": pair.target.identity(),
        "draft": before,
        "documents": list(documents_of(prompts)),
        "prompts": len(prompts),
        "updates": len(losses),
        "first_loss": sum(losses[:10]) / len(losses[:10]),
        "last_loss": sum(losses[-10:]) / len(losses[-10:]),
        "trained_weights": trainer.trained,
        "versions": library_versions(),
        "machine": machine(),
    }
    with new_folder(out) as folder:
        trainer.finished(pair.draft.model.dtype).save_pretrained(folder)
        pair.draft.tokenizer.save_pretrained(folder)
        write_json(folder / RECORD, record)
    return record


class Trainer:
    """One training, on one device, in fp32 with bf16 autocast on CUDA."""

    def __init__(self, pair: Pair, settings: TrainDraftSettings) -> None:
        self._settings = settings
        self._target = pair.target.model
        self._frozen = pair.draft.model
        model = copy.deepcopy(pair.draft.model).float().requires_grad_(True)
        self._model: Any = model if settings.method == "full" else _with_lora(model, settings.rank)
        self._weights = [weight for weight in self._model.parameters() if weight.requires_grad]
        self._optimizer = torch.optim.AdamW(self._weights, lr=settings.rate, betas=(0.9, 0.95))
        self._draw = torch.Generator().manual_seed(settings.seed)

    @property
    def trained(self) -> int:
        """How many weights are trained."""
        return sum(weight.numel() for weight in self._weights)

    def run(self, rollouts: Rollouts, progress: Progress | None = None) -> list[float]:
        """All updates; the loss of each."""
        settings, started = self._settings, time.monotonic()
        losses: list[float] = []
        for step in range(settings.steps):
            share = step / settings.steps
            if settings.seconds is not None:
                share = max(share, (time.monotonic() - started) / settings.seconds)
            if share >= 1:
                break
            for group in self._optimizer.param_groups:
                group["lr"] = settings.rate * _rate(share)
            rows = torch.randint(0, len(rollouts.ids), (settings.batch,), generator=self._draw)
            losses.append(self._update(rollouts, rows))
            if not math.isfinite(losses[-1]):
                raise CheckFailed(f"the loss of update {step} is {losses[-1]}", "lower --rate")
            if progress:
                progress(step + 1, settings.steps, f"loss {losses[-1]:.3f}")
        return losses

    def finished(self, dtype: torch.dtype) -> Any:
        """The trained model, adapters merged, in the draft's dtype."""
        model = self._model if self._settings.method == "full" else self._model.merge_and_unload()
        return model.to(dtype)

    def budget(self, prompt: int) -> Budget:
        """A budget drawn with a bias to high compression (section 5, J.3)."""
        settings = self._settings
        drawn = float(torch.rand(1, generator=self._draw)) ** settings.skew
        share = settings.least + (settings.most - settings.least) * drawn
        columns = max(2, int(share * prompt))
        recent = max(1, int(settings.recent_share * columns))
        return Budget(columns, recent, settings.observe, settings.kernel)

    def _update(self, rollouts: Rollouts, rows: Tensor) -> float:
        device = self._target.device
        ids = rollouts.ids[rows].to(device)
        weights = rollouts.weights[rows].to(device)
        prefix = rollouts.prompt - 1
        budget = self.budget(rollouts.prompt)
        with torch.no_grad():
            wanted = self._target(input_ids=ids[:, :-1], use_cache=False).logits[:, prefix:].float()
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            logits = self._logits(ids[:, :-1], prefix, budget)[:, prefix:].float()
        each = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), ids[:, prefix + 1 :].flatten(), reduction="none"
        )
        # Cross-entropy towards the target's distribution: its KL divergence and a constant.
        followed = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), wanted.flatten(0, 1).softmax(-1), reduction="none"
        )
        mixed = (1 - self._settings.distil) * each + self._settings.distil * followed
        loss = (mixed * weights.flatten()).sum() / weights.sum()
        self._optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self._weights, 1.0)
        self._optimizer.step()
        return float(loss.detach())

    def _logits(self, ids: Tensor, prefix: int, budget: Budget) -> Tensor:
        if not self._settings.masks or budget.columns >= prefix:
            plain: Tensor = self._model(input_ids=ids, use_cache=False).logits
            return plain
        columns = selected_columns(self._frozen, ids, prefix, budget)
        with compressed(self._model, columns, prefix, budget.recent):
            logits: Tensor = self._model(input_ids=ids, use_cache=False).logits
        return logits


def _rate(share: float) -> float:
    """Linear warm-up, then half a cosine to a tenth."""
    if share < _WARM_UP:
        return (share + 1e-3) / (_WARM_UP + 1e-3)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (share - _WARM_UP) / (1 - _WARM_UP)))


def _with_lora(model: Any, rank: int) -> Any:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise BadInput("LoRA needs peft, which is not installed", "pip install 'ridgefit[lora]'") from error
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(model, config)
