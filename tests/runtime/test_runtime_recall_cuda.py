"""The parity rows on a GPU, where archived rows travel from pinned host memory on a stream of their own."""

from __future__ import annotations

import pytest
import torch
from latent_tiny import NAMES, build_latent, ids, padded
from transformers import DynamicCache

from ridgefit.maps.recall import RecallSettings
from ridgefit.runtime.recall import Recall

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def policy(model, name: str, **settings) -> Recall:
    base = {"kappa": 2, "block": 16, "rank": 8, "sinks": 2, "ratio": 8.0, "control": name != "kimi_linear"}
    return Recall.of_prompts(model, RecallSettings(**{**base, **settings}))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("placement", ["device", "host"])
def test_every_row_fetched_is_stock(name: str, placement: str) -> None:
    model = build_latent(name).cuda()
    tokens, steps = ids(70).cuda(), ids(9, seed=1).cuda()
    recall = policy(model, name, z=float("inf"), gate=False, placement=placement)

    def run() -> torch.Tensor:
        cache = DynamicCache(config=model.config)
        found = [model(tokens, cache=cache).logits[:, -1]]
        found += [model(steps[:, i : i + 1], cache=cache).logits[:, -1] for i in range(9)]
        return torch.stack(found)

    with torch.no_grad():
        want = run()
        with recall.applied(model) as report:
            found = run()
    torch.testing.assert_close(found, want, atol=1e-4, rtol=0)
    assert all(min(layer.fetched) > 30 for layer in report.layers.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_host_and_device_say_the_same(dtype: torch.dtype) -> None:
    """Bit for bit: where a row lies changes nothing in what is computed with it."""
    model = build_latent().to("cuda", dtype)
    tokens, mask = (part.cuda() for part in padded([90, 141]))
    said = {}
    for placement in ("device", "host"):
        with policy(model, "kimi_linear", placement=placement).applied(model) as report:
            said[placement] = model.generate(
                tokens, attention_mask=mask, max_new_tokens=40, do_sample=False, eos_token_id=None
            )
        assert any(sum(layer.fetched) for layer in report.layers.values())
    assert torch.equal(said["device"], said["host"])


def test_host_placement_frees_device_memory() -> None:
    model = build_latent(kv_lora_rank=512, qk_rope_head_dim=64).cuda()
    held = {}
    for placement in ("device", "host"):
        with torch.no_grad(), policy(model, "kimi_linear", placement=placement, recall=False).applied(model):
            cache = DynamicCache(config=model.config)
            model(ids(2048).cuda(), cache=cache, logits_to_keep=1)
            model(ids(1).cuda(), cache=cache)
            layer = cache.layers[1]
            held[placement] = layer.keys.numel() + layer.values.numel()
            if placement == "host":
                assert layer.host is not None
                assert layer.host.is_pinned()
                held[placement] += layer.states[0].near.numel()
    assert held["host"] < held["device"] / 6
