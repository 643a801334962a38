"""What a selector sees of one prompt, and how a budget is spent on a ranking."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import max_pool1d

from ridgefit.errors import BadInput
from ridgefit.runtime.vocabulary import Vocabulary

Taken = Mapping[str, Collection[int]]
"""Rows that earlier selectors of the list have chosen, by the selector's name."""
SHARE = 0.1
"""Share of a prompt's rows that the paper's reference study keeps exact."""


@dataclass(frozen=True)
class Asked:
    """Attention received in exact lower layers.

    Attributes:
        layers: which ones.
        window: how many rows ask.
        before_tail: the rows just before the tail ask, which hold no question; else the prompt's last.
    """

    layers: tuple[int, ...]
    window: int
    before_tail: bool = False


@dataclass(frozen=True)
class Probed:
    """Attention received in the exact late layers over the filled cache, from the prompt's last `rows`."""

    rows: int


@dataclass(frozen=True)
class Prompt:
    """One sample. Row i is its i-th token; padding is not counted.

    Attributes:
        rows: tokens.
        prefix: rows before the tail; these are what may be chosen.
        ids: token ids `[rows]`; None where the caller gave embeddings.
        vocabulary: what the tokens are; None without a tokenizer.
        frequencies: log frequency of every token id, by the file that holds it.
        received: attention that each prefix row receives, fp64 `[prefix]`.
    """

    rows: int
    prefix: int
    ids: Sequence[int] | None = None
    vocabulary: Vocabulary | None = None
    frequencies: Mapping[Path | None, Sequence[float]] = field(default_factory=dict)
    received: Mapping[Asked | Probed, Tensor] = field(default_factory=dict)

    def tokens(self) -> tuple[Sequence[int], Vocabulary]:
        """Ids and vocabulary, for selectors that need both.

        Raises:
            BadInput: the model was called with embeddings instead of ids.
        """
        if self.ids is None or self.vocabulary is None:
            raise BadInput(
                "rows are chosen by what their tokens are, and the model was called with embeddings",
                "call it with input_ids, or choose rows by attention",
            )
        return self.ids, self.vocabulary


class Selector(ABC):
    """A rule that chooses rows of a prompt's prefix; every selector is a frozen dataclass of its settings.

    Attributes:
        name: in recipes, reports and the registry.
    """

    name: ClassVar[str]

    @property
    def reads_tokens(self) -> bool:
        """Whether it needs a tokenizer."""
        return False

    def check(self, split: int, tail: int) -> None:
        """Refuse settings that do not fit the fill.

        Raises:
            BadInput: naming the setting.
        """
        del split, tail

    def check_prompt(self, rows: int, prefix: int) -> None:
        """Refuse settings that do not fit a prompt.

        Args:
            rows: tokens of the prompt.
            prefix: rows before the tail.

        Raises:
            BadInput: naming the setting.
        """
        del rows, prefix

    def asks(self, split: int) -> tuple[Asked | Probed, ...]:
        """Which attention it needs measured."""
        del split
        return ()

    def tables(self) -> tuple[Path | None, ...]:
        """Frequency tables it reads; None stands for the one beside the maps."""
        return ()

    @abstractmethod
    def choose(self, prompt: Prompt, split: int, taken: Taken) -> Sequence[int]:
        """Rows of the prefix, in any order; which are taken already only matters where rows are counted."""


@dataclass(frozen=True)
class Counted(Selector):
    """A selector that is given a number of rows to spend, and spends them on rows nobody has taken yet.

    Attributes:
        share: rows as a share of the whole prompt; 10 % if neither is given.
        count: rows.
    """

    share: float | None = None
    count: int | None = None

    def __post_init__(self) -> None:
        """Refuse a budget that is no budget."""
        if self.share is not None and self.count is not None:
            raise BadInput(f"{self.name} rows have both a share and a count", "give one of them")
        require_share(self.name, self.share)
        if self.count is not None and self.count < 1:
            raise BadInput(f"{self.count} {self.name} rows would be an empty selection", "use 1 or more")

    def budget(self, prompt: Prompt) -> int:
        """Rows to spend: the count, or the share of the prompt rounded half to even; at most the prefix."""
        share = SHARE if self.share is None else self.share
        wanted = self.count if self.count is not None else round(share * prompt.rows)
        return min(wanted, prompt.prefix)


def require_share(name: str, share: float | None) -> None:
    """Refuse a share that is none.

    Raises:
        BadInput: the share is not above 0 and at most 1.
    """
    if share is not None and not 0 < share <= 1:
        raise BadInput(
            f"a share of {share:g} of {name} rows is not above 0 and at most 1", "use 0.1 for 10 %"
        )


def free(prompt: Prompt, taken: Taken) -> list[int]:
    """Prefix rows that no earlier selector has chosen, ascending."""
    gone = set().union(*taken.values())
    return [row for row in range(prompt.prefix) if row not in gone]


def require_pool(name: str, pool: int) -> None:
    """Refuse a neighbourhood that has no middle.

    Raises:
        BadInput: `pool` is not a positive odd number.
    """
    if pool < 1 or pool % 2 == 0:
        raise BadInput(
            f"{name} rows cannot be pooled over {pool} rows, which have no middle one", "use an odd number"
        )


def pooled(scores: Tensor, pool: int) -> Tensor:
    """Each row's highest score among the `pool` rows around it, cut at the ends (as in SnapKV).

    A question attends to the words that it shares with a sentence; the answer stands beside them.

    Args:
        scores: `[prefix]`.
        pool: odd number of rows; 1 leaves the scores as they are.
    """
    if pool == 1:
        return scores
    return max_pool1d(scores[None], pool, stride=1, padding=pool // 2)[0]


def highest(scores: Tensor, rows: Sequence[int], count: int) -> list[int]:
    """The `count` of `rows` with the highest scores; of equal ones the lower row.

    Args:
        scores: `[prefix]`.
        rows: candidates, ascending.
        count: how many.
    """
    candidates = torch.tensor(rows, dtype=torch.long)
    order = torch.argsort(scores[candidates], descending=True, stable=True)[:count]
    return [int(row) for row in candidates[order].tolist()]
