"""What a policy did, layer by layer: rows kept, scanned, fetched, and how often a step read everything."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class LayerReport:
    """Sums over queries that read one layer through the policy.

    Attributes:
        width: entries of a row.
        entry: entries of an index entry that a scan reads.
        observed: queries that the model attended itself (prompts).
        queries: queries that the policy attended.
        parted: of those, queries whose sequence had an archive.
        attended: rows they attended without fetching, summed.
        scanned: index entries read, summed.
        bounds: rows' worth of page bounds read, summed.
        seen: rows a dense step would have read, summed.
        fetched: rows fetched, one number per parted query.
        fired: parted queries that fetched at least one row.
        overflowed: parted queries that asked for more than the cap and read everything.
        skipped: (query, head) pairs that the gate spared the scan.
        kept: closed rows that stay attended, of the last sequence.
        archived: its other closed rows.
        z: certificate factor of the last sequence.
        hard: hard calibration queries of the last sequence.
        gate: entropy threshold of the last sequence; None where the gate is open.
    """

    width: int = 0
    entry: int = 0
    observed: int = 0
    queries: int = 0
    parted: int = 0
    attended: int = 0
    scanned: int = 0
    bounds: int = 0
    seen: int = 0
    fetched: list[int] = field(default_factory=list)
    fired: int = 0
    overflowed: int = 0
    skipped: int = 0
    kept: int = 0
    archived: int = 0
    z: float | None = None
    hard: int | None = None
    gate: float | None = None

    @property
    def dims_per_row(self) -> float:
        """Cache entries read per row and step, the measured side of VestigeKV's Eq. 2."""
        rows = self.attended + sum(self.fetched) + self.bounds
        read = rows * self.width + self.scanned * self.entry
        return read / self.seen if self.seen else 0.0

    def quantile(self, share: float) -> int:
        """Rows fetched that `share` of the parted queries do not exceed."""
        ordered = sorted(self.fetched)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0


@dataclass
class RecallReport:
    """Reports by layer number."""

    layers: dict[int, LayerReport] = field(default_factory=dict)

    def of(self, layer: int) -> LayerReport:
        """The layer's report, made when first asked for."""
        return self.layers.setdefault(layer, LayerReport())
