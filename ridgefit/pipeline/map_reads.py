"""What maps that read more than the state cost, from features, rank and layers as they are named."""

from __future__ import annotations

from dataclasses import dataclass

from ridgefit import cost
from ridgefit.errors import BadInput
from ridgefit.features import FeatureList, SplitShape
from ridgefit.maps import MapSet, reads_text
from ridgefit.pipeline.candidate_list import wide_layers
from ridgefit.recipe import CandidateSettings


@dataclass(frozen=True)
class MapReads:
    """Sizes of a split's maps.

    Attributes:
        features: names in order.
        captured: columns of all features, which a capture sums.
        width: columns of what is kept of a row.
        row_macs: multiply-accumulates of a filled row's features and bottleneck.
        state_only: late layers that read the state alone, where others read more.
        bottleneck: `(rest_width, rank)`; None without.
    """

    features: tuple[str, ...]
    captured: int
    width: int
    row_macs: int
    state_only: tuple[int, ...]
    bottleneck: tuple[int, int] | None

    @classmethod
    def of(cls, shape: cost.ModelShape, split: int, wanted: CandidateSettings) -> MapReads:
        """Of maps that are only described.

        Raises:
            BadInput: the model lacks a feature, a rank is wider than what goes in, or no such layers.
        """
        features = FeatureList(wanted.features)
        at = SplitShape.of_config(shape, split)
        captured = features.width(at)
        rest, late = captured - shape.hidden, shape.layers - split
        wide = wide_layers(wanted, split, late)
        through = None if wanted.rank is None else (rest, wanted.rank)
        if through is not None and through[1] > rest:
            raise BadInput(
                f"a bottleneck of rank {through[1]} is wider than the {rest} inputs that "
                f"{', '.join(features.names[1:])} have",
                f"use a rank of at most {rest}, or none",
            )
        return cls(
            features=features.names,
            captured=captured,
            width=captured if through is None else shape.hidden + through[1],
            row_macs=features.macs(at) + (rest * through[1] if through else 0),
            state_only=tuple(split + place for place in range(late) if place not in wide),
            bottleneck=through,
        )

    @classmethod
    def of_maps(cls, shape: cost.ModelShape, maps: MapSet) -> MapReads:
        """Of maps that are there."""
        features = FeatureList(maps.features)
        at = SplitShape.of_config(shape, maps.split)
        through = maps.bottleneck.shape if maps.bottleneck else None
        return cls(
            features=maps.features,
            captured=features.width(at),
            width=maps.in_width,
            row_macs=features.macs(at) + (through[0] * through[1] if through else 0),
            state_only=maps.state_only,
            bottleneck=through,
        )

    @property
    def plain(self) -> bool:
        """Whether they are the paper's maps."""
        return len(self.features) == 1

    @property
    def text(self) -> str:
        """What they read, for people."""
        through = self.bottleneck
        return reads_text(self.features, through[1] if through else None, len(self.state_only))

    def arm(self, split: int, tail: int, sink_rows: int) -> cost.Arm:
        """The ridge arm with these maps."""
        if self.plain:
            return cost.Arm(fill="ridge", split=split, tail=tail, sink_rows=sink_rows)
        return cost.Arm(
            fill="ridge",
            split=split,
            tail=tail,
            sink_rows=sink_rows,
            map_width=self.width,
            state_only=self.state_only,
            row_macs=self.row_macs,
        )
