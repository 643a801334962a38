"""The fixed order in which partial sums are merged, whoever made them.

The work is cut into 8 leaves, and sums are merged along a binary tree: siblings only, left first. Additions
then happen in the same order whether one process did everything or four machines did two leaves each, so the
result has the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

LEAVES = 8


class Node(NamedTuple):
    """Leaves `start` to `stop` of the tree, merged."""

    start: int
    stop: int

    @property
    def sibling(self) -> Node:
        """The other half of the parent."""
        size = self.stop - self.start
        step = size if (self.start // size) % 2 == 0 else -size
        return Node(self.start + step, self.stop + step)

    @property
    def parent(self) -> Node:
        """Both halves together."""
        other = self.sibling
        return Node(min(self.start, other.start), max(self.stop, other.stop))

    def covers(self, other: Node) -> bool:
        """Whether `other` is part of this node and smaller."""
        return self != other and self.start <= other.start and other.stop <= self.stop


ROOT = Node(0, LEAVES)


def leaf(number: int) -> Node:
    """Leaf `number` as a node."""
    return Node(number, number + 1)


def leaf_range(number: int, windows: int) -> range:
    """Windows of a leaf: 8 contiguous ranges whose lengths differ by at most one."""
    return range(number * windows // LEAVES, (number + 1) * windows // LEAVES)


def shard_leaves(index: int, count: int) -> range:
    """Leaves of shard `index` (from 0) of `count`: contiguous, so that whole subtrees merge at home."""
    return range(index * LEAVES // count, (index + 1) * LEAVES // count)


def settled(nodes: Iterable[Node]) -> set[Node]:
    """Nodes that are not part of another one: what a crash between merging and deleting left is dropped."""
    held = set(nodes)
    return {node for node in held if not any(other.covers(node) for other in held)}


def merges(nodes: Iterable[Node], *, whole: bool = True) -> Iterator[tuple[Node, Node]]:
    """Pairs of siblings to merge, left one first, until none is left.

    Args:
        nodes: what there is now.
        whole: also merge the last pair into the root.
    """
    held = settled(nodes)
    while True:
        pairs = sorted(
            (node, node.sibling)
            for node in held
            if node != ROOT
            and node < node.sibling
            and node.sibling in held
            and (whole or node.parent != ROOT)
        )
        if not pairs:
            return
        left, right = pairs[0]
        yield left, right
        held = (held - {left, right}) | {left.parent}
