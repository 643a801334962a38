"""Train a small draft for a model that exists: the same vocabulary, the same texts, its logits as teacher.

    python recipes/testbed/train_draft.py --target ridgefit/bundled/llama --data work/testbed/draft-data \
        --out work/testbed/draft

The draft is Llama's scheme with 4 layers of width 192, 2.0 M parameters. The loss is the cross-entropy to the
target's next-token distribution, plus a little to the text. Rows are those of train.py: half plain text, half
needle prompts, so that the draft looks far back too and its cache matters.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from train import (
    ANSWER_WEIGHT,
    PEAK_RATE,
    TOKENS_PER_STEP,
    Batches,
    Clock,
    new_optimizer,
    rate,
    save,
)
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

TEXT_SHARE = 0.1  # of the loss; the rest follows the target


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, required=True, help="folder of the model to draft for")
    parser.add_argument("--data", type=Path, required=True, help="folder of prepare.py --tokenizer TARGET")
    parser.add_argument("--out", type=Path, required=True, help="folder of the draft")
    parser.add_argument("--steps", type=int, default=4324, help="steps of 16,384 tokens")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="time after which the schedule has ended"
    )
    parser.add_argument("--tokens-per-step", type=int, default=TOKENS_PER_STEP)
    parser.add_argument("--workers", type=int, default=4, help="processes that build batches")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(arguments.seed)
    target = AutoModelForCausalLM.from_pretrained(arguments.target, dtype=torch.bfloat16).to(device).eval()
    draft = new_draft(target).to(device)
    clock = Clock(arguments.steps, arguments.seconds)
    batches = DataLoader(
        Batches(arguments.data, arguments.tokens_per_step, arguments.seed),
        batch_size=None,
        sampler=clock,
        num_workers=arguments.workers,
        pin_memory=device == "cuda",
    )
    optimizer = new_optimizer(draft, fused=device == "cuda")
    rows: list[Tensor] = []
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = PEAK_RATE * rate(clock.share(step))
        rows.append(train_step(draft, target, optimizer, batch, device))
        if step % 100 == 0:
            text, agreed, answers = torch.stack(rows).mean(0).tolist()
            rows.clear()
            row = {"step": step, "seconds": round(clock.elapsed(), 1), "length": batch[0].shape[1] - 1}
            agreement = {"agreed": round(agreed, 4), "agreed_on_answers": round(answers, 4)}
            print(json.dumps(row | {"text_loss": round(text, 4)} | agreement), flush=True)
    save(draft, arguments.out)
    print(json.dumps({"trained_seconds": round(clock.elapsed(), 1), "steps": step + 1}), flush=True)


def new_draft(target: PreTrainedModel) -> PreTrainedModel:
    """4 layers of width 192 in fp32; vocabulary and positions are the target's."""
    config = target.config
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=192,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=6,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=config.max_position_embeddings,
            rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
            rms_norm_eps=1e-6,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=0,
            pad_token_id=0,
            use_cache=True,
        )
    )


def train_step(
    draft: PreTrainedModel,
    target: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    batch: tuple[Tensor, ...],
    device: str,
) -> Tensor:
    """One update; returns [loss of plain text, share where the argmaxes agree in it, and in answers]."""
    tokens, weights = (part.to(device, non_blocking=True) for part in batch)
    with torch.autocast(device, dtype=torch.bfloat16):
        with torch.no_grad():
            wanted = target(input_ids=tokens[:, :-1], use_cache=False).logits.flatten(0, 1).float()
        logits = draft(input_ids=tokens[:, :-1], use_cache=False).logits.flatten(0, 1).float()
    each = torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten(), reduction="none")
    followed = torch.nn.functional.cross_entropy(logits, wanted.softmax(-1), reduction="none")
    weights = weights[:, 1:].flatten()
    loss = ((TEXT_SHARE * each + (1 - TEXT_SHARE) * followed) * weights).sum() / weights.sum()
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
    optimizer.step()
    kinds = torch.stack([weights == 1.0, weights == ANSWER_WEIGHT]).float()
    counts = kinds.sum(1).clamp(min=1)
    agreed = kinds @ (logits.argmax(-1) == wanted.argmax(-1)).float() / counts
    return torch.cat([kinds[:1] @ each.detach() / counts[:1], agreed])


if __name__ == "__main__":
    main()
