"""A selector, recall selector or control that lacks its one method fails when it is made."""

from __future__ import annotations

import pytest

from ridgefit.features.controls import _Control
from ridgefit.runtime.recall.selectors.selector import Selector as RecallSelector
from ridgefit.runtime.selectors import Selector


@pytest.mark.parametrize(
    ("base", "method"), [(Selector, "choose"), (RecallSelector, "scores"), (_Control, "source")]
)
def test_a_forgotten_method(base: type, method: str) -> None:
    made = type("Half", (base,), {"name": "half", "base": "half"})
    with pytest.raises(TypeError, match=f"abstract.*{method}"):
        made()
    whole = type("Whole", (base,), {"name": "whole", "base": "whole", method: lambda *_: None})
    assert isinstance(whole(), base)
