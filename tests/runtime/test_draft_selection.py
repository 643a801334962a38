"""Scores, selections and what attention then sees, against loops in fp64 and masks of our own making."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from draft_models import model
from tiny_models import tokens

from ridgefit.models.attending import Plain, attending, decoder_of
from ridgefit.runtime.draft import POLICIES, CacheSettings, Drafter
from ridgefit.runtime.draft.scores import LayerView, attention, critical, expected
from ridgefit.runtime.speculative import Chooser

CHOOSE = Chooser()
SETTINGS = CacheSettings(budget=16, observe=6)


def view(columns: int = 20, observed: int = 6, kernel: int = 5, rotary: Any = None) -> LayerView:
    draw = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    queries, output = normal(4, observed, 8), normal(4, 10, 8)
    return LayerView(
        keys=normal(2, columns, 8),
        values=normal(2, columns, 8),
        queries=queries,
        unrotated=lambda: queries,
        rotary=lambda: rotary,
        scaling=0.4,
        kernel=kernel,
        keep=6,
        output=lambda: output,
        sums=None,
        generator=draw,
    )


def looped_attention(given: LayerView) -> list[list[float]]:
    """SnapKV's score by plain loops: softmax per query, mean over queries that can see, mean over a group."""
    heads, observed, _ = given.queries.shape
    kv_heads, columns, _ = given.keys.shape
    group = heads // kv_heads
    raw = [[0.0] * columns for _ in range(kv_heads)]
    for head in range(heads):
        for row in range(observed):
            position = columns - observed + row
            logits = [
                given.scaling * float(given.queries[head, row] @ given.keys[head // group, j])
                for j in range(position + 1)
            ]
            top = max(logits)
            total = sum(math.exp(x - top) for x in logits)
            for j, x in enumerate(logits):
                seen_by = min(observed, columns - j)
                raw[head // group][j] += math.exp(x - top) / total / seen_by / group
    half = given.kernel // 2
    return [[sum(row[max(0, j - half) : j + half + 1]) / given.kernel for j in range(columns)] for row in raw]


def test_attention_scores_equal_a_loop() -> None:
    for kernel in (1, 5):
        given = view(kernel=kernel)
        wanted = torch.tensor(looped_attention(given), dtype=torch.float64)
        torch.testing.assert_close(attention(given), wanted, rtol=1e-12, atol=1e-12)


def test_critical_keeps_half_by_attention_and_half_by_what_values_write() -> None:
    given = view(kernel=1)
    plain = looped_attention(given)
    found = critical(given).topk(6, dim=1).indices
    for head in range(2):
        by_attention = sorted(range(20), key=lambda j: -plain[head][j])[:3]
        written = [
            sum(float((given.output()[2 * head + h] @ given.values[head, j]).abs().sum()) for h in (0, 1)) / 2
            for j in range(20)
        ]
        rest = [j for j in range(20) if j not in by_attention]
        by_written = sorted(rest, key=lambda j: -plain[head][j] * written[j])[:3]
        assert set(found[head].tolist()) == {*by_attention, *by_written}


def test_expected_attention_equals_the_average_over_rotated_queries() -> None:
    """With one repeated query there is no spread: its rotation to 512 positions, averaged by a loop."""
    base = 10.0
    frequency = torch.tensor([1.0, base**-0.5], dtype=torch.float64)
    positions = torch.arange(14, 20, dtype=torch.float64)
    angle = torch.cat([positions[:, None] * frequency] * 2, dim=1)
    given = view(kernel=1, rotary=(angle.cos(), angle.sin()))
    same = given.queries[:, :1].expand(-1, 6, -1)
    given = LayerView(**{**vars(given), "unrotated": lambda: same})
    wanted = torch.zeros(2, 20, dtype=torch.float64)
    for head in range(4):
        mean = torch.zeros(8, dtype=torch.float64)
        for position in range(20, 20 + 512):
            q = same[head, 0].clone()
            for pair in range(2):
                c, s = math.cos(position * frequency[pair]), math.sin(position * frequency[pair])
                x, y = float(q[pair]), float(q[pair + 2])
                q[pair], q[pair + 2] = x * c - y * s, y * c + x * s
            mean += q / 512
        wanted[head // 2] += (given.keys[head // 2] @ mean * 0.4).softmax(0) / 2
    wanted *= given.values.norm(dim=-1)
    torch.testing.assert_close(expected(given), wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
@pytest.mark.parametrize("policy", ["rift-stat", "snapkv", "swa", "streaming", "random"])
def test_attending_to_gathered_columns_is_masking_the_others(family: str, policy: str) -> None:
    """The draft's logits equal a dense forward with a mask per head, built here from the policy's definition.

    Selected columns are read from the drafter (what is selected is tested elsewhere); which columns are in
    sight at each step is not.
    """
    ids = tokens(60, seed=7)[0].tolist()
    drafter = Drafter(model(family), POLICIES[policy], SETTINGS)
    drafter.prefill(ids[:41])  # reads 40
    chosen = {n: layer.selection.columns for n, layer in drafter._layers.items()}
    found = [drafter._feed([token]) for token in ids[40:48]]

    recent = {"rift-stat": 8, "snapkv": 6, "swa": 16, "streaming": 12, "random": 8}[policy]
    decoder = decoder_of(model(family))

    def attend(
        layer: int, queries: torch.Tensor, keys: torch.Tensor, _scaling: float, mask: Any, plain: Plain
    ) -> Any:
        if layer not in drafter._layers:
            return plain(mask)
        length = keys.shape[2]
        seen = torch.ones(length, length, dtype=torch.bool).tril().repeat(1, queries.shape[1], 1, 1)
        columns = chosen[layer]
        for row in range(40, length):
            for head in range(queries.shape[1]):
                allowed = set(range(row - recent + 1, row + 1))
                if columns is not None:
                    allowed |= set(columns[0, head // 2].tolist())
                seen[0, head, row] = torch.tensor([column in allowed for column in range(length)])
        return plain(seen)

    with torch.no_grad(), attending(decoder, attend):
        dense = model(family)(input_ids=torch.tensor([ids[:48]]), use_cache=False).logits[0, 40:]
    torch.testing.assert_close(torch.stack(found), dense, rtol=0, atol=1e-9)
    plain = model(family)(input_ids=torch.tensor([ids[:48]]), use_cache=False).logits[0, 40:].detach()
    assert float((plain - dense).abs().max()) > 1e-3  # the mask matters


def test_selection_takes_the_best_columns_before_the_window() -> None:
    ids = tokens(50, seed=8)[0].tolist()
    drafter = Drafter(model("llama"), POLICIES["rift-stat"], SETTINGS)
    drafter.prefill(ids)
    for number, layer in drafter._layers.items():
        queries = drafter._tape.newest(number, 6)
        wanted = LayerView(
            **{
                **vars(view(kernel=5)),
                "keys": layer.keys[0],
                "queries": queries,
                "scaling": drafter._tape.scaling,
            }
        )
        scores = looped_attention(wanted)
        for head in range(2):
            best = sorted(range(49 - 8), key=lambda j, head=head: (-scores[head][j], j))[:8]
            assert layer.selection.columns[0, head].tolist() == sorted(best)


def test_candidates_since_the_last_refresh_are_fewer() -> None:
    """`since` chooses among selected and newer columns only; `full` may bring an old one back."""
    ids = tokens(120, seed=9)[0].tolist()
    for candidates in ("full", "since"):
        settings = CacheSettings(budget=16, observe=6, candidates=candidates)
        drafter = Drafter(model("llama"), POLICIES["rift-dyn"], settings)
        drafter.prefill(ids[:60])
        came_back = False
        for length in range(64, 116, 4):
            before = {n: layer.selection for n, layer in drafter._layers.items()}
            drafter.propose(ids[:length], 1, CHOOSE)
            drafter.settle(length)
            drafter.refresh()
            for number, layer in drafter._layers.items():
                old, boundary = before[number]
                for head in range(2):
                    new = set(layer.selection.columns[0, head].tolist())
                    came_back |= any(c < boundary and c not in old[0, head].tolist() for c in new)
        assert came_back == (candidates == "full")


def test_h2o_sums_equal_a_loop_over_committed_queries() -> None:
    """Attention received over what each query saw, refused drafts left out."""
    ids = tokens(60, seed=10)[0].tolist()
    drafter = Drafter(model("llama"), POLICIES["h2o"], SETTINGS)
    drafter._build(len(ids[:31]))
    drafter._tape.keep = None
    drafter.prefill(ids[:31])
    drafter.refresh()
    seen = {n: layer.selection for n, layer in drafter._layers.items()}
    drafter.propose(ids[:33], 4, CHOOSE)  # reads 30, 31, 32 and three drafts
    drafter.settle(33)
    number, layer = next(iter(drafter._layers.items()))
    queries = drafter._tape.newest(number, 33)
    keys = layer.keys[0]
    short = queries.shape[1]  # the prompt's first queries are no longer on the tape
    assert short >= 3
    total = drafter._sums[number].total
    assert total.shape == (2, 33)
    # every query's row sums to 1, over both heads of a group
    torch.testing.assert_close(total.sum(1), torch.full((2,), 66.0, dtype=torch.float64))
    last = torch.zeros(2, 33, dtype=torch.float64)
    for row in (30, 31, 32):
        for head in range(4):
            kv = head // 2
            start = max(row + 1 - 8, seen[number].boundary)
            allowed = sorted({*seen[number].columns[0, kv].tolist(), *range(start, row + 1)})
            query = queries[head, short - 33 + row]
            weights = (keys[kv, allowed] @ query * drafter._tape.scaling).softmax(0)
            last[kv, allowed] += weights
    before = Drafter(model("llama"), POLICIES["h2o"], SETTINGS)
    before.prefill(ids[:31])
    early = before._sums[number].total
    torch.testing.assert_close(total[:, :30] - early, last[:, :30], rtol=0, atol=1e-9)
    torch.testing.assert_close(total[:, 30:], last[:, 30:], rtol=0, atol=1e-9)


@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3_5"])
def test_drift_of_a_steady_text_is_nothing(family: str) -> None:
    """Rotary alone makes queries turn; without it a repeated token gives the same query for ever."""
    drafter = Drafter(model(family), POLICIES["rift-stat"], SETTINGS)
    drafter.prefill([7] * 60)
    drafter.propose([7] * 90, 1, CHOOSE)
    drafter.settle(90)
    layer = min(drafter._layers)
    turned = drafter._tape.newest(layer, 6).mean(1)
    assert float((turned - drafter._tape.newest(layer, 1)[:, 0]).abs().max()) > 1e-3
    steady = drafter._tape.unrotated(layer, 6)
    if layer == 0:
        torch.testing.assert_close(steady, steady[:, :1].expand_as(steady), rtol=0, atol=1e-5)
    assert drafter.drift() < 0.05


def test_retained_mass_equals_a_loop() -> None:
    ids = tokens(50, seed=11)[0].tolist()
    drafter = Drafter(model("llama"), POLICIES["rift-stat"], SETTINGS)
    drafter.prefill(ids)
    drafter.propose(ids, 1, CHOOSE)
    drafter.settle(50)
    shares = []
    for number, layer in drafter._layers.items():
        queries, keys = drafter._tape.newest(number, 1)[:, 0], layer.keys[0]
        for head in range(4):
            kv = head // 2
            weights = (keys[kv] @ queries[head] * drafter._tape.scaling).softmax(0)
            allowed = {
                *layer.selection.columns[0, kv].tolist(),
                *range(max(42, layer.selection.boundary), 50),
            }
            shares.append(sum(float(weights[c]) for c in allowed))
    assert drafter.retained() == pytest.approx(sum(shares) / len(shares), abs=1e-9)
