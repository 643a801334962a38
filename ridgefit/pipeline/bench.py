"""Prefill times of exact and filled arms, side by side in one process, beside the arithmetic limit.

The model has the dimensions of a preset and random weights, since what a prefill costs does not depend on
what the weights are; or it is a user's own with its own maps. Exact is transformers' own forward. Rounds are
interleaved, each running every arm once in an order that turns from round to round, so that a machine that
slows down slows every arm; medians are over rounds.
"""

from __future__ import annotations

import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict

from ridgefit import cost
from ridgefit.errors import BadInput, CheckFailed
from ridgefit.evaluate.run import maps_identity
from ridgefit.hub import local_maps
from ridgefit.maps import Fingerprint
from ridgefit.models import LoadedModel, device_of, load_model
from ridgefit.pipeline.bench_arms import BenchArm, arms_of, own_maps, random_model, with_fills
from ridgefit.pipeline.plan import find_config
from ridgefit.recipe import BenchPrefillSettings, require_used
from ridgefit.runtime.selectors import Probed
from ridgefit.versions import library_versions, machine

Progress = Callable[[int, int, str], None]
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_SHORT = (512, 1024)
_LONG = (16_384, 32_768)


class Timing(BaseModel):
    """One arm at one prompt length.

    Attributes:
        reads: what the arm's maps read; None where it has none.
        rows: selectors of further exact rows; None without.
        rows_chosen: how many rows they chose of this prompt, sink rows not counted.
        seconds: median over rounds.
        rounds: seconds of each round.
        speedup: median seconds of exact over those of the arm.
        limit: multiply-accumulates of exact over those of the arm; chosen rows and those of a probe are
            counted, the attention by which rows are chosen is not.
        share: of the limit that the speedup reaches.
        rate: 10^12 multiply-accumulates per second.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens: int
    arm: str
    reads: str | None
    split: int | None
    tail: int | None
    sink_rows: int
    seconds: float
    rounds: tuple[float, ...]
    speedup: float
    limit: float
    share: float
    rate: float
    rows: str | None = None
    rows_chosen: int = 0


class PrefillBench(BaseModel):
    """Timings, and everything they depend on.

    Attributes:
        preset: dimensions of a random model; None for a model with its own weights.
        base: name, revision and hashes of that model; None for a random one.
        maps: file -> sha256 of its maps; None for random ones.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    preset: str | None
    base: dict[str, str | None] | None
    maps: dict[str, str] | None
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


def bench_prefill(settings: BenchPrefillSettings, progress: Progress | None = None) -> PrefillBench:
    """Time a plain `model(input_ids, use_cache=True, logits_to_keep=1)`, exact and with each arm applied.

    Args:
        settings: dimensions, arms and prompt lengths.
        progress: called after each timed prefill.

    Raises:
        BadInput: an unknown preset, device, split or tail.
        CheckFailed: an arm filled nothing or gave logits that are not finite.
    """
    _require_consistent(settings)
    path = None if settings.maps is None else local_maps(settings.maps)
    settings = settings.model_copy(update={"maps": path})
    maps = own_maps(path)
    own = settings.model is not None
    config = find_config(settings.model, weights=True) if settings.model else _preset(settings)
    shape = cost.shape_from_config(config)
    device = device_of(settings.device)
    plans = {tokens: arms_of(shape, settings, tokens, maps) for tokens in _lengths(settings, config, device)}
    generator = torch.Generator(device).manual_seed(settings.seed)
    loaded = _loaded(settings) if own else None
    dtype = str(config.get("dtype")) if settings.dtype == "auto" else settings.dtype
    model = (
        loaded.model
        if loaded
        else random_model(config, _DTYPES[dtype], device, settings.attention, generator)
    )
    every = [arm for arms in plans.values() for arm in arms]
    filled = with_fills(shape, every, maps, model, generator)
    for arm in filled:
        if arm.fill is not None and loaded is not None:
            arm.fill.check(loaded.port, loaded.tokenizer)
    ready = iter(filled)
    report = _Steps(len(every) * (settings.warmup + settings.repeats), progress)
    timings: list[Timing] = []
    for tokens, arms in plans.items():
        applied = [next(ready) for _ in arms]
        prompt = torch.randint(shape.vocab, (1, tokens), device=device, generator=generator)
        rounds = _rounds(model, prompt, applied, settings, report, loaded.tokenizer if loaded else None)
        timings += _timings(shape, tokens, applied, rounds)
    return PrefillBench(
        preset=None if own else settings.preset,
        base=_base(loaded) if loaded else None,
        maps=maps_identity(path),
        vocab=shape.vocab,
        device=str(device),
        dtype=str(loaded.port.dtype).removeprefix("torch.") if loaded else dtype,
        attention=settings.attention,
        threads=torch.get_num_threads(),
        seed=settings.seed,
        warmup=settings.warmup,
        repeats=settings.repeats,
        versions=library_versions(),
        machine=machine(),
        timings=tuple(timings),
    )


