"""Maps that read more than the split state, against the same fill done by hand with stock calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from runtime_reference import HIDDEN, continued, filled_cache, hooks, random_maps
from tiny_models import LAYERS, TINY, tokens
from transformers import DynamicCache

from ridgefit.errors import BadInput
from ridgefit.features import FeatureCarry, FeatureInputs
from ridgefit.maps import LayerMap, MapSet, load_maps, write_source
from ridgefit.models import port_of
from ridgefit.runtime import RidgeFill, check_model
from ridgefit.runtime.inputs import MappedInputs
from ridgefit.runtime.selectors.explicit import Explicit

SPLIT, PROMPT, TAIL, MLP = 3, 30, 11, 48
NAMES = ("state", "previous-1", "mlp", "lower-2", "average-4", "previous-3")
RANK = 6
close = {"rtol": 1e-5, "atol": 1e-4}


def feature_maps(
    names: tuple[str, ...], *, rank: int | None = None, narrow: tuple[int, ...] = (), seed: int = 0
) -> MapSet:
    """Random maps near the identity on the state, with everything else mixed in."""
    generator = torch.Generator().manual_seed(seed)
    rest = sum(MLP if name == "mlp" else HIDDEN for name in names[1:])
    more = rest if rank is None else rank

    def one(layer: int) -> LayerMap:
        width = HIDDEN if layer in narrow else HIDDEN + more
        weight = 0.3 * torch.randn(HIDDEN, width, generator=generator) / width**0.5
        weight[:, :HIDDEN] += torch.eye(HIDDEN)
        return LayerMap(weight.bfloat16(), 0.3 * torch.randn(HIDDEN, generator=generator).bfloat16())

    bottleneck = None if rank is None else torch.randn(rest, rank, generator=generator) / rest**0.5
    layers = range(SPLIT, LAYERS)
    return MapSet.of({layer: one(layer) for layer in layers}, features=names, bottleneck=bottleneck)


def columns(model: Any, ids: torch.Tensor, names: tuple[str, ...]) -> list[torch.Tensor]:
    """Each feature of one unpadded prompt, from the stock model's own hidden states."""
    with torch.no_grad():
        states = model(ids, output_hidden_states=True).hidden_states
        h = states[SPLIT]
        found = []
        for name in names:
            base, _, number = name.rpartition("-")
            k = int(number) if base else 0
            if name == "state":
                found.append(h)
            elif name == "mlp":
                found.append(port_of(model).mlp_activations(SPLIT, h))
            elif base == "lower":
                found.append(states[SPLIT - k])
            elif base == "previous":
                found.append(torch.cat([h[:, :1]] * k + [h[:, :-k]], dim=1))
            elif base == "average":
                rows = []
                for t in range(h.shape[1]):
                    weight = 0.5 ** ((t - torch.arange(t + 1)) / k)
                    rows.append((weight[:, None] * h[0, : t + 1]).sum(0) / weight.sum())
                found.append(torch.stack(rows)[None])
    return found


def predict_with(model: Any, ids: torch.Tensor, maps: MapSet) -> Callable[[int, torch.Tensor], torch.Tensor]:
    state, *rest = columns(model, ids, maps.features)
    kept, through = torch.cat([state, *rest], -1), maps.bottleneck_weight()
    if through is not None:
        kept = torch.cat([state, torch.cat(rest, -1) @ through.float()], -1)

    def predict(layer: int, h: torch.Tensor) -> torch.Tensor:
        weight, bias = maps.layer(layer)
        return kept[..., : weight.shape[1]] @ weight.float().T + bias.float()

    return predict


