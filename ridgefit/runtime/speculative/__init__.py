"""Speculative decoding with a draft whose cache is compressed; the output is the target's own."""

from ridgefit.runtime.speculative.choose import Chooser
from ridgefit.runtime.speculative.generate import Decoded, Draft, decode, drafting, replay
from ridgefit.runtime.speculative.loop import Round, Speculation

__all__ = ["Chooser", "Decoded", "Draft", "Round", "Speculation", "decode", "drafting", "replay"]
