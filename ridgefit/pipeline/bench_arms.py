"""What `bench prefill` times: arms at every split and tail, with random maps or a model's own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ridgefit import cost
from ridgefit.errors import BadInput
from ridgefit.evaluate.refinements import selectors_of
from ridgefit.maps import Fingerprint, LayerMap, MapSet, kind_of, load_maps, read_maps_manifest
from ridgefit.models import port_of
from ridgefit.pipeline.candidate_list import require_late
from ridgefit.pipeline.map_reads import MapReads
from ridgefit.recipe import BenchPrefillSettings, MapReadsSettings
from ridgefit.recipe.rows import row_label
from ridgefit.runtime import RidgeFill, Selector
from ridgefit.runtime.settings import require_settings


@dataclass(frozen=True)
class BenchArm:
    """An arm at one prompt length: how it is counted, and how it is applied.

    Attributes:
        name: exact, identity, ridge or pop.
        counted: for multiply-accumulates.
        reads: what its maps read; None without maps.
        fill: what the runtime applies; None for exact, and until there is a model.
        rows: selectors of further exact rows, as they were written; "" without.
        selectors: the same as the runtime takes them.
    """

    name: str
    counted: cost.Arm
    reads: MapReads | None = None
    fill: RidgeFill | None = None
    rows: str = ""
    selectors: tuple[Selector, ...] = ()

    @property
    def text(self) -> str | None:
        """What its maps read, for people."""
        return None if self.reads is None else self.reads.text


def own_maps(path: Path | None) -> dict[int, MapSet]:
    """Every split of a folder or file of maps; none without a path."""
    if path is None:
        return {}
    if kind_of(path) != "maps":
        found = load_maps(path)
        return {found.split: found}
    return {split: load_maps(path, split) for split in read_maps_manifest(path).splits}


def arms_of(
    shape: cost.ModelShape, settings: BenchPrefillSettings, tokens: int, maps: Mapping[int, MapSet]
) -> list[BenchArm]:
    """Exact first, then every arm at every split and tail, checked before anything is built.

    Raises:
        BadInput: a split or tail that cannot be, or that the maps do not hold.
    """
    suggestion = cost.suggest(shape, tokens)
    splits = settings.split or tuple(maps) or (suggestion.split,)
    require_late(settings.reads, min(splits))
    arms = [BenchArm("exact", cost.Arm(fill="exact"))]
    for name in settings.arms:
        if name == "pop":
            arms.append(BenchArm(name, cost.pop(shape.layers)))
            continue
        for split in splits:
            own = _own(maps, split, settings)
            sinks = settings.sink_rows
            if sinks is None:
                sinks = own.defaults.sink_rows if own else 0
            for tail in settings.tail or (_tail(own, sinks, tokens, suggestion.tail),):
                if min(split, tail) < 0:
                    raise BadInput(f"split {split} with tail {tail} cannot be", "use numbers of at least 1")
                plain = cost.Arm(
                    fill="ridge" if name == "ridge" else "identity", split=split, tail=tail, sink_rows=sinks
                )
                cost.check_arm(shape, plain, tokens)
                if name == "identity":
                    arms += _with_rows(BenchArm(name, plain), settings, shape, tokens)
                    continue
                for reads in _reads(shape, split, settings, own):
                    arm = BenchArm(name, reads.arm(split, tail, sinks), reads)
                    arms += _with_rows(arm, settings, shape, tokens)
    for arm in arms:
        cost.check_arm(shape, arm.counted, tokens)
        if arm.counted.fill != "exact" and arm.counted.tail + arm.counted.sink_rows >= tokens:
            raise BadInput(
                f"a tail of {arm.counted.tail} leaves nothing to fill in a prompt of {tokens} tokens",
                "lengthen --tokens or shorten --tail",
            )
    return arms


def _with_rows(
    plain: BenchArm, settings: BenchPrefillSettings, shape: cost.ModelShape, tokens: int
) -> list[BenchArm]:
    """An arm, and beside it the same with the rows that are asked for.

    Raises:
        BadInput: rows that do not fit the fill or the prompt, or that no tokenizer is there for.
    """
    if not settings.rows:
        return [plain]
    selectors, tail = selectors_of(settings.rows), plain.counted.tail
    for selector in selectors:
        if selector.reads_tokens and settings.model is None:
            raise BadInput(
                f"{selector.name} rows are chosen by what tokens are, and random weights have no tokenizer",
                "time a model of your own with --model",
            )
    require_settings(
        plain.name,
        plain.counted.split,
        attention=settings.attention,
        vocab=shape.vocab,
        tail=tail,
        sink_rows=plain.counted.sink_rows,
        rows=selectors,
        maps=settings.maps,
    )
    for selector in selectors:
        selector.check_prompt(tokens, tokens - tail)
    return [plain, replace(plain, rows=row_label(settings.rows), selectors=selectors)]


def _own(maps: Mapping[int, MapSet], split: int, settings: BenchPrefillSettings) -> MapSet | None:
    if maps and split not in maps:
        raise BadInput(
            f"{settings.maps} holds no split {split}, only {', '.join(map(str, maps))}", "name one of them"
        )
    return maps.get(split)


def _tail(own: MapSet | None, sinks: int, tokens: int, suggested: int) -> int:
    """The maps' own tail where the prompt is longer, else one that suits the prompt."""
    tail = own.defaults.tail if own else None
    return tail if tail is not None and tail + sinks < tokens else suggested


