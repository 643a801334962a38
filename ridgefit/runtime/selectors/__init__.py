"""Rules that choose exact rows of a prompt's prefix: one file per rule, found by name."""

from ridgefit.runtime.selectors.attention import Attention, QuestionBlind
from ridgefit.runtime.selectors.digits import Digits
from ridgefit.runtime.selectors.explicit import Explicit
from ridgefit.runtime.selectors.lexical_net import LexicalNet
from ridgefit.runtime.selectors.longer_tail import LongerTail
from ridgefit.runtime.selectors.probe import Probe
from ridgefit.runtime.selectors.prompt import Asked, Probed, Prompt, Selector
from ridgefit.runtime.selectors.protected import Protected
from ridgefit.runtime.selectors.random_rows import Random
from ridgefit.runtime.selectors.sinks import Sinks
from ridgefit.runtime.selectors.special import Special

SELECTORS: dict[str, type[Selector]] = {
    selector.name: selector
    for selector in (
        Sinks,
        Special,
        Digits,
        Protected,
        LexicalNet,
        Attention,
        QuestionBlind,
        Probe,
        Random,
        LongerTail,
        Explicit,
    )
}
"""Every selector by name, in the order in which a list of them should stand."""

__all__ = [
    "SELECTORS",
    "Asked",
    "Attention",
    "Digits",
    "Explicit",
    "LexicalNet",
    "LongerTail",
    "Probe",
    "Probed",
    "Prompt",
    "Protected",
    "QuestionBlind",
    "Random",
    "Selector",
    "Sinks",
    "Special",
]
