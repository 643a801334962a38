"""Speculative decoding with a draft whose cache is compressed; the output is the target's own."""

from ridgefit.runtime.speculative.choose import Chooser
from ridgefit.runtime.speculative.generate import (
    Decoded,
    Draft,
    decode,
    drafting,
    replay,
    replay_known,
    require_whole_round,
)
from ridgefit.runtime.speculative.known import Known, Sampling, known_text
from ridgefit.runtime.speculative.loop import Round, Speculation

__all__ = [
    "Chooser",
    "Decoded",
    "Draft",
    "Known",
    "Round",
    "Sampling",
    "Speculation",
    "decode",
    "drafting",
    "known_text",
    "replay",
    "replay_known",
    "require_whole_round",
]