@pytest.mark.parametrize("name", sorted(set(TINY) - {"qwen3_moe"}))
@pytest.mark.parametrize("rank", [None, RANK])
@torch.no_grad()
def test_fill_is_what_stock_makes_of_a_hand_filled_cache(
    name: str, rank: int | None, tiny_model: Callable[..., Any]
) -> None:
    model, ids, further = tiny_model(name), tokens(PROMPT), tokens(4, seed=1)
    maps = feature_maps(NAMES, rank=rank, narrow=(SPLIT + 1,))
    assert [maps.width(layer) == HIDDEN for layer in maps.layers] == [False, True, False]
    columns(model, ids, ("state",))  # transformers leaves hooks of its own when hidden states are asked for
    before = hooks(model)
    for sinks in (0, 3):
        by_hand = filled_cache(model, ids, SPLIT, TAIL, predict_with(model, ids, maps), sinks=sinks)
        wanted = continued(model, by_hand, ids[:, -TAIL:])
        wanted_later = continued(model, by_hand, further)
        cache = DynamicCache()
        with RidgeFill.of(maps).applied(model, tail=TAIL, sink_rows=sinks) as report:
            found = model(ids, cache=cache).logits[:, -TAIL:]
            later = torch.cat([model(further[:, i : i + 1], cache=cache).logits for i in range(4)], dim=1)
        assert (report.filled, report.rows_filled) == (1, PROMPT - TAIL - sinks)
        torch.testing.assert_close(found, wanted, **close)
        torch.testing.assert_close(later, wanted_later, **close)
    assert hooks(model) == before


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3_moe"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@torch.no_grad()
def test_a_left_padded_batch_equals_single_prompts(
    name: str, attention: str, tiny_model: Callable[..., Any]
) -> None:
    model = tiny_model(name, attention=attention)
    names = tuple(feature for feature in NAMES if feature != "mlp" or name != "qwen3_moe")
    fill, lengths = RidgeFill.of(feature_maps(names, rank=RANK, narrow=(LAYERS - 1,))), (PROMPT, 21, 13)
    ids, mask = torch.zeros(2, len(lengths), PROMPT, dtype=torch.long)
    for at, length in enumerate(lengths):
        ids[at, PROMPT - length :], mask[at, PROMPT - length :] = tokens(length, seed=at)[0], 1
    for sinks in (0, 2):
        with fill.applied(model, tail=TAIL, sink_rows=sinks):
            together = model(ids, attention_mask=mask).logits[:, -TAIL:]
            for at, length in enumerate(lengths):
                alone = model(tokens(length, seed=at)).logits[:, -TAIL:]
                torch.testing.assert_close(together[at], alone[0], **close)


