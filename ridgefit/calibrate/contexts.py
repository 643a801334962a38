"""Contexts for calibration: a document's first tokens, and the queries of the tokens after them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ridgefit.corpus import read_documents
from ridgefit.corpus.encoding import Encoder
from ridgefit.errors import BadInput
from ridgefit.maps.fingerprint import Fingerprint
from ridgefit.maps.recall import PolicyManifest, RecallPolicy, RecallSettings
from ridgefit.models.latent import LatentAttention
from ridgefit.models.latentcache import LatentLayer
from ridgefit.models.latenthooks import LatentHooks
from ridgefit.models.load import LoadedLatent
from ridgefit.runtime.recall.reader import PolicyReader
from ridgefit.runtime.recall.tier import Tier

_SPARE = 4


@dataclass(frozen=True)
class LayerContext:
    """One layer after a context: its parted rows, and queries that come after.

    Attributes:
        rows: `[rows, width]` of all tokens, in the cache's dtype.
        queries: absorbed, `[heads, queries, width]` fp32; query i stands at row `rows - queries + i`.
        tier: how the rows before the queries were parted.
        latent: width of a row's latent.
    """

    rows: Tensor
    queries: Tensor
    tier: Tier
    latent: int

    @property
    def attended(self) -> Tensor:
        """Numbers of kept rows and of those behind the closed ones."""
        tail = torch.arange(self.tier.closed, self.rows.shape[0], device=self.rows.device)
        return tail if self.tier.kept is None else torch.cat([self.tier.kept, tail])

    @property
    def attended_seen(self) -> Tensor:
        """bool `[queries, attended]`: what each query may read of them."""
        total, count = self.rows.shape[0], self.queries.shape[1]
        at = torch.arange(total - count, total, device=self.rows.device)
        return self.attended <= at[:, None]


def documents_of(
    loaded: LoadedLatent, sources: Sequence[str], text_field: str, length: int, most: int
) -> list[tuple[str, Tensor]]:
    """Name and first `length` ids of the first `most` documents that have as many.

    Raises:
        BadInput: fewer than two have.
    """
    encoder = Encoder(loaded.tokenizer, _SPARE * length)
    found: list[tuple[str, Tensor]] = []
    longest = seen = 0
    for document in read_documents(sources, text_field=text_field):
        encoded = encoder.encode([document])[0].ids
        seen, longest = seen + 1, max(longest, int(encoded.size))
        if encoded.size >= length:
            name = document.source or f"document {seen:05d}"
            found.append((name, torch.from_numpy(encoded[:length].astype("int64"))))
        if len(found) == most:
            break
    if len(found) < 2:
        raise BadInput(
            f"{len(found)} of {seen} documents in {', '.join(sources)} have {length} tokens (the longest has "
            f"{longest}), and calibration needs at least two",
            "use a smaller --tokens or longer documents",
        )
    return found


def read_context(
    loaded: LoadedLatent, ids: Tensor, queries: int, settings: RecallSettings
) -> Mapping[int, LayerContext]:
    """Read a document densely, part the rows before its last tokens, and take the queries of those.

    Args:
        loaded: the model.
        ids: `[tokens]`.
        queries: tokens at the end whose queries are taken.
        settings: how rows are parted.
    """
    reader = Harvest(loaded, settings)
    hooks = LatentHooks(loaded.latent, reader)
    hooks.attach()
    try:
        with torch.no_grad():
            cache = loaded.latent.new_cache()
            loaded.latent.feed(ids[None, :-queries], cache)
            reader.part(cache)
            loaded.latent.feed(ids[None, -queries:], cache)
    finally:
        hooks.detach()
    return dict(reader.contexts(cache))


class Harvest:
    """Leaves all attention to the model and takes queries once rows are parted.

    Args:
        loaded: the model.
        settings: how rows are parted.
    """

    def __init__(self, loaded: LoadedLatent, settings: RecallSettings) -> None:
        # Without recall where basis and thresholds are what calibration is looking for.
        own = settings.thresholds == "prompt"
        alone = settings.model_copy(update={"recall": own, "placement": "device"})
        manifest = PolicyManifest(settings=alone, fingerprint=Fingerprint.of(loaded.identity()))
        self._inner = PolicyReader(RecallPolicy(manifest), loaded.latent.layers)
        self._layers = loaded.latent.layers
        self._tiers: dict[int, Tier] = {}
        self._queries: dict[int, Tensor] = {}

    def reads(self, layer: LatentLayer, queries: int) -> bool:
        """Never."""
        del layer, queries
        return False

    def attend(self, layer: LatentLayer, attention: LatentAttention, queries: Tensor) -> Tensor:
        """Not called, since nothing is read in place of the model."""
        del layer, attention, queries
        raise ValueError("a harvest reads nothing in place of the model")

    def observe(self, layer: LatentLayer, attention: LatentAttention, queries: Tensor) -> None:
        """Before rows are parted what selectors see, afterwards the queries."""
        if attention.layer in self._tiers:
            self._queries[attention.layer] = attention.absorb(queries[0]).float()
        else:
            self._inner.observe(layer, attention, queries)

    def part(self, cache: Any) -> None:
        """Part the rows of every latent layer."""
        for index in self._layers:
            layer: LatentLayer = cache.layers[index]
            self._tiers[index] = self._inner.parted(layer, index)

    def contexts(self, cache: Any) -> Iterator[tuple[int, LayerContext]]:
        """What was harvested, by layer."""
        for index, tier in self._tiers.items():
            layer: LatentLayer = cache.layers[index]
            everything = torch.arange(layer.get_seq_length(), device=layer.keys.device)
            rows, latent = layer.rows(0, everything), self._layers[index].latent
            yield index, LayerContext(rows, self._queries[index], tier, latent)
