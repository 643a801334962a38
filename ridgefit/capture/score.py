"""The second pass, after solving: held-out rows judge candidate maps by what layers would write.

The cosine of the layer input alone is a bad judge, because a few massive channels dominate it; what the
paper compares is what each layer writes to its cache (RidgeFill, section 2.2), here per key-value head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from ridgefit.capture.inputs import SplitInputs
from ridgefit.capture.reader import Rows, padded
from ridgefit.capture.run import Progress
from ridgefit.capture.watch import Watch
from ridgefit.corpus import TokenStore
from ridgefit.errors import BadInput
from ridgefit.features import FeatureList
from ridgefit.models import LoadedModel, Port, Written
from ridgefit.moments import ieee_products

Candidate = Callable[[int], tuple[Tensor, Tensor]]
"""Late layer index (0: the split layer) -> weight `[hidden, width]` and bias `[hidden]` as in a file."""

_ROWS_AT_ONCE = 1024


@dataclass(frozen=True)
class Cosines:
    """Mean cosine with what the exact model has, one entry per late layer, split layer first.

    Attributes:
        keys: written keys, after their norm and before rotary, per head.
        values: written values, per head.
        inputs: the layer's input, per row.
    """

    keys: tuple[float, ...]
    values: tuple[float, ...]
    inputs: tuple[float, ...]

    @property
    def written(self) -> float:
        """Mean over layers of keys and values."""
        return sum(self.keys + self.values) / (2 * len(self.keys))


@dataclass(frozen=True)
class CandidateScores:
    """Candidates of one split on the same held-out rows.

    Attributes:
        split: the split.
        rows: how many rows.
        candidates: by penalty.
        identity: the split state itself as every layer's input (the fill of POP).
    """

    split: int
    rows: int
    candidates: dict[float, Cosines]
    identity: Cosines

    @property
    def keys(self) -> dict[float, tuple[float, ...]]:
        """Per penalty, each late layer's cosine of keys."""
        return {alpha: scores.keys for alpha, scores in self.candidates.items()}

    @property
    def values(self) -> dict[float, tuple[float, ...]]:
        """Per penalty, each late layer's cosine of values."""
        return {alpha: scores.values for alpha, scores in self.candidates.items()}


class HeldRows:
    """Held-out rows of a model in memory: what maps read at the splits, and every late layer's true input.

    Attributes:
        splits: splits whose candidates can be scored.
        count: rows.
    """

    def __init__(self, port: Port, inputs: Mapping[int, Tensor], truth: Mapping[int, Tensor]) -> None:
        self._port = port
        self._inputs = dict(inputs)
        self._truth = dict(truth)
        self.splits = tuple(sorted(inputs))
        self.count = len(self._truth[self.splits[0]])

    @classmethod
    def read(
        cls,
        loaded: LoadedModel,
        store: TokenStore,
        splits: Sequence[int],
        *,
        rows: int,
        drop_lead: int = 0,
        features: FeatureList | None = None,
        progress: Progress | None = None,
    ) -> HeldRows:
        """Run every held-out window once, and keep evenly spaced rows in the model's dtype.

        Args:
            loaded: the model.
            store: the text.
            splits: splits to score.
            rows: how many rows to keep, over all held-out windows together; all if there are fewer.
            drop_lead: first positions of each window that are not scored.
            features: what the maps read; the state if absent.
            progress: called after each window.

        Raises:
            BadInput: there is no held-out row, or a row is not finite.
        """
        port, features = loaded.port, features or FeatureList(("state",))
        picked = _picked(store, rows, drop_lead)
        first = min(splits)
        inputs: dict[int, list[Tensor]] = {split: [] for split in splits}
        truth: dict[int, list[Tensor]] = {layer: [] for layer in range(first, port.n_layers)}
        chosen = Rows(torch.empty(0))
        reads = SplitInputs(port, splits, features)

        def receive(layer: int, state: Tensor) -> None:
            x = reads.at(layer, state)
            if x is not None:
                inputs[layer].append(chosen.of(x).clone())
            if layer in truth:
                truth[layer].append(chosen.of(state).clone())

        with Watch(port, reads.first, receive) as watch:
            for done, (window, positions) in enumerate(picked.items(), start=1):
                ids, valid = padded(store, [window])
                mask = torch.zeros_like(valid)
                mask[0, positions] = True
                chosen = Rows(mask)
                reads.open(valid)
                watch.run(ids, valid)
                if progress is not None:
                    progress(done, len(picked), "held-out windows")
        joined = {layer: torch.cat(parts) for layer, parts in truth.items()}
        for layer, state in joined.items():
            if not bool(torch.isfinite(state).all()):
                raise BadInput(
                    f"the input of layer {layer} is not finite on held-out text",
                    "load the model with --dtype bfloat16 or float32",
                )
        return cls(port, {split: torch.cat(parts) for split, parts in inputs.items()}, joined)

    def truth(self, layer: int) -> Tensor:
        """True inputs `[rows, hidden]` of a layer above the lowest split, in the model's dtype."""
        return self._truth[layer]

    def score(
        self,
        split: int,
        candidates: Mapping[float, Candidate],
        *,
        read: Callable[[Tensor], Tensor] | None = None,
        late: Sequence[int] | None = None,
        progress: Progress | None = None,
    ) -> CandidateScores:
        """Score candidate maps of a split.

        Each candidate is asked for one late layer at a time, all candidates for the same layer in turn, so
        that a solver may keep what a layer's candidates share.

        Args:
            split: one of `splits`.
            candidates: by penalty, functions that give the maps as they will stand in a file (rounded). The
                maps of a layer have one width, and read so many of the first columns.
            read: from all features of some rows to what the maps read; the features themselves if absent.
            late: late layers to score, as indices from the split; all if absent.
            progress: called after each layer.
        """
        layers = [split + at for at in (range(self._port.n_layers - split) if late is None else late)]
        sums = {alpha: torch.zeros(len(layers), 3, dtype=torch.float64) for alpha in candidates}
        identity = torch.zeros(len(layers), 3, dtype=torch.float64)
        x, state = self._inputs[split], self._truth[split]
        x = x if read is None else read(x)
        with torch.no_grad(), ieee_products():
            for at, layer in enumerate(layers):
                maps = [candidate(layer - split) for candidate in candidates.values()]
                true = self._truth[layer]
                place = true.device
                weights = torch.cat([weight.to(place).float() for weight, _ in maps]) if maps else None
                biases = torch.stack([bias.to(place).float() for _, bias in maps]) if maps else None
                for start in range(0, self.count, _ROWS_AT_ONCE):
                    part = slice(start, start + _ROWS_AT_ONCE)
                    exact = true[part]
                    written = self._port.written(layer, exact)
                    if weights is not None and biases is not None:
                        products = x[part, : weights.shape[1]].to(place).float() @ weights.T
                        guesses = products.view(len(exact), *biases.shape).add_(biases).transpose(0, 1)
                        scores = _cosines(self._port, layer, guesses, exact, written)
                        for total, score in zip(sums.values(), scores, strict=True):
                            total[at] += score
                    same = state[part].to(place).float()[None]
                    identity[at] += _cosines(self._port, layer, same, exact, written)[0]
                if progress is not None:
                    progress(at + 1, len(layers), f"split {split}: layers scored")
        return CandidateScores(
            split=split,
            rows=self.count,
            candidates={alpha: self._means(total) for alpha, total in sums.items()},
            identity=self._means(identity),
        )

    def _means(self, total: Tensor) -> Cosines:
        keys, values, inputs = (tuple(column.tolist()) for column in (total / self.count).T)
        return Cosines(keys, values, inputs)


