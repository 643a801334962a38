"""Train one small test model from scratch: half plain text, half needle prompts.

    python recipes/testbed/train.py --family llama --data work/testbed/data --out work/testbed/llama

The model is transformers' own class, so that ports are tested on the real thing. Batches depend only on the
seed and the step; with `--seconds` a slow machine shortens the schedule instead of being cut off in it.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kda
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from ridgefit.evaluate import needle_text

FAMILIES: dict[str, tuple[type[Any], type[Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
HYBRIDS = ("kimi_linear", "kimi_linear_rotated")
LARGEST_FILE = 16 << 20  # bytes of model.safetensors
TOKENS_PER_STEP = 16_384
LENGTHS = (
    (0.40, 256),
    (0.65, 512),
    (0.83, 1024),
    (1.0, 2048),
)  # (until this share of the training, row length)
MOST_NEEDLES = 8
MOST_QUESTIONS = 4
ANSWER_WEIGHT = 10.0
PROMPT_WEIGHT = 0.1
PEAK_RATE = 2e-3
WARM_UP = 0.04
NOISE_SHARE = 0.25


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--family", choices=sorted([*FAMILIES, *HYBRIDS]), required=True)
    parser.add_argument("--data", type=Path, required=True, help="folder of prepare.py")
    parser.add_argument("--out", type=Path, required=True, help="folder of the model, without its tokenizer")
    parser.add_argument("--steps", type=int, default=4324, help="steps of 16,384 tokens")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="time after which the schedule has ended"
    )
    parser.add_argument("--tokens-per-step", type=int, default=TOKENS_PER_STEP)
    parser.add_argument("--workers", type=int, default=4, help="processes that build batches")
    parser.add_argument("--graphs", action="store_true", help="replay steps as CUDA graphs")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(arguments.seed)
    hybrid = arguments.family in HYBRIDS
    model = (new_hybrid if hybrid else new_model)(arguments.family).to(device).train()
    clock = Clock(arguments.steps, arguments.seconds)
    batches = DataLoader(
        Batches(arguments.data, arguments.tokens_per_step, arguments.seed),
        batch_size=None,
        sampler=clock,
        num_workers=arguments.workers,
        pin_memory=device == "cuda",
    )
    optimizer = new_optimizer(model, fused=device == "cuda", graphs=arguments.graphs)
    update: Step = Replayed(model, optimizer) if arguments.graphs else Eager(model, optimizer, device)
    losses: list[torch.Tensor] = []
    for step, batch in enumerate(batches):
        losses.append(update(batch, PEAK_RATE * rate(clock.share(step))))
        if step % 100 == 0:
            text, answer = torch.stack(losses).mean(0).tolist()
            losses.clear()
            row = {"step": step, "seconds": round(clock.elapsed(), 1), "length": batch[0].shape[1] - 1}
            print(
                json.dumps(row | {"text_loss": round(text, 4), "answer_loss": round(answer, 4)}), flush=True
            )
    save(model, arguments.out)
    print(json.dumps({"trained_seconds": round(clock.elapsed(), 1), "steps": step + 1}), flush=True)


def new_model(family: str) -> PreTrainedModel:
    """12 layers of width 256 in fp32, about 8.2 M parameters."""
    config_class, model_class = FAMILIES[family]
    config = config_class(
        vocab_size=2048,
        hidden_size=256,
        intermediate_size=576,
        num_hidden_layers=12,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
        use_cache=True,
    )
    return model_class(config)


def new_hybrid(family: str) -> PreTrainedModel:
    """12 layers of width 256 in fp32, 6.2 M parameters: latent attention in every fourth, KDA in the others.

    Widths keep Kimi Linear's proportions: latent 8 to branch 1, branch a third of a query. The recurrent
    state is small, so that long-range retrieval has to go through the latent cache.
    """
    from transformers.models.kimi_linear import modeling_kimi_linear

    from ridgefit.models.kimi_linear_rotated import (
        KimiLinearConfig,
        KimiLinearForCausalLM,
        RotatedKimiLinearConfig,
        RotatedKimiLinearForCausalLM,
    )

    modeling_kimi_linear.chunk_kimi_delta_attention = kda.chunked_kda
    modeling_kimi_linear.causal_conv1d_fn = kda.shifted_conv
    rotated = family == "kimi_linear_rotated"
    config = (RotatedKimiLinearConfig if rotated else KimiLinearConfig)(
        vocab_size=2048,
        hidden_size=256,
        intermediate_size=320,
        num_hidden_layers=12,
        num_attention_heads=8,
        num_key_value_heads=8,
        kv_lora_rank=128,
        qk_rope_head_dim=16,
        qk_nope_head_dim=32,
        v_head_dim=32,
        linear_head_dim=32,
        linear_num_heads=4,
        layer_types=(["linear_attention"] * 3 + ["full_attention"]) * 3,
        mlp_layer_types=["dense"] * 12,
        max_position_embeddings=8192,
        rms_norm_eps=1e-6,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
        use_cache=True,
    )
    return (RotatedKimiLinearForCausalLM if rotated else KimiLinearForCausalLM)(config)


def new_optimizer(model: PreTrainedModel, *, fused: bool, graphs: bool = False) -> torch.optim.Optimizer:
    """AdamW; norm weights, decay rates and their biases do not decay."""
    named = dict(model.named_parameters())
    vectors = [weight for name, weight in named.items() if weight.ndim == 1 or name.endswith("A_log")]
    matrices = [weight for name, weight in named.items() if weight.ndim > 1 and not name.endswith("A_log")]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    start = torch.tensor(PEAK_RATE, device="cuda") if graphs else PEAK_RATE
    return torch.optim.AdamW(groups, lr=start, betas=(0.9, 0.95), fused=fused, capturable=graphs)


def rate(share: float) -> float:
    """Linear warm-up, then half a cosine down to 2 %."""
    if share < WARM_UP:
        return share / WARM_UP + 1e-3
    return 0.02 + 0.49 * (1 + math.cos(math.pi * (share - WARM_UP) / (1 - WARM_UP)))


Batch = tuple[torch.Tensor, ...]
Step = Callable[[Batch, float], torch.Tensor]
NO_MASK = dict.fromkeys(("full_attention", "linear_attention"))  # a hybrid looks no further for padding


class Eager:
    """Updates, one kernel after the other; returns the losses of `train_step`."""

    def __init__(self, model: PreTrainedModel, optimizer: torch.optim.Optimizer, device: str) -> None:
        self._model = model
        self._optimizer = optimizer
        self._device = device

    def __call__(self, batch: Batch, learning_rate: float) -> torch.Tensor:
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        tokens, weights = (part.to(self._device, non_blocking=True) for part in batch)
        return train_step(self._model, self._optimizer, tokens, weights)


class Replayed:
    """The same updates as CUDA graphs, one for each shape: small models wait for launches otherwise."""

    def __init__(self, model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> None:
        self._model = model
        self._optimizer = optimizer
        self._graphs: dict[torch.Size, tuple[torch.cuda.CUDAGraph, list[torch.Tensor], torch.Tensor]] = {}
        self._warm: dict[torch.Size, int] = {}
        self._stream = torch.cuda.Stream()

    def __call__(self, batch: Batch, learning_rate: float) -> torch.Tensor:
        for group in self._optimizer.param_groups:
            group["lr"].fill_(learning_rate)
        shape = batch[0].shape
        if shape not in self._graphs and self._warm.get(shape, 0) < 3:
            self._warm[shape] = self._warm.get(shape, 0) + 1
            return self._plain(batch)
        if shape not in self._graphs:
            self._graphs[shape] = self._capture(batch)
        graph, inputs, losses = self._graphs[shape]
        for held, part in zip(inputs, batch, strict=True):
            held.copy_(part, non_blocking=True)
        graph.replay()
        out = losses.clone()
        torch.cuda.current_stream().synchronize()  # the clock of the schedule counts finished steps
        return out

    def _plain(self, batch: Batch) -> torch.Tensor:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            losses = train_step(self._model, self._optimizer, *(part.cuda() for part in batch))
        torch.cuda.current_stream().wait_stream(self._stream)
        torch.cuda.synchronize()
        return losses

    def _capture(self, batch: Batch) -> tuple[torch.cuda.CUDAGraph, list[torch.Tensor], torch.Tensor]:
        inputs = [part.cuda() for part in batch]
        self._optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # thread_local: the thread that pins batches goes on working
        pool = next(iter(self._graphs.values()))[0].pool() if self._graphs else None
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            losses = train_step(self._model, self._optimizer, *inputs)
        return graph, inputs, losses


def train_step(
    model: PreTrainedModel, optimizer: torch.optim.Optimizer, tokens: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """One update; returns [mean loss of plain text rows, mean loss of answer tokens]."""
    mask = {"attention_mask": NO_MASK} if model.config.model_type in HYBRIDS else {}
    with torch.autocast(tokens.device.type, dtype=torch.bfloat16):
        logits = model(input_ids=tokens[:, :-1], use_cache=False, **mask).logits
    each = torch.nn.functional.cross_entropy(
        logits.float().flatten(0, 1), tokens[:, 1:].flatten(), reduction="none"
    )
    weights = weights[:, 1:].flatten()
    loss = (each * weights).sum() / weights.sum()
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    kinds = torch.stack([weights == 1.0, weights == ANSWER_WEIGHT]).float()
    return (kinds @ each.detach()) / kinds.sum(1).clamp(min=1)


def save(model: PreTrainedModel, out: Path) -> None:
    """bf16 safetensors and configuration.

    Raises:
        ValueError: the weights file is larger than 16 MiB.
    """
    model.to(torch.bfloat16).save_pretrained(out)
    size = (out / "model.safetensors").stat().st_size
    if size > LARGEST_FILE:
        raise ValueError(f"model.safetensors has {size} bytes, more than {LARGEST_FILE}")


class Clock:
    """Which share of the training is over, by steps or by time, whichever is ahead; yields (step, length)."""

    def __init__(self, steps: int, seconds: float) -> None:
        self._steps = steps
        self._seconds = seconds
        self._start = time.monotonic()

    def elapsed(self) -> float:
        return time.monotonic() - self._start

    def share(self, step: int) -> float:
        return min(1.0, max(step / self._steps, self.elapsed() / self._seconds))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for step in range(self._steps):
            share = self.share(step)
            if share >= 1.0:
                return
            yield step, next(length for until, length in LENGTHS if share < until)


@dataclass
class Piece:
    """Tokens with the loss weight of each of them."""

    tokens: list[int]
    weight: float


class Batches(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """(step, length) -> tokens [rows, length + 1] and loss weights of the same shape."""

    def __init__(self, data: Path, tokens_per_step: int, seed: int) -> None:
        self._tokens = np.load(data / "tokens.npy", mmap_mode="r")
        self._tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(data / "tokenizer")
        self._tokens_per_step = tokens_per_step
        self._seed = seed
        texts = [self._tokenizer.decode([token]) for token in range(len(self._tokenizer))]
        self._newline = np.array([text.startswith("\n") for text in texts])
        self._blank = np.array([text.startswith(" ") for text in texts])
        self._stop = np.array([text.endswith((".", "!", "?")) for text in texts])
        unit = next(needle_text.NoiseHaystack().units(random.Random(0))).strip()
        self._noise = np.asarray(self._encode(["\n" + unit])[0], np.int64)

    def __getitem__(self, at: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
        step, length = at
        rng = random.Random(self._seed * 1_000_003 + step)
        rows = max(2, self._tokens_per_step // length)
        tokens = np.empty((rows, length + 1), np.int64)
        weights = np.ones((rows, length + 1), np.float32)
        for row in range(rows):
            if row % 2:
                tokens[row], weights[row] = self._needle_row(rng, length + 1)
            else:
                start = rng.randrange(len(self._tokens) - length - 1)
                tokens[row] = self._tokens[start : start + length + 1]
        return torch.from_numpy(tokens), torch.from_numpy(weights)

    def _encode(self, texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._tokenizer.backend_tokenizer.encode_batch_fast(texts)]

    def _needle_row(self, rng: random.Random, length: int) -> tuple[np.ndarray, np.ndarray]:
        """A prompt of exactly `length` tokens: introduction, filler with needles, questions with answers."""
        needles = min(rng.choice((1, 1, 2, 3, 4, 5, 6, MOST_NEEDLES)), max(1, (length - 100) // 48))
        keys, values = needle_text.draw_keys(rng, needles), needle_text.draw_values(rng, needles)
        asked = rng.sample(range(needles), min(needles, MOST_QUESTIONS, max(1, length // 128)))
        ends = self._questions([keys[i] for i in asked], [values[i] for i in asked])
        (opening,) = self._encode([needle_text.INTRODUCTION])
        lines = [needle_text.needle_sentence(key, value) for key, value in zip(keys, values, strict=True)]
        spaced, broken = (
            self._encode([" " + line for line in lines]),
            self._encode(["\n" + line for line in lines]),
        )
        room = length - len(opening) - sum(len(piece.tokens) for piece in ends)
        early = room - sum(
            map(len, broken)
        )  # a needle led by a blank is a token shorter: trim filler, not it
        filler, places = self._filler(rng, early, early + needles)
        chosen = sorted(
            rng.sample(places, needles) if len(places) >= needles else rng.choices(places, k=needles)
        )
        body: list[int] = []
        done = 0
        for at, blank, line in zip(chosen, spaced, broken, strict=True):
            body += filler[done:at]
            body += blank if self._blank[filler[at]] else line
            done = at
        body = (body + filler[done:])[:room]
        pieces = [Piece(opening + body, PROMPT_WEIGHT), *ends]
        tokens = [token for piece in pieces for token in piece.tokens]
        weights = [piece.weight for piece in pieces for _ in piece.tokens]
        return np.asarray(tokens), np.asarray(weights, np.float32)

    def _questions(self, keys: list[str], values: list[str]) -> list[Piece]:
        """Question, answer prefix and answer for each key, and the end token."""
        asked = self._encode(
            [f"\n{needle_text.question(key)}{needle_text.answer_prefix(key)}" for key in keys]
        )
        given = self._encode([f" {value}." for value in values])
        pairs = zip(asked, given, strict=True)
        pieces = [
            piece for ask, give in pairs for piece in (Piece(ask, PROMPT_WEIGHT), Piece(give, ANSWER_WEIGHT))
        ]
        return [*pieces, Piece([self._tokenizer.eos_token_id], PROMPT_WEIGHT)]

    def _filler(self, rng: random.Random, early: int, length: int) -> tuple[list[int], list[int]]:
        """`length` tokens of text or noise, and the positions up to `early` where a needle may go in."""
        if rng.random() < NOISE_SHARE:
            return np.resize(self._noise, length).tolist(), list(range(0, early + 1, len(self._noise)))
        start = rng.randrange(len(self._tokens) - length - 1)
        text = np.asarray(self._tokens[start : start + length], np.int64)
        ends = np.concatenate([[False], self._stop[text[:-1]]])
        places = np.flatnonzero((self._newline[text] | (self._blank[text] & ends))[: early + 1])
        return text.tolist(), places.tolist() or list(range(early + 1))


if __name__ == "__main__":
    main()
