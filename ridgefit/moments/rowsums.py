"""Rows in, moments out: one class of rows, several splits that share the late layers' inputs.

A chunk of rows is added in four steps that follow the model's forward pass, so that no more than one layer's
rows are held at a time: `open`, then `put_y` for each layer from the first split on (with `put_x` before it
where a split begins), then `close`.

How the digits are kept:

* Every channel is centred near the chunk's own mean, at a float32 number, before any product. The
  subtraction is exact up to one rounding of its result, so a channel that sits at 3e3 loses nothing.
* Under `fast` products of 512 rows are float32 (never TF32), and the sums over them float64.
* The update that joins a chunk with the rows before it (Chan, Golub and LeVeque) is `S += d d' na r / n` with
  d the difference of the means, and what the centre is off by is `S -= s s' / r` with s the sum of the
  centred rows. Both are of rank one, and enter as two more rows of the product instead of two more passes
  over sums that are larger than any cache.
* Under `fast`, rows are added in the order of their largest share of a channel's variance. A float32 sum
  that has met one row at 3e3 drops the low digits of every ordinary row after it (relative error 1e-6 and
  more); met last, that row costs nothing (3e-7, the error of ordinary rows).
* Channels are not scaled. A power of two would be exact and cancel in every sum, rounding errors included,
  and any other factor would only add a rounding: float32 errors are relative, channel by channel. (What
  scaling changes is the solve, where `ridge` does it in float64.)
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ridgefit.moments.centring import centre_of
from ridgefit.moments.moments import Moments
from ridgefit.moments.precision import Product, ieee_products

# Products of fewer rows are bound by memory and by launching kernels, not by arithmetic: float64 costs
# nothing, and all layers are added at once when the chunk is closed.
_FEW = 64
# Rows of one float32 product. Libraries that add a product's rows one after another lose digits with their
# number (1.5e-6 for 2,048 rows by MKL on an Intel Xeon); float64 takes over before that shows.
_BLOCK = 512
_EXTRA = 2


class RowSums:
    """Running sums of one class of rows.

    Args:
        widths: per split, channels of its maps' input.
        n_layers: layers of the model.
        hidden: channels of a layer's input.
        product: `fp64` or `fast`.
        device: where the sums live; rows are moved there.
    """

    def __init__(
        self,
        widths: Mapping[int, int],
        n_layers: int,
        hidden: int,
        *,
        product: Product,
        device: torch.device | str = "cpu",
    ) -> None:
        self.widths = dict(sorted(widths.items()))
        self.first = next(iter(self.widths))
        self.n_layers = n_layers
        self.hidden = hidden
        self.product = product
        self.device = torch.device(device)
        self.n = 0
        self._mean_y = self._zeros(n_layers - self.first, hidden)
        self._syy = self._zeros(n_layers - self.first, hidden)
        self._mean_x = {split: self._zeros(width) for split, width in self.widths.items()}
        self._sxx = {split: self._zeros(width, width) for split, width in self.widths.items()}
        self._sxy = {
            split: self._zeros(n_layers - split, width, hidden) for split, width in self.widths.items()
        }
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}
        self._finite = torch.ones((), dtype=torch.bool, device=self.device)
        self._rows = 0
        self._next_x = self._next_y = 0
        self._inputs: list[Tensor] = []
        self._few_x: dict[int, Tensor] = {}
        self._few_y: list[Tensor] = []
        self._shares: Tensor | None = None
        self._order: Tensor | None = None
        self._stacked = torch.empty(0)

    # One chunk

    def open(self, rows: int) -> None:
        """Begin a chunk of `rows` rows.

        Raises:
            RuntimeError: the chunk before it was not closed.
        """
        if self._rows:
            raise RuntimeError("a chunk is open already")
        self._rows = rows
        self._next_x, self._next_y = 0, self.first
        self._inputs = []
        self._few_x, self._few_y = {}, []
        self._shares = self._order = None

    def put_x(self, split: int, x: Tensor) -> None:
        """Add the maps' input of a split, before the input of its first layer.

        Args:
            split: the split.
            x: `[rows, width]` in the dtype the model computed it in.
        """
        number = self._next_x
        if number >= len(self.widths) or list(self.widths)[number] != split or self._next_y != split:
            raise RuntimeError(f"the input of split {split} came out of order")
        self._next_x += 1
        if self._rows < _FEW:
            self._few_x[split] = x.to(self.device, torch.float64, copy=True)
            return
        with ieee_products(), torch.no_grad():
            centred, left = self._centred(x, self._mean_x[split], "x")
            centred[-1].neg_()  # its product with the same row of y is to be subtracted
            self._inputs.append(centred.clone())
            if self._dtype == torch.float32:
                self._weigh(centred[: self._rows])
            self._stack()
            block = self._stacked[:-1, sum(part.shape[1] for part in self._inputs[:-1]) :]
            self._add_product(block, block, {split: self._sxx[split]})
            self._sxx[split].addr_(left, left, alpha=-1 / self._rows)

    def put_y(self, layer: int, y: Tensor) -> None:
        """Add a late layer's input, `[rows, hidden]` in the dtype the model computed it in."""
        splits = [split for split in self.widths if split <= layer]
        if layer != self._next_y or len(splits) != self._next_x:
            raise RuntimeError(f"the input of layer {layer} came out of order")
        self._next_y += 1
        if self._rows < _FEW:
            self._few_y.append(y.to(self.device, torch.float64, copy=True))
            return
        at = layer - self.first
        with ieee_products(), torch.no_grad():
            rows = y if self._order is None else y.to(self.device).index_select(0, self._order)
            centred, _ = self._centred(rows, self._mean_y[at], "y", squares=self._syy[at])
            self._add_product(
                self._stacked, centred, {split: self._sxy[split][layer - split] for split in splits}
            )

    def close(self) -> bool:
        """End the chunk.

        Returns:
            Whether every row so far was finite; if not, the sums are spoilt.

        Raises:
            RuntimeError: a layer or a split is missing.
        """
        if (self._next_x, self._next_y) != (len(self.widths), self.n_layers):
            raise RuntimeError("a chunk was closed before every layer had come")
        if 0 < self._rows < _FEW:
            with torch.no_grad():
                self._add_few()
        self.n += self._rows
        self._rows = 0
        return bool(self._finite)

    # Between chunks

    def moments(self, split: int) -> Moments:
        """Sums of one split so far, as views that later chunks change; `sxx` is symmetric up to rounding."""
        skip = split - self.first
        return Moments(
            self.n,
            self._mean_x[split],
            self._mean_y[skip:],
            self._sxx[split],
            self._sxy[split],
            self._syy[skip:],
        )

    def restore(self, saved: Mapping[int, Moments]) -> None:
        """Go on from sums that `moments` gave, on any device."""
        for split in self.widths:
            mine = self.moments(split)
            for (_, target), (_, source) in zip(mine.tensors(), saved[split].tensors(), strict=True):
                target.copy_(source)
        self.n = saved[self.first].n

    def reset(self) -> None:
        """Forget all rows, keep the memory."""
        for split in self.widths:
            for _, tensor in self.moments(split).tensors():
                tensor.zero_()
        self.n = 0
        self._rows = 0
        self._finite.fill_(True)

    # Arithmetic

    @property
    def _dtype(self) -> torch.dtype:
        return torch.float64 if self.product == "fp64" else torch.float32

    def _centred(
        self, rows: Tensor, mean: Tensor, name: str, squares: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Centre rows, update `mean` and `squares`.

        Returns:
            Centred rows and the two rows of rank-one updates, `[rows + 2, channels]`; and the sum of
            the centred rows, float64 `[channels]`.
        """
        count, dtype = self._rows, self._dtype
        rows = rows.to(self.device, dtype)
        centre = centre_of(rows) if dtype == torch.float32 else rows.mean(0).float()
        out = self._buffer(name, dtype, count + _EXTRA, rows.shape[1])
        torch.sub(rows, centre, out=out[:count])
        left = out[:count].sum(0).double()
        step = centre.double() + left / count - mean
        self._finite &= torch.isfinite(step).all()
        between = self.n * count / (self.n + count)
        out[count] = step * between**0.5
        out[count + 1] = left / count**0.5
        if squares is not None:
            squares.add_(out[:count].square().sum(0)).add_(step.square() * between - left.square() / count)
        mean.add_(step * (count / (self.n + count)))
        return out, left

    def _add_few(self) -> None:
        """Add a chunk of few rows, all layers at once."""
        late = self._few_centred(torch.stack(self._few_y), self._mean_y)
        self._syy.add_(late.square().sum(1))
        for split, x in self._few_x.items():
            rows = self._few_centred(x, self._mean_x[split])
            self._sxx[split].addmm_(rows.T, rows)
            after = late[split - self.first :]
            self._sxy[split].baddbmm_(rows.T.expand(len(after), -1, -1), after)

    def _few_centred(self, rows: Tensor, mean: Tensor) -> Tensor:
        """Centre `[…, rows, channels]`, update `mean`, append the row of the rank-one update."""
        centre = rows.mean(-2)
        step = centre - mean
        self._finite &= torch.isfinite(step).all()
        between = self.n * self._rows / (self.n + self._rows)
        mean.add_(step * (self._rows / (self.n + self._rows)))
        return torch.cat((rows - centre[..., None, :], (step * between**0.5)[..., None, :]), dim=-2)

    def _weigh(self, centred: Tensor) -> None:
        """Order rows by their largest share of a channel's variance, over the splits that have come."""
        squares = centred.square()
        shares = squares.div_(squares.sum(0).clamp_min_(torch.finfo(torch.float32).tiny)).amax(1)
        self._shares = shares if self._shares is None else torch.maximum(self._shares, shares)
        self._order = torch.argsort(self._shares, stable=True)

    def _stack(self) -> None:
        """All splits' inputs side by side, in the order in which rows are to be added."""
        rows = self._rows
        width = sum(part.shape[1] for part in self._inputs)
        self._stacked = self._buffer("stack", self._dtype, rows + _EXTRA, width)
        at = 0
        for part in self._inputs:
            target = self._stacked[:, at : at + part.shape[1]]
            target[:rows] = part[:rows] if self._order is None else part[self._order]
            target[rows:] = part[rows:]
            at += part.shape[1]

    def _add_product(self, x: Tensor, y: Tensor, targets: Mapping[int, Tensor]) -> None:
        """Add `x' y` to the targets, which own the columns of `x` from left to right."""
        if x.dtype == torch.float64:
            at = 0
            for split, target in targets.items():
                target.addmm_(x[:, at : at + self.widths[split]].T, y)
                at += self.widths[split]
            return
        product = self._buffer("product", torch.float32, x.shape[1], y.shape[1])
        for rows in range(0, len(x), _BLOCK):
            torch.mm(x[rows : rows + _BLOCK].T, y[rows : rows + _BLOCK], out=product)
            at = 0
            for split, target in targets.items():
                target.add_(product[at : at + self.widths[split]])
                at += self.widths[split]

    def _buffer(self, name: str, dtype: torch.dtype, rows: int, columns: int) -> Tensor:
        """Scratch memory that is allocated once per use."""
        held = self._buffers.get((name, dtype))
        if held is None or held.numel() < rows * columns:
            held = torch.empty(rows * columns, dtype=dtype, device=self.device)
            self._buffers[name, dtype] = held
        return held[: rows * columns].view(rows, columns)

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(*shape, dtype=torch.float64, device=self.device)
