"""A list that is changed anywhere in steps of its logarithm: JSON patches insert and remove at any index.

Items are in blocks; a tree of the blocks' lengths finds the block of an index. `patch` makes one of each list that it
changes, and turns it into a plain list at the end. Nothing else uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Final

BLOCK_ITEMS: Final = 256
"""Items of a new block. A block is split at twice as many, so that one change moves no more than these."""


class BlockList:
    """Items in order. Indexes are not negative and are checked by the caller."""

    __slots__ = ("_blocks", "_length", "_tree", "moved")

    def __init__(self, items: Iterable[Any]) -> None:
        every = list(items)
        self._blocks = [every[start : start + BLOCK_ITEMS] for start in range(0, len(every), BLOCK_ITEMS)] or [[]]
        self._length = len(every)
        self._tree: list[int] = []
        """A Fenwick tree of the blocks' lengths: `_tree[i]` counts the last `i & -i` blocks up to the i-th."""
        self.moved = 0
        """Items and blocks that changes have moved so far."""
        self._count()

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(self._blocks)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BlockList | list):
            return NotImplemented
        return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __getitem__(self, index: int) -> Any:
        block, offset = self._find(index)
        return self._blocks[block][offset]

    def __setitem__(self, index: int, value: Any) -> None:
        block, offset = self._find(index)
        self._blocks[block][offset] = value

    def __delitem__(self, index: int) -> None:
        block, offset = self._find(index)
        self.moved += len(self._blocks[block]) - offset
        del self._blocks[block][offset]  # an empty block stays: it is found by no index
        self._add(block, -1)

    def insert(self, index: int, value: Any) -> None:
        if index == self._length:
            block = len(self._blocks) - 1
            offset = len(self._blocks[block])
        else:
            block, offset = self._find(index)
        items = self._blocks[block]
        self.moved += len(items) - offset
        items.insert(offset, value)
        self._add(block, 1)
        if len(items) > 2 * BLOCK_ITEMS:
            self._blocks[block : block + 1] = [items[:BLOCK_ITEMS], items[BLOCK_ITEMS:]]
            self.moved += len(items) + len(self._blocks)
            self._count()

    def _find(self, index: int) -> tuple[int, int]:
        """The block of an item, and its place in it."""
        tree, block = self._tree, 0
        step = 1 << (len(self._blocks).bit_length() - 1)
        while step:
            following = block + step
            if following < len(tree) and tree[following] <= index:
                block = following
                index -= tree[following]
            step >>= 1
        return block, index

    def _add(self, block: int, change: int) -> None:
        self._length += change
        tree, place = self._tree, block + 1
        while place < len(tree):
            tree[place] += change
            place += place & -place

    def _count(self) -> None:
        tree = self._tree = [0, *map(len, self._blocks)]
        for place in range(1, len(tree)):
            parent = place + (place & -place)
            if parent < len(tree):
                tree[parent] += tree[place]
