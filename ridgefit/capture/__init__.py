"""Model and text to moments: hooks, shards, workers, resume; and the scoring pass on held-out text."""

from __future__ import annotations

from ridgefit.capture.estimate import CaptureEstimate, estimate
from ridgefit.capture.folder import CaptureFolder, CaptureRecord, load_capture
from ridgefit.capture.merging import merge_shards
from ridgefit.capture.run import CaptureResult, Progress, capture
from ridgefit.capture.score import CandidateScores, Cosines, HeldRows, score_candidates

__all__ = [
    "CandidateScores",
    "CaptureEstimate",
    "CaptureFolder",
    "CaptureRecord",
    "CaptureResult",
    "Cosines",
    "HeldRows",
    "Progress",
    "capture",
    "estimate",
    "load_capture",
    "merge_shards",
    "score_candidates",
]
