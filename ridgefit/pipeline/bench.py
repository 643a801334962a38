"""Prefill times of exact and filled arms, side by side in one process, beside the arithmetic limit.

The model has the dimensions of a preset and random weights: what a prefill costs does not depend on
what the weights are. Rounds are interleaved, each running every arm once in an order that turns from
round to round, so that a machine that slows down slows every arm; medians are over rounds.
"""

from __future__ import annotations

import contextlib
import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict

from ridgefit import cost
from ridgefit.errors import BadInput, CheckFailed
from ridgefit.maps import Fingerprint, LayerMap, MapSet
from ridgefit.models import device_of, port_of
from ridgefit.recipe import BenchPrefillSettings
from ridgefit.runtime import RidgeFill
from ridgefit.versions import library_versions, machine

Progress = Callable[[int, int, str], None]
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_LENGTHS = {"cpu": (512, 1024)}
_LONG = (16_384, 32_768)


class Timing(BaseModel):
    """One arm at one prompt length.

    Attributes:
        seconds: median over rounds.
        rounds: seconds of each round.
        speedup: median seconds of exact over those of the arm.
        limit: multiply-accumulates of exact over those of the arm.
        share: of the limit that the speedup reaches.
        rate: 10^12 multiply-accumulates per second.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens: int
    arm: str
    split: int | None
    tail: int | None
    sink_rows: int
    seconds: float
    rounds: tuple[float, ...]
    speedup: float
    limit: float
    share: float
    rate: float


class PrefillBench(BaseModel):
    """Timings, and everything they depend on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    preset: str
    vocab: int
    device: str
    dtype: str
    attention: str
    threads: int
    seed: int
    warmup: int
    repeats: int
    versions: dict[str, str]
    machine: dict[str, str | int | None]
    timings: tuple[Timing, ...]


@dataclass(frozen=True)
class _Arm:
    """An arm at one prompt length: how it is counted, and how it is applied."""

    name: str
    counted: cost.Arm
    fill: RidgeFill | None


def bench_prefill(settings: BenchPrefillSettings, progress: Progress | None = None) -> PrefillBench:
    """Time a plain `model(input_ids, use_cache=True, logits_to_keep=1)`, exact and with each arm applied.

    Args:
        settings: dimensions, arms and prompt lengths.
        progress: called after each timed prefill.

    Raises:
        BadInput: an unknown preset, device, split or tail.
        CheckFailed: an arm filled nothing or gave logits that are not finite.
    """
    config = cost.preset_config(settings.preset)
    if settings.vocab is not None:
        config["vocab_size"] = settings.vocab
    shape = cost.shape_from_config(config)
    lengths = settings.tokens or _LENGTHS.get(settings.preset, _LONG)
    plans = {tokens: _arms(shape, settings, tokens) for tokens in lengths}
    dtype = str(config["dtype"]) if settings.dtype == "auto" else settings.dtype
    device = device_of(settings.device)
    generator = torch.Generator(device).manual_seed(settings.seed)
    model = _random_model(config, _DTYPES[dtype], device, settings.attention, generator)
    maps = _random_maps(shape, plans, model, generator)
    total = sum(len(arms) for arms in plans.values()) * (settings.warmup + settings.repeats)
    report = _Steps(total, progress)
    timings: list[Timing] = []
    for tokens, arms in plans.items():
        ready = [_Arm(name, arm, _fill(arm, maps)) for name, arm in arms]
        prompt = torch.randint(shape.vocab, (1, tokens), device=device, generator=generator)
        rounds = _rounds(model, prompt, ready, settings, report)
        timings += _timings(shape, tokens, ready, rounds)
    return PrefillBench(
        preset=settings.preset,
        vocab=shape.vocab,
        device=str(device),
        dtype=dtype,
        attention=settings.attention,
        threads=torch.get_num_threads(),
        seed=settings.seed,
        warmup=settings.warmup,
        repeats=settings.repeats,
        versions=library_versions(),
        machine=machine(),
        timings=tuple(timings),
    )


def _arms(shape: cost.ModelShape, settings: BenchPrefillSettings, tokens: int) -> list[tuple[str, cost.Arm]]:
    """Exact first, then every arm at every split and tail, checked before anything is built."""
    suggestion = cost.suggest(shape, tokens)
    arms: list[tuple[str, cost.Arm]] = [("exact", cost.Arm(fill="exact"))]
    for name in settings.arms:
        if name == "pop":
            arms.append((name, cost.pop(shape.layers)))
            continue
        for split in settings.split or (suggestion.split,):
            for tail in settings.tail or (suggestion.tail,):
                if min(split, tail) < 0:
                    raise BadInput(f"split {split} with tail {tail} cannot be", "use numbers of at least 1")
                arms.append((name, cost.Arm(fill=name, split=split, tail=tail, sink_rows=settings.sink_rows)))
    for _, arm in arms:
        cost.prefill_macs(shape, arm, tokens)
        if arm.fill != "exact" and arm.tail + arm.sink_rows >= tokens:
            raise BadInput(
                f"a tail of {arm.tail} leaves nothing to fill in a prompt of {tokens} tokens",
                "lengthen --tokens or shorten --tail",
            )
    return arms