@torch.no_grad()
def test_plain_maps_do_not_pass_through_features(
    tiny_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept for maps of the state alone is the state's own memory."""
    model = tiny_model("llama")
    fill, seen = RidgeFill.of(random_maps(SPLIT)), []
    stock = MappedInputs.read

    def read(self: MappedInputs, found: FeatureInputs, carry: FeatureCarry | None = None) -> torch.Tensor:
        seen.append((found.state, stock(self, found, carry)))
        return seen[-1][1]

    monkeypatch.setattr(MappedInputs, "read", read)
    with fill.applied(model, tail=TAIL):
        model(tokens(PROMPT))
    state, kept = seen[0]
    assert kept is state


@torch.no_grad()
def test_layers_that_read_the_state_alone_cut_columns_without_a_copy(tiny_model: Callable[..., Any]) -> None:
    model = tiny_model("llama")
    maps = feature_maps(("state", "previous-1"), narrow=(SPLIT,))
    inputs = RidgeFill.of(maps)._inputs(port_of(model), "device")
    assert inputs is not None
    kept = torch.randn(2, 9, 2 * HIDDEN)
    pointers = []
    stock = torch.addmm

    def addmm(bias: torch.Tensor, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        pointers.append(rows.data_ptr())
        return stock(bias, rows, weight)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "addmm", addmm)
        found = inputs.predict(SPLIT, kept)
    assert pointers == [kept.data_ptr()]
    weight, bias = maps.layer(SPLIT)
    torch.testing.assert_close(found, kept[..., :HIDDEN] @ weight.float().T + bias.float())


@torch.no_grad()
def test_a_window_that_no_layer_uses_is_the_plain_map(tiny_model: Callable[..., Any]) -> None:
    """Zero columns for everything but the state: bit for bit, at every bottleneck."""
    model, ids = tiny_model("gemma3"), tokens(PROMPT)
    plain = random_maps(SPLIT)
    with RidgeFill.of(plain).applied(model, tail=TAIL, sink_rows=2):
        wanted = model(ids).logits[:, -TAIL:]
    for rank in (None, RANK):
        more = HIDDEN if rank is None else rank
        maps = {
            layer: LayerMap(
                torch.cat([plain.layer(layer).weight, torch.zeros(HIDDEN, more)], 1), plain.layer(layer).bias
            )
            for layer in plain.layers
        }
        bottleneck = None if rank is None else torch.randn(HIDDEN, rank)
        both = MapSet.of(maps, features=("state", "previous-1"), bottleneck=bottleneck)
        with RidgeFill.of(both).applied(model, tail=TAIL, sink_rows=2):
            torch.testing.assert_close(model(ids).logits[:, -TAIL:], wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_every_promise_holds_for_feature_maps(name: str, tiny_model: Callable[..., Any]) -> None:
    for rank in (None, RANK):
        found = check_model(
            tiny_model(name), fill=RidgeFill.of(feature_maps(NAMES, rank=rank)), prompt=40, tail=9
        )
        assert [check.name for check in found if not check.passed] == []
        assert sum(check.name.startswith("identity") for check in found) == 2


@torch.no_grad()
def test_controls_read_the_whole_prompt(tiny_model: Callable[..., Any]) -> None:
    """The last filled row's next row is in the tail, whose split state is exact too."""
    model, ids = tiny_model("llama"), tokens(PROMPT)
    none, unit = torch.zeros(HIDDEN, HIDDEN), torch.eye(HIDDEN)
    item = LayerMap(torch.cat([none, unit], 1), torch.zeros(HIDDEN))
    maps = MapSet.of(dict.fromkeys(range(SPLIT, LAYERS), item), features=("state", "control-next-1"))
    states = model(ids, output_hidden_states=True).hidden_states[SPLIT]
    following = torch.cat([states[:, 1:], states[:, -1:]], 1)
    by_hand = filled_cache(model, ids, SPLIT, TAIL, lambda layer, h: following)
    wanted = continued(model, by_hand, ids[:, -TAIL:])
    with RidgeFill.of(maps).applied(model, tail=TAIL):
        torch.testing.assert_close(model(ids).logits[:, -TAIL:], wanted, **close)


def plain_pair(columns: int) -> dict[int, LayerMap]:
    return dict.fromkeys(range(SPLIT, LAYERS), LayerMap(torch.zeros(HIDDEN, columns), torch.zeros(HIDDEN)))


@pytest.mark.parametrize(
    ("maps", "words"),
    [
        (
            lambda: MapSet.of(plain_pair(3 * HIDDEN), features=("state", "previous-1")),
            r"read 96 columns and their features \['state', 'previous-1'\] have 64 in this model",
        ),
        (
            lambda: MapSet.of(
                plain_pair(HIDDEN + 2), features=("state", "previous-1"), bottleneck=torch.ones(40, 2)
            ),
            r"bottleneck reads 40 columns and their features \['previous-1'\] have 32",
        ),
        (lambda: MapSet.of(plain_pair(2 * HIDDEN), features=("state", "lower-4")), "lower-4 lies below"),
    ],
)
def test_maps_that_do_not_fit_the_model_are_refused(
    maps: Callable[[], MapSet], words: str, tiny_model: Callable[..., Any]
) -> None:
    with pytest.raises(BadInput, match=words), RidgeFill.of(maps()).applied(tiny_model("llama"), tail=TAIL):
        pass


def test_experts_have_no_mlp_feature(tiny_model: Callable[..., Any]) -> None:
    maps = MapSet.of(plain_pair(HIDDEN + MLP), features=("state", "mlp"))
    with (
        pytest.raises(BadInput, match="no single gated MLP"),
        RidgeFill.of(maps).applied(tiny_model("qwen3_moe"), tail=TAIL),
    ):
        pass


@torch.no_grad()
def test_maps_from_a_file_fill_as_those_in_memory(tmp_path: Any, tiny_model: Callable[..., Any]) -> None:
    maps = feature_maps(NAMES, rank=RANK, narrow=(LAYERS - 1,))
    write_source(tmp_path / "maps.safetensors", maps)
    found = load_maps(tmp_path / "maps.safetensors")
    assert (found.features, found.state_only) == (NAMES, (LAYERS - 1,))
    with RidgeFill.of(maps).applied(tiny_model("llama"), tail=TAIL):
        wanted = tiny_model("llama")(tokens(PROMPT)).logits[:, -TAIL:]
    with (
        pytest.warns(UserWarning, match="name no base model"),
        RidgeFill.of(found).applied(tiny_model("llama"), tail=TAIL),
    ):
        assert torch.equal(tiny_model("llama")(tokens(PROMPT)).logits[:, -TAIL:], wanted)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@torch.no_grad()
def test_chosen_rows_beside_features(name: str, tiny_model: Callable[..., Any]) -> None:
    """Rows that a selector runs exactly, among rows that maps of several features fill."""
    model, ids, chosen = tiny_model(name), tokens(PROMPT), (4, 5, 12)
    maps = feature_maps(NAMES, rank=RANK)
    predicted = predict_with(model, ids, maps)
    states = model(ids, output_hidden_states=True).hidden_states

    def predict(layer: int, h: torch.Tensor) -> torch.Tensor:
        """The chosen rows' own input at the split; further up it depends on what was filled before them."""
        found = predicted(layer, h).clone()
        found[:, list(chosen)] = states[layer][:, list(chosen)]
        return found

    by_hand = filled_cache(model, ids, SPLIT, TAIL, predict)
    cache = DynamicCache()
    with RidgeFill.of(maps).applied(model, tail=TAIL, rows=[Explicit(rows=chosen)]) as report:
        model(ids, cache=cache)
    assert report.rows_chosen == len(chosen)
    prefix = PROMPT - TAIL
    keys = cache.layers[SPLIT].keys[:, :, :prefix]
    torch.testing.assert_close(keys, by_hand.layers[SPLIT].keys[:, :, :prefix], **close)
    filled = [row for row in range(prefix) if row not in chosen]
    for layer in range(SPLIT, LAYERS):
        values = cache.layers[layer].values[:, :, filled]
        torch.testing.assert_close(values, by_hand.layers[layer].values[:, :, filled], **close)