def _require_consistent(settings: BenchPrefillSettings) -> None:
    """Refuse settings that say one thing twice, or nothing at all."""
    require_used(settings)
    if settings.maps is not None and settings.model is None:
        raise BadInput("maps belong to a model, and none is named", "name it with --model")
    if settings.maps is not None and not settings.plain:
        raise BadInput("maps say themselves what they read", "leave --features, --rank and --layers out")
    if settings.model is not None and settings.vocab is not None:
        raise BadInput(f"{settings.model} has its own vocabulary", "leave --vocab out")


def _preset(settings: BenchPrefillSettings) -> dict[str, Any]:
    config = cost.preset_config(settings.preset)
    return config if settings.vocab is None else config | {"vocab_size": settings.vocab}


def _loaded(settings: BenchPrefillSettings) -> LoadedModel:
    return load_model(
        str(settings.model), dtype=settings.dtype, device=settings.device, attention=settings.attention
    )


def _base(loaded: LoadedModel) -> dict[str, str | None]:
    """The model as far as a card must know that a timing is of its base model."""
    identity = Fingerprint.of(loaded.identity())
    return {key: getattr(identity, key) for key in ("name", "revision", "config_sha256", "tokenizer_sha256")}


def _lengths(
    settings: BenchPrefillSettings, config: Mapping[str, Any], device: torch.device
) -> tuple[int, ...]:
    """Prompt lengths asked for, or those that the preset or the device can do in a minute or so."""
    if settings.tokens:
        return settings.tokens
    small = device.type == "cpu" if settings.model else settings.preset == "cpu"
    longest = int(config.get("max_position_embeddings") or 0) or _LONG[-1]
    fitting = tuple(tokens for tokens in (_SHORT if small else _LONG) if tokens <= longest)
    return fitting or (longest,)


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
    arms: Sequence[BenchArm],
    settings: BenchPrefillSettings,
    report: _Steps,
    tokenizer: object,
) -> list[list[_Prefilled]]:
    """Timed prefills by arm and round."""
    found: list[list[_Prefilled]] = [[] for _ in arms]
    with _no_collection():
        for turn in range(settings.warmup + settings.repeats):
            order = [(position + turn) % len(arms) for position in range(len(arms))]
            for index in order:
                taken = _prefill(model, prompt, arms[index], tokenizer)
                if turn >= settings.warmup:
                    found[index].append(taken)
                report.step(f"{arms[index].name}, {prompt.shape[1]} tokens")
    return found


class _Prefilled(NamedTuple):
    """One prefill: its seconds, and how many rows its selectors chose beside the sink rows."""

    seconds: float
    chosen: int


def _prefill(model: torch.nn.Module, prompt: torch.Tensor, arm: BenchArm, tokenizer: object) -> _Prefilled:
    """One timed prefill; setting the arm up and taking it down is not counted."""
    applied = (
        contextlib.nullcontext()
        if arm.fill is None
        else arm.fill.applied(
            model,
            tail=arm.counted.tail,
            sink_rows=arm.counted.sink_rows,
            rows=arm.selectors or None,
            tokenizer=tokenizer,
        )
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
    chosen = filled.rows_chosen - arm.counted.sink_rows if filled is not None and arm.selectors else 0
    return _Prefilled(taken, chosen)


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
    shape: cost.ModelShape, tokens: int, arms: Sequence[BenchArm], rounds: Sequence[Sequence[_Prefilled]]
) -> list[Timing]:
    medians = [statistics.median(one.seconds for one in times) for times in rounds]
    found = []
    for arm, times, seconds in zip(arms, rounds, medians, strict=True):
        chosen = times[0].chosen
        counted = cost.prefill_macs(shape, _counted(arm, chosen), tokens)
        exact, speedup = arm.fill is None, medians[0] / seconds
        found.append(
            Timing(
                tokens=tokens,
                arm=arm.name,
                reads=arm.text,
                split=None if exact else arm.counted.split,
                tail=None if exact else arm.counted.tail,
                sink_rows=arm.counted.sink_rows,
                seconds=seconds,
                rounds=tuple(one.seconds for one in times),
                speedup=speedup,
                limit=counted.speedup_limit,
                share=speedup / counted.speedup_limit,
                rate=counted.arm / seconds / 1e12,
                rows=arm.rows or None,
                rows_chosen=chosen,
            )
        )
    return found


def _counted(arm: BenchArm, chosen: int) -> cost.Arm:
    """The arm with the rows that were chosen, and those with which a probe runs the late layers first."""
    asked = {
        one.rows
        for selector in arm.selectors
        for one in selector.asks(arm.counted.split)
        if isinstance(one, Probed)
    }
    return arm.counted.model_copy(update={"chosen_rows": chosen + sum(asked)})