def _reads(
    shape: cost.ModelShape, split: int, settings: BenchPrefillSettings, own: MapSet | None
) -> list[MapReads]:
    """Maps to time: the model's own; or plain ones, and beside them those that are described."""
    if own is not None:
        return [MapReads.of_maps(shape, own)]
    plain = MapReadsSettings().reads
    wanted = [plain] if settings.plain else [plain, settings.reads]
    return [MapReads.of(shape, split, item) for item in wanted]


def random_model(
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


def with_fills(
    shape: cost.ModelShape,
    arms: Sequence[BenchArm],
    maps: Mapping[int, MapSet],
    model: torch.nn.Module,
    generator: torch.Generator,
) -> list[BenchArm]:
    """The arms, ready to be applied: with the model's own maps, or with random ones near the identity.

    Arms of one split that read the same share their maps, so that these are on the device once.
    """
    made: dict[tuple[int, MapReads], RidgeFill] = {}
    wanted = [arm for arm in arms if arm.reads is not None]
    layers = _random_layers(shape, wanted, generator) if wanted and not maps else {}
    for arm in wanted:
        split, reads = arm.counted.split, arm.reads
        if reads is not None and (split, reads) not in made:
            own = maps[split] if maps else _random_maps(shape, split, reads, layers, model, generator)
            made[split, reads] = RidgeFill.of(own)
    found = []
    for arm in arms:
        if arm.reads is not None:
            found.append(replace(arm, fill=made[arm.counted.split, arm.reads]))
        elif arm.counted.fill == "identity":
            found.append(replace(arm, fill=RidgeFill.identity(arm.counted.split)))
        else:
            found.append(arm)
    return found


def _random_layers(
    shape: cost.ModelShape, arms: Sequence[BenchArm], generator: torch.Generator
) -> dict[int, LayerMap]:
    """A map of the state for every layer from the lowest split on."""
    device, spread = generator.device, 0.1 / math.sqrt(shape.hidden)
    layers: dict[int, LayerMap] = {}
    for layer in range(min(arm.counted.split for arm in arms), shape.layers):
        weight = torch.randn(shape.hidden, shape.hidden, device=device, generator=generator) * spread
        weight.diagonal().add_(1.0)
        layers[layer] = LayerMap(weight.bfloat16(), torch.zeros(shape.hidden, device=device).bfloat16())
    return layers


def _random_maps(
    shape: cost.ModelShape,
    split: int,
    reads: MapReads,
    layers: Mapping[int, LayerMap],
    model: torch.nn.Module,
    generator: torch.Generator,
) -> MapSet:
    """The state's maps, with further columns where a layer reads more."""
    device, spread = generator.device, 0.1 / math.sqrt(shape.hidden)
    own: dict[int, LayerMap] = {}
    for layer in range(split, shape.layers):
        weight, bias = layers[layer]
        more = 0 if layer in reads.state_only else reads.width - shape.hidden
        if more:
            rest = torch.randn(shape.hidden, more, device=device, generator=generator) * spread
            weight = torch.cat([weight, rest.bfloat16()], dim=1)
        own[layer] = LayerMap(weight, bias)
    bottleneck = None
    if reads.bottleneck is not None:
        bottleneck = torch.randn(*reads.bottleneck, device=device, generator=generator)
        bottleneck /= math.sqrt(reads.bottleneck[0])
    fingerprint = Fingerprint.of(port_of(model).identity())
    return MapSet.of(own, features=reads.features, bottleneck=bottleneck, fingerprint=fingerprint)
