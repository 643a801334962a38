"""Settings, maps and calls that cannot work: one sentence each, and the model untouched."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from runtime_reference import hooks, random_maps
from tiny_models import LAYERS, build_tiny, tokens
from transformers import DynamicCache

from ridgefit.errors import BadInput
from ridgefit.maps import Fingerprint, LayerMap, MapSet
from ridgefit.models import port_of
from ridgefit.runtime import RidgeFill

SPLIT, PROMPT, TAIL = 2, 30, 11
IDENTITY = RidgeFill.identity(SPLIT)


def refused(model: Any, match: str, fill: RidgeFill = IDENTITY, **settings: Any) -> None:
    before = hooks(model)
    with pytest.raises(BadInput, match=match), fill.applied(model, **{"tail": TAIL, **settings}):
        pass
    assert hooks(model) == before


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"tail": 0}, "tail 0"),
        ({"tail": -3}, "tail -3"),
        ({"sink_rows": -1}, "sink rows"),
        ({"split": 3}, "split 3 was asked for, the fill is for split 2"),
    ],
)
def test_settings(settings: dict[str, int], match: str, tiny_model: Callable[..., Any]) -> None:
    refused(tiny_model("llama"), match, **settings)


def test_splits_outside_the_model(tiny_model: Callable[..., Any]) -> None:
    with pytest.raises(BadInput, match="split 0"):
        RidgeFill.identity(0)
    for fill in (RidgeFill.identity(LAYERS), RidgeFill.no_fill(LAYERS + 7)):
        refused(tiny_model("llama"), rf"split {fill.split} is past the last layer .* 5", fill)
    with pytest.raises(ValueError, match="maps go with"):
        RidgeFill("ridge", 2)
    assert [RidgeFill.pop(n).split for n in (2, 30, 32, 36)] == [2, 20, 22, 24]


def test_maps_of_another_model(tiny_model: Callable[..., Any]) -> None:
    narrow = LayerMap(torch.eye(16), torch.zeros(16))
    refused(
        tiny_model("llama"), "hidden is 16", RidgeFill.of(MapSet.of(dict.fromkeys(range(2, LAYERS), narrow)))
    )
    wide = LayerMap(torch.ones(32, 64), torch.zeros(32))
    refused(
        tiny_model("llama"), "read 64 columns", RidgeFill.of(MapSet.of(dict.fromkeys(range(2, LAYERS), wide)))
    )
    shallow = random_maps(2, layers=LAYERS - 1)
    refused(tiny_model("llama"), "n_layers is 5", RidgeFill.of(shallow))


def test_fingerprint_refuses_and_warns(tiny_model: Callable[..., Any]) -> None:
    model = tiny_model("llama")
    maps = random_maps(SPLIT)
    identity = port_of(model).identity()

    def with_identity(**changes: Any) -> RidgeFill:
        fingerprint = Fingerprint.of({**identity, "name": "org/base", **changes})
        settings = {"fingerprint": fingerprint, "source": "source"}
        return RidgeFill.of(MapSet.of({n: maps.layer(n) for n in maps.layers}, **settings))

    refused(model, "vocab is 99", with_identity(vocab=99))
    applied = with_identity(dtype="bfloat16").applied(model, tail=TAIL)
    with pytest.warns(UserWarning, match="fitted on"), applied:
        pass
    checked = with_identity(dtype="bfloat16")
    assert any("dtype bfloat16" in line for line in checked.check(port_of(model)))
    with warnings.catch_warnings(), checked.applied(model, tail=TAIL):
        warnings.simplefilter("error")  # who has checked has been told
    warned = with_identity(tokenizer_sha256="0" * 64).check(port_of(model))
    assert any("tokenizer" in line for line in warned)


def test_second_fill_on_one_model(tiny_model: Callable[..., Any]) -> None:
    model = tiny_model("llama")
    with IDENTITY.applied(model, tail=TAIL):
        refused(model, "already applied")
        assert model(tokens(PROMPT)).logits[:, 0].isnan().all()
    with IDENTITY.applied(model, tail=TAIL), IDENTITY.applied(tiny_model("qwen3"), tail=TAIL):
        pass


def test_unknown_family_and_attention() -> None:
    refused(torch.nn.Linear(2, 2), "no port")
    model = build_tiny("llama")
    model.config._attn_implementation = "flex_attention"
    refused(model, "flex_attention")


def test_flash_attention_has_no_masks_for_rows_apart() -> None:
    model = build_tiny("llama")
    model.config._attn_implementation = "flash_attention_2"
    refused(model, "sink rows", sink_rows=2)
    refused(model, "no fill", RidgeFill.no_fill(SPLIT))
    with IDENTITY.applied(model, tail=TAIL):  # the tail alone needs no mask
        pass


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_padding_behind_or_inside_the_prompt(
    name: str, attention: str, tiny_model: Callable[..., Any]
) -> None:
    model, ids = tiny_model(name, attention=attention), tokens(PROMPT, batch=2)
    for columns, match in (
        (slice(PROMPT - 2, None), "right padding.*padding_side"),
        (slice(4, 6), "right padding or holes"),
        (slice(None), "no tokens"),
    ):
        mask = torch.ones(2, PROMPT, dtype=torch.long)
        mask[1, columns] = 0
        with IDENTITY.applied(model, tail=TAIL), pytest.raises(BadInput, match=match):
            model(ids, attention_mask=mask)


@pytest.mark.parametrize("asked", ["output_hidden_states", "output_attentions"])
def test_outputs_that_filled_rows_do_not_have(asked: str) -> None:
    model = build_tiny("llama", attention="eager")
    with IDENTITY.applied(model, tail=TAIL):
        with pytest.raises(BadInput, match=asked):
            model(tokens(PROMPT), **{asked: True})
        model(tokens(TAIL), **{asked: True})
        setattr(model.config, asked, True)
        with pytest.raises(BadInput, match=asked):
            model(tokens(PROMPT))


def test_training_mode() -> None:
    model = build_tiny("llama").train()
    with IDENTITY.applied(model, tail=TAIL), pytest.raises(BadInput, match="training mode"):
        model(tokens(PROMPT))


@pytest.mark.slow
def test_compiled_calls() -> None:
    model = build_tiny("llama")
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad(), IDENTITY.applied(model, tail=TAIL):
        cache = model(tokens(PROMPT)).cache
        step = compiled(tokens(1), cache=cache).logits
        with pytest.raises(Exception, match=r"torch\.compile"):
            compiled(tokens(PROMPT), cache=DynamicCache())
    with torch.no_grad(), IDENTITY.applied(model, tail=TAIL):
        cache = model(tokens(PROMPT)).cache
        torch.testing.assert_close(model(tokens(1), cache=cache).logits, step)
