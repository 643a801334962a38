"""What a decode step reads of a latent cache under a recall policy (VestigeKV, Eq. 2)."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from ridgefit.errors import BadInput


class ReadBudget(BaseModel):
    """Cache entries read per row and step in one layer.

    A policy whose archive stays on the device saves these reads and no memory: the archive is exact and the
    index comes on top. In host memory it saves the archive's share of device memory too.

    Attributes:
        latent: width of a row's latent.
        branch: width of its branch.
        kept: share of rows that stay attended.
        rank: width of the sketch; 0 for no recall.
        fetched: archived rows fetched per step, as a share of all rows.
        certificate: whether the scan reads a residual's length per entry, which Eq. 2 leaves out.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    latent: int = Field(gt=0)
    branch: int = Field(gt=0)
    kept: float = Field(ge=0, le=1)
    rank: int = Field(ge=0)
    fetched: float = Field(0.0, ge=0, le=1)
    certificate: bool = False

    @property
    def row(self) -> int:
        """Entries of a row, what a dense step reads."""
        return self.latent + self.branch

    @property
    def attended(self) -> float:
        """Of kept rows."""
        return self.kept * self.row

    @property
    def scanned(self) -> float:
        """Of index entries."""
        if not self.rank:
            return 0.0
        return (1 - self.kept) * (self.branch + min(self.rank, self.latent) + self.certificate)

    @property
    def admitted(self) -> float:
        """Of fetched rows."""
        return self.fetched * self.row

    @property
    def total(self) -> float:
        """All of it."""
        return self.attended + self.scanned + self.admitted

    @property
    def saving(self) -> float:
        """How many times less than a dense step."""
        return self.row / self.total

    def device_bytes(self, rows: int, *, entry_bytes: int, host: bool) -> int:
        """Device memory of one sequence's cache in one layer.

        Args:
            rows: cached rows.
            entry_bytes: bytes of a cache entry.
            host: the archive lies in host memory, and only kept rows and the index stay.

        Returns:
            Rows in the cache's dtype, index entries in fp32 (branch, sketch, residual's length).

        Raises:
            BadInput: no rows.
        """
        if rows < 1:
            raise BadInput("a cache without rows has no size", "give at least one row")
        near = round(rows * self.kept) if host else rows
        entry = 4 * (self.branch + min(self.rank, self.latent) + 1) if self.rank else 0
        return near * self.row * entry_bytes + rows * entry
