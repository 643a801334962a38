"""The promises a fill makes on any model, tried on that model: off, plumb, every row exact, identity."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ridgefit.errors import BadInput
from ridgefit.maps.mapset import LayerMap, MapSet
from ridgefit.models import Port, port_of
from ridgefit.models.call import cache_keyword, output_cache
from ridgefit.runtime.fill import RidgeFill

# Largest difference in log-probability (nats) when every row is exact but takes the filled prefill's path:
# the masks differ, so the attention kernel may. The paths agree to rounding, which grows with the dtype.
EXACT_LIMIT = {torch.float32: 1e-5, torch.float64: 1e-5, torch.float16: 0.02, torch.bfloat16: 0.1}
# bf16 logits stand on a grid of eps times their size, whatever computed them: one step of the largest may be
# lost, and no more than one nat. A wrong mask or row is off by whole nats.
_MOST = 1.0
_CONTINUATION = 4


@dataclass(frozen=True)
class Check:
    """One promise, tried.

    Attributes:
        name: "off", "plumb", "every row exact", "identity", "identity with features" (for maps that read more
            than the state) or "finite".
        passed: whether it holds.
        difference: largest difference found, nats of log-probability; for "finite", rows that are wrong.
        limit: what is allowed; 0 means equal bit for bit.
        detail: what was compared.
    """

    name: str
    passed: bool
    difference: float
    limit: float
    detail: str


def check_model(
    model: nn.Module,
    *,
    fill: RidgeFill | None = None,
    prompt: int = 96,
    tail: int = 24,
    seed: int = 0,
) -> list[Check]:
    """Run every check on random tokens: a prompt, then a continuation on the returned cache.

    Args:
        model: a causal language model of a known family, in eval mode.
        fill: the maps to check; identity at half depth if absent.
        prompt: prompt tokens.
        tail: rows that run every layer, fewer than `prompt`.
        seed: of the tokens.

    Raises:
        BadInput: the model or the maps cannot be used at all, or the prompt is not longer than the tail.
    """
    port = port_of(model)
    if not 1 <= tail < prompt:
        raise BadInput(
            f"a prompt of {prompt} tokens has no prefix before a tail of {tail}", "lengthen the prompt"
        )
    if port.n_layers < 2:
        raise BadInput("a model of one layer has nothing to fill", "use a deeper model")
    fill = fill or RidgeFill.identity(max(1, port.n_layers // 2))
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, port.vocab, (1, prompt + _CONTINUATION), generator=generator).to(port.device)
    trial = _Trial(model, port, tokens, prompt, tail)
    with torch.no_grad(), _full_precision():
        stock, hooks = trial.stock(), _hooks(model)
        filled = trial.filled(fill)
        return [
            _off(trial, stock, hooks),
            _plumb(trial, fill, stock),
            _every_row_exact(trial, fill, stock),
            *_identities(trial, fill),
            _finite(trial, filled),
        ]


@dataclass(frozen=True)
class _Trial:
    model: nn.Module
    port: Port
    tokens: Tensor
    prompt: int
    tail: int

    def stock(self) -> Tensor:
        """Log-probabilities `[1, prompt + continuation, vocab]`, fp32."""
        ids, rest = self.tokens[:, : self.prompt], self.tokens[:, self.prompt :]
        first: Any = self.model(ids, use_cache=True)
        cache = output_cache(first)
        second: Any = self.model(rest, **{cache_keyword(self.port.decoder): cache})
        return torch.cat([first.logits, second.logits], dim=1).float().log_softmax(-1)

    def filled(self, fill: RidgeFill, **settings: Any) -> Tensor:
        """The same under a fill; NaN where a row was filled."""
        with fill.applied(self.model, tail=self.tail, **settings):
            return self.stock()


def _off(trial: _Trial, before: Tensor, hooks: int) -> Check:
    after = trial.stock()
    left = _hooks(trial.model) - hooks
    detail = "stock before and after a fill was applied" + (f"; {left} hooks left behind" if left else "")
    return Check("off", torch.equal(before, after) and not left, _difference(before, after), 0.0, detail)


def _plumb(trial: _Trial, fill: RidgeFill, stock: Tensor) -> Check:
    plumb = trial.filled(fill, plumb=True)
    detail = "every hook on, nothing filled"
    return Check("plumb", torch.equal(stock, plumb), _difference(stock, plumb), 0.0, detail)


def _every_row_exact(trial: _Trial, fill: RidgeFill, stock: Tensor) -> Check:
    limit = EXACT_LIMIT.get(trial.port.dtype, 0.1)
    if trial.port.dtype == torch.bfloat16:
        limit = min(max(limit, torch.finfo(torch.bfloat16).eps * float(stock.abs().max())), _MOST)
    difference = _difference(stock, trial.filled(fill, sink_rows=trial.prompt))
    detail = "all rows run late layers as sink rows and tail"
    return Check("every row exact", difference <= limit, difference, limit, detail)


def _identities(trial: _Trial, fill: RidgeFill) -> Iterator[Check]:
    """A = I, b = 0 against the identity fill; once more with the columns of the maps' other features."""
    port, split = trial.port, fill.split
    unit = LayerMap(torch.eye(port.hidden), torch.zeros(port.hidden))
    identity = trial.filled(RidgeFill.identity(split))
    tried = {"identity": MapSet.of(dict.fromkeys(range(split, port.n_layers), unit))}
    if fill.maps is not None and fill.maps.features != ("state",):
        through = fill.maps.bottleneck_weight()
        padded = torch.eye(port.hidden, fill.maps.in_width)
        tried["identity with features"] = MapSet.of(
            dict.fromkeys(range(split, port.n_layers), LayerMap(padded, unit.bias)),
            features=fill.maps.features,
            bottleneck=through,
        )
    for name, maps in tried.items():
        ridge = trial.filled(RidgeFill.of(maps))
        seen = trial.prompt - trial.tail
        same = torch.equal(identity[:, seen:], ridge[:, seen:])
        what = "A = I, b = 0" if name == "identity" else "A = [I, 0], b = 0"
        difference = _difference(identity[:, seen:], ridge[:, seen:])
        yield Check(name, same, difference, 0.0, f"ridge with {what} against identity")


def _finite(trial: _Trial, filled: Tensor) -> Check:
    rows = filled[0].isfinite().all(dim=-1)
    wanted = torch.arange(len(rows), device=rows.device) >= trial.prompt - trial.tail
    wrong = int((rows != wanted).sum())
    return Check(
        "finite",
        wrong == 0,
        float(wrong),
        0.0,
        "rows of tail and continuation finite, filled rows NaN",
    )


def _difference(one: Tensor, other: Tensor) -> float:
    """Largest difference; NaN in either counts as the largest fp32 number, which JSON can hold."""
    gap = (one - other).abs()
    gap = torch.where((one == other) & ~one.isnan(), torch.zeros_like(gap), gap)  # equal infinities
    return float(gap.nan_to_num(nan=torch.finfo(torch.float32).max).max())


def _hooks(model: nn.Module) -> int:
    return sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules())


@contextlib.contextmanager
def _full_precision() -> Iterator[None]:
    """fp32 products in fp32: TF32 would round A = I away from equality."""
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