def _random_model(
    config: dict[str, Any],
    dtype: torch.dtype,
    device: torch.device,
    attention: str,
    generator: torch.Generator,
) -> torch.nn.Module:
    """A model of these dimensions, made on the device; its weights depend on the generator alone."""
    from transformers import AutoConfig, AutoModelForCausalLM

    own = {key: value for key, value in config.items() if key not in {"model_type", "dtype", "architectures"}}
    # Token numbers of the real tokenizer may lie outside a smaller vocabulary.
    own |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    described = AutoConfig.for_model(config["model_type"], **own)
    with device:
        model = AutoModelForCausalLM.from_config(described, dtype=dtype, attn_implementation=attention)
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.02, generator=generator)
    made: torch.nn.Module = model.to(device).eval().requires_grad_(False)
    return made


def _random_maps(
    shape: cost.ModelShape,
    plans: dict[int, list[tuple[str, cost.Arm]]],
    model: torch.nn.Module,
    generator: torch.Generator,
) -> dict[int, RidgeFill]:
    """Near-identity maps of every split that a ridge arm asks for, resident on the device."""
    splits = sorted({arm.split for arms in plans.values() for _, arm in arms if arm.fill == "ridge"})
    if not splits:
        return {}
    device, fingerprint = generator.device, Fingerprint.of(port_of(model).identity())
    spread = 0.1 / math.sqrt(shape.hidden)
    layers: dict[int, LayerMap] = {}
    for layer in range(splits[0], shape.layers):
        weight = torch.randn(shape.hidden, shape.hidden, device=device, generator=generator) * spread
        weight.diagonal().add_(1.0)
        layers[layer] = LayerMap(weight.bfloat16(), torch.zeros(shape.hidden, device=device).bfloat16())
    return {
        split: RidgeFill.of(
            MapSet.of({layer: layers[layer] for layer in range(split, shape.layers)}, fingerprint=fingerprint)
        )
        for split in splits
    }


def _fill(arm: cost.Arm, maps: dict[int, RidgeFill]) -> RidgeFill | None:
    if arm.fill == "exact":
        return None
    return maps[arm.split] if arm.fill == "ridge" else RidgeFill.identity(arm.split)


class _Steps:
    """Counts prefills for a progress bar."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._done, self._total, self._progress = 0, total, progress

    def step(self, text: str) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total, text)


def _rounds(
    model: torch.nn.Module,
    prompt: torch.Tensor,
    arms: Sequence[_Arm],
    settings: BenchPrefillSettings,
    report: _Steps,
) -> list[list[float]]:
    """Seconds by arm and timed round."""
    seconds: list[list[float]] = [[] for _ in arms]
    with _no_collection():
        for turn in range(settings.warmup + settings.repeats):
            order = [(position + turn) % len(arms) for position in range(len(arms))]
            for index in order:
                taken = _prefill(model, prompt, arms[index])
                if turn >= settings.warmup:
                    seconds[index].append(taken)
                report.step(f"{arms[index].name}, {prompt.shape[1]} tokens")
    return seconds


def _prefill(model: torch.nn.Module, prompt: torch.Tensor, arm: _Arm) -> float:
    """Seconds of one prefill; setting the arm up and taking it down is not counted."""
    applied = (
        contextlib.nullcontext()
        if arm.fill is None
        else arm.fill.applied(model, tail=arm.counted.tail, sink_rows=arm.counted.sink_rows)
    )
    with torch.inference_mode(), applied as filled:
        _wait(prompt.device)
        start = time.perf_counter()
        output = model(input_ids=prompt, use_cache=True, logits_to_keep=1)
        _wait(prompt.device)
        taken = time.perf_counter() - start
    if filled is not None and filled.filled != 1:
        raise CheckFailed(f"arm {arm.name} filled nothing in a prompt of {prompt.shape[1]} tokens")
    if not bool(torch.isfinite(output.logits[:, -1]).all()):
        raise CheckFailed(f"arm {arm.name} gives logits that are not finite", "try --dtype float32")
    return taken


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Keep Python's cycle collector out of the timed calls; caches are freed by their counts."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _timings(
    shape: cost.ModelShape, tokens: int, arms: Sequence[_Arm], rounds: Sequence[Sequence[float]]
) -> list[Timing]:
    medians = [statistics.median(times) for times in rounds]
    found = []
    for arm, times, seconds in zip(arms, rounds, medians, strict=True):
        counted = cost.prefill_macs(shape, arm.counted, tokens)
        exact, speedup = arm.fill is None, medians[0] / seconds
        found.append(
            Timing(
                tokens=tokens,
                arm=arm.name,
                split=None if exact else arm.counted.split,
                tail=None if exact else arm.counted.tail,
                sink_rows=arm.counted.sink_rows,
                seconds=seconds,
                rounds=tuple(times),
                speedup=speedup,
                limit=counted.speedup_limit,
                share=speedup / counted.speedup_limit,
                rate=counted.arm / seconds / 1e12,
            )
        )
    return found
