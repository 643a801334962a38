"""A list of selectors made ready for one model, and the rows it chooses for each prompt."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ridgefit.errors import BadInput
from ridgefit.maps.frequencies import FREQUENCIES, Frequencies
from ridgefit.models import Port
from ridgefit.runtime.selectors import Asked, Probed, Prompt, Selector
from ridgefit.runtime.vocabulary import Vocabulary
from ridgefit.tokens import tokenizer_sha256


@dataclass(frozen=True)
class RowChoice:
    """Selectors in order, with what they read.

    Attributes:
        selectors: each spends its budget on rows that those before it have not taken.
        vocabulary: what tokens are; None where no selector reads them.
        frequencies: log frequency of every token id, by file; None stands for the table beside the maps.
    """

    selectors: tuple[Selector, ...]
    vocabulary: Vocabulary | None = None
    frequencies: Mapping[Path | None, Sequence[float]] = field(default_factory=dict, repr=False)

    @classmethod
    def ready(
        cls,
        selectors: Iterable[Selector],
        *,
        port: Port,
        split: int,
        tail: int,
        vocabulary: Vocabulary | None,
        maps: Path | None,
    ) -> RowChoice:
        """Check every selector and read its tables.

        Args:
            selectors: at least one.
            port: the model.
            split: first late layer.
            tail: last rows, which run every layer.
            vocabulary: of the model's tokenizer, if the caller has one.
            maps: file or folder of the maps, beside which a frequency table may lie.

        Raises:
            BadInput: no selector, one twice, settings that do not fit the fill, no tokenizer for one that
                reads tokens, or a frequency table that is missing or of another tokenizer.
        """
        chosen = tuple(selectors)
        require_selectors(chosen, split, tail)
        for selector in chosen:
            if selector.reads_tokens and vocabulary is None:
                raise BadInput(
                    f"{selector.name} rows are chosen by what tokens are, and no tokenizer was given",
                    "pass tokenizer=",
                )
        tables = {name for selector in chosen for name in selector.tables()}
        read = {name: _table(name, maps, vocabulary, port.vocab) for name in tables}
        return cls(chosen, vocabulary, read)

    def asked(self, split: int) -> tuple[Asked, ...]:
        """Which lower-layer attention has to be measured."""
        every = [ask for selector in self.selectors for ask in selector.asks(split)]
        return tuple(dict.fromkeys(ask for ask in every if isinstance(ask, Asked)))

    def probed(self, split: int) -> tuple[Probed, ...]:
        """Which probes have to run."""
        every = [ask for selector in self.selectors for ask in selector.asks(split)]
        return tuple(dict.fromkeys(ask for ask in every if isinstance(ask, Probed)))

    def rows(self, prompt: Prompt, split: int, sinks: Sequence[int] = ()) -> dict[str, list[int]]:
        """Rows that each selector chose for one sample, ascending, by its name; `sinks` are taken before."""
        taken: dict[str, list[int]] = {"": list(sinks)}
        for selector in self.selectors:
            taken[selector.name] = sorted(selector.choose(prompt, split, taken))
        return taken


def require_selectors(selectors: Sequence[Selector], split: int, tail: int) -> None:
    """Refuse a list of selectors that cannot be, or whose settings do not fit the fill.

    Raises:
        BadInput: there is none, one twice, or one's settings do not fit.
    """
    if not selectors:
        raise BadInput("a list of no selectors would be an empty selection", "leave it out, or name one")
    names = [selector.name for selector in selectors]
    for name in names:
        if names.count(name) > 1:
            raise BadInput(f"rows are chosen by {name} twice", "keep one of them")
    for selector in selectors:
        selector.check(split, tail)


def sized_table(name: Path | None, maps: Path | None, vocab: int) -> tuple[Path, Frequencies]:
    """A frequency table with an entry for every token, and where it lies.

    Args:
        name: its file; None stands for the one beside the maps.
        maps: file or folder of the maps.
        vocab: tokens of the model.

    Raises:
        BadInput: there is none, or it counts other tokens.
    """
    path = name if name is not None else _beside(maps)
    table = Frequencies.read(path)
    if len(table.logfreq) != vocab:
        raise BadInput(
            f"the frequency table {path} is of another tokenizer: it counts {len(table.logfreq)} tokens, "
            f"the model has {vocab}",
            "use the table of this model's capture",
        )
    return path, table


def _table(
    name: Path | None, maps: Path | None, vocabulary: Vocabulary | None, vocab: int
) -> Sequence[float]:
    """Log frequencies of every token id, from a file or from beside the maps."""
    path, table = sized_table(name, maps, vocab)
    own = None if vocabulary is None else tokenizer_sha256(vocabulary.tokenizer)
    if table.tokenizer_sha256 is None:
        warnings.warn(f"the frequency table {path} does not say which tokenizer it is of", stacklevel=2)
    elif own is not None and own != table.tokenizer_sha256:
        raise BadInput(
            f"the frequency table {path} is of another tokenizer (sha256 {table.tokenizer_sha256[:12]}…, "
            f"this one's is {own[:12]}…)",
            "use the table of this model's capture",
        )
    found: list[float] = table.logfreq.tolist()
    return found


def _beside(maps: Path | None) -> Path:
    places = [] if maps is None else [maps / FREQUENCIES, maps.parent / FREQUENCIES]
    found: Any = next((place for place in places if place.is_file()), None)
    if not isinstance(found, Path):
        raise BadInput(
            "protected rows need a token frequency table, and none lies beside the maps",
            "name one with `frequencies`: capture writes frequencies.safetensors",
        )
    return found