def score_candidates(
    loaded: LoadedModel,
    store: TokenStore,
    split: int,
    candidates: Mapping[float, Candidate],
    *,
    rows: int,
    drop_lead: int = 0,
    features: FeatureList | None = None,
    progress: Progress | None = None,
) -> CandidateScores:
    """`HeldRows.read` and `HeldRows.score` for one split; those two score several splits in one pass."""
    held = HeldRows.read(
        loaded, store, [split], rows=rows, drop_lead=drop_lead, features=features, progress=progress
    )
    return held.score(split, candidates, progress=progress)


def _cosines(port: Port, layer: int, guesses: Tensor, exact: Tensor, written: Written) -> Tensor:
    """Sums over rows of the cosines of keys, values and inputs, float64 `[candidates, 3]` on the CPU.

    Args:
        port: the model.
        layer: layer number.
        guesses: `[candidates, rows, hidden]` in float32.
        exact: `[rows, hidden]` true inputs.
        written: what the layer writes for them.
    """
    guessed = port.written(layer, guesses.to(exact.dtype))
    found = [
        cosine_similarity(guessed.keys.float(), written.keys.float(), dim=-1).double().mean(1).sum(-1),
        cosine_similarity(guessed.values.float(), written.values.float(), dim=-1).double().mean(1).sum(-1),
        cosine_similarity(guesses, exact.float(), dim=-1).double().sum(-1),
    ]
    return torch.stack(found, dim=-1).cpu()


def _picked(store: TokenStore, rows: int, drop_lead: int) -> dict[int, list[int]]:
    """Held-out window -> positions of its rows to score, evenly spaced over all of them end to end.

    Raises:
        BadInput: there is nothing to score on.
    """
    manifest = store.manifest
    lengths = {w: max(manifest.window_tokens(w) - drop_lead, 0) for w in manifest.held_windows}
    total = sum(lengths.values())
    if not total:
        raise BadInput("the text holds no held-out rows to choose the penalty on", "give more documents")
    count = min(rows, total)
    wanted = [(2 * number + 1) * total // (2 * count) for number in range(count)]
    picked: dict[int, list[int]] = {}
    start = at = 0
    for window, length in lengths.items():
        while at < count and wanted[at] < start + length:
            picked.setdefault(window, []).append(wanted[at] - start + drop_lead)
            at += 1
        start += length
    return picked
