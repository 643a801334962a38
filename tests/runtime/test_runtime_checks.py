"""`verify --model`: passes on every family, and fails when something is made wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
import torch
from runtime_reference import hooks, random_maps
from tiny_models import TINY, VOCAB, build_tiny

from ridgefit.errors import BadInput
from ridgefit.models.port import Port
from ridgefit.models.rows import Rows
from ridgefit.runtime import RidgeFill, check_model
from ridgefit.runtime.prefill import Prefill

NAMES = ["off", "plumb", "every row exact", "identity", "finite"]


@pytest.mark.parametrize("name", sorted(TINY))
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_every_family_passes(name: str, attention: str, tiny_model: Callable[..., Any]) -> None:
    model = tiny_model(name, attention=attention)
    before = hooks(model)
    found = check_model(model, fill=RidgeFill.of(random_maps(2)), prompt=40, tail=9)
    assert [check.name for check in found] == NAMES
    assert all(check.passed for check in found), found
    assert found[2].difference <= 1e-5
    json.dumps([asdict(check) for check in found], allow_nan=False)
    assert hooks(model) == before


def test_low_precision_passes() -> None:
    assert all(check.passed for check in check_model(build_tiny("qwen3").bfloat16(), prompt=40, tail=9))


def test_the_limit_of_low_precision_is_two_steps_of_the_largest_logit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It grows with the logits, whose grid is as coarse, and a row in the wrong place is still above it."""
    model = build_tiny("llama").bfloat16().requires_grad_(False)
    exact = check_model(model, prompt=40, tail=9)[2]
    ids = torch.randint(0, VOCAB, (1, 44), generator=torch.Generator().manual_seed(0))
    largest = float(model(ids).logits.float().log_softmax(-1).abs().max())
    assert exact.limit == pytest.approx(max(0.1, 2**-7 * largest), rel=0.05)
    assert exact.limit < 0.25
    assert check_model(build_tiny("llama").half(), prompt=40, tail=9)[2].limit == 0.02

    put = Rows.put

    def shifted(self: Rows, target: torch.Tensor, source: torch.Tensor, dim: int) -> None:
        put(self, target, source.roll(1, dim) if dim == 2 else source, dim)

    with monkeypatch.context() as patch:
        patch.setattr(Rows, "put", shifted)
        assert not check_model(model, prompt=40, tail=9)[2].passed


def failed(target: tuple[Any, str, Any], monkeypatch: pytest.MonkeyPatch, name: str = "gemma3") -> set[str]:
    with monkeypatch.context() as patch:
        patch.setattr(*target)
        return {check.name for check in check_model(build_tiny(name), prompt=40, tail=9) if not check.passed}


def test_mistakes_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_rotary(self: Port, layer: int, keys: torch.Tensor, rotary: Any) -> torch.Tensor:
        return keys

    def shifted(self: Rows, target: torch.Tensor, source: torch.Tensor, dim: int) -> None:
        put(self, target, source.roll(1, dim) if dim == 2 else source, dim)

    def stores_wrong(self: Prefill, layer: int, output: torch.Tensor) -> torch.Tensor:
        assert self._standin is not None
        self._standin.keys = -self._standin.keys
        return leave(self, layer, output)

    def believes(self: Prefill, layer: int, output: torch.Tensor) -> torch.Tensor:
        return leave(self, layer, output).nan_to_num()

    put, leave = Rows.put, Prefill.leave
    assert failed((Rows, "put", shifted), monkeypatch) == {"plumb", "every row exact"}
    assert failed((Prefill, "leave", stores_wrong), monkeypatch) == {"plumb", "every row exact"}
    assert failed((Prefill, "leave", believes), monkeypatch) == {"finite"}
    # identity and ridge are wrong alike without rotary: that one is for the tests of ports, not for verify
    assert failed((Port, "rotate", no_rotary), monkeypatch) == set()


def test_a_wrong_mask_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    import ridgefit.runtime.prefill as prefill

    def sees_all(stock: Any, rows: Rows, **settings: Any) -> torch.Tensor:
        return torch.ones(1, 1, rows.count, rows.total, dtype=torch.bool)

    assert "every row exact" in failed((prefill, "row_mask", sees_all), monkeypatch, "llama")


def test_a_hook_left_behind_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from ridgefit.runtime.hooks import Application

    def stays(self: Application) -> None:
        self._release()

    with monkeypatch.context() as patch:
        patch.setattr(Application, "detach", stays)
        with pytest.raises(BadInput, match="already applied"):
            check_model(build_tiny("llama"), prompt=40, tail=9)


def test_shapes_that_cannot_be_checked() -> None:
    with pytest.raises(BadInput, match="no prefix"):
        check_model(build_tiny("llama"), prompt=9, tail=9)
    with pytest.raises(BadInput, match="one layer"):
        check_model(build_tiny("llama", num_hidden_layers=1))
