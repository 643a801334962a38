"""Windows of text through the model into sums."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ridgefit.capture.inputs import SplitInputs
from ridgefit.capture.watch import Watch
from ridgefit.corpus import TokenStore
from ridgefit.errors import BadInput
from ridgefit.features import FeatureList
from ridgefit.models import Port
from ridgefit.moments import Moments, Product, RowSums, sums_device

BODY, LEAD = "body", "lead"


def padded(store: TokenStore, windows: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Ids and validity `[batch, rows]` of some windows, padded on the right."""
    ids = [store.window(number) for number in windows]
    lengths = torch.tensor([len(part) for part in ids])
    batch = pad_sequence(ids, batch_first=True)
    return batch, torch.arange(batch.shape[1]) < lengths[:, None]


class Rows:
    """Some rows of a padded batch, picked from any layer's state.

    Args:
        chosen: `[batch, rows]` bool.
    """

    def __init__(self, chosen: Tensor) -> None:
        flat = chosen.flatten().nonzero()[:, 0]
        self.count = len(flat)
        first = int(flat[0]) if self.count else 0
        self._run = first if self.count == 0 or int(flat[-1]) - first + 1 == self.count else None
        self._flat = flat

    def of(self, state: Tensor) -> Tensor:
        """`[count, channels]` from `[batch, rows, channels]`; a contiguous run is not copied."""
        rows = state.flatten(0, 1)
        if self._run is not None:
            return rows[self._run : self._run + self.count]
        if self._flat.device != state.device:
            self._flat = self._flat.to(state.device)
        return rows.index_select(0, self._flat)


class Reader:
    """The sums of one model over windows of one corpus.

    Args:
        port: the model.
        store: the text.
        splits: first late layer of each split, ascending.
        features: what a map reads.
        product: precision of the products.
        lead: first positions of each window whose sums are kept apart; 0 keeps none apart.
    """

    def __init__(
        self,
        port: Port,
        store: TokenStore,
        *,
        splits: Sequence[int],
        features: FeatureList,
        product: Product,
        lead: int,
    ) -> None:
        self.port = port
        self.store = store
        self.lead = lead
        self.splits = tuple(splits)
        self._inputs = SplitInputs(port, splits, features)
        self._sums = {
            name: RowSums(
                self._inputs.widths,
                port.n_layers,
                port.hidden,
                product=product,
                device=sums_device(port.device),
            )
            for name in ((BODY, LEAD) if lead else (BODY,))
        }
        self._rows: dict[str, Rows] = {}

    def add(self, windows: Sequence[int]) -> None:
        """Run a batch of windows and add its rows.

        Raises:
            BadInput: a row holds a value that is not finite, with its document, layer and position.
            CheckFailed: a late layer did not run exactly once.
        """
        ids, valid = padded(self.store, windows)
        leading = torch.arange(ids.shape[1]) < self.lead
        self._inputs.open(valid)
        self._rows = {BODY: Rows(valid & ~leading), LEAD: Rows(valid & leading)}
        for name, sums in self._sums.items():
            sums.open(self._rows[name].count)
        try:
            with Watch(self.port, self._inputs.first, self._receive) as watch:
                watch.run(ids, valid)
        except torch.OutOfMemoryError as error:
            raise BadInput(
                f"the device ran out of memory on {len(windows)} windows of up to {ids.shape[1]} tokens",
                "lower --batch, --window or the number of splits, and run again with --resume",
            ) from error
        finite = [sums.close() for sums in self._sums.values()]
        if not all(finite):
            raise self._not_finite(windows)

    def moments(self) -> dict[str, Moments]:
        """Views of all sums, by key `s<split>.<rows>`."""
        return {
            f"s{split}.{name}": sums.moments(split)
            for split in self.splits
            for name, sums in self._sums.items()
        }

    def restore(self, saved: dict[str, Moments]) -> None:
        """Go on from saved sums."""
        for name, sums in self._sums.items():
            sums.restore({split: saved[f"s{split}.{name}"] for split in self.splits})

    def reset(self) -> None:
        """Forget all rows."""
        for sums in self._sums.values():
            sums.reset()

    def _receive(self, layer: int, state: Tensor) -> None:
        x = self._inputs.at(layer, state)
        if layer < self.splits[0]:
            return
        for name, sums in self._sums.items():
            rows = self._rows[name]
            if x is not None:
                sums.put_x(layer, rows.of(x))
            sums.put_y(layer, rows.of(state))

    def _not_finite(self, windows: Sequence[int]) -> BadInput:
        """Run the batch again, looking at every layer, to say where it happened."""
        ids, valid = padded(self.store, windows)
        found: list[tuple[int, int, int]] = []

        def look(layer: int, state: Tensor) -> None:
            bad = ~torch.isfinite(state).all(-1).cpu() & valid
            if not found and bool(bad.any()):
                sample, position = bad.nonzero()[0].tolist()
                found.append((layer, sample, position))

        with Watch(self.port, 0, look) as watch:
            watch.run(ids, valid)
        fix = "load the model with --dtype bfloat16 or float32, or run `ridgefit doctor` on it"
        if not found:
            names = ", ".join(str(number) for number in windows)
            return BadInput(f"window {names} gives values beyond what float32 sums can hold", fix)
        layer, sample, position = found[0]
        manifest = self.store.manifest
        window = manifest.windows[windows[sample]]
        record = manifest.documents[window.document]
        place = max(window.start + position - manifest.repeated(windows[sample]), 0)
        return BadInput(
            f"the input of layer {layer} is not finite at position {place} of document {record.sha256[:12]} "
            f"({record.source})",
            fix,
        )
