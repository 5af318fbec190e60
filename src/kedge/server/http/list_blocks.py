"""Blocks of lists as JSON, kept from one list to the next: neighbouring objects that did not change are copied at once.

After a break every client lists again, so the same objects leave many times within seconds. Most of the cost of a list
is then to read and splice each object; a block of a dozen is copied in a fifth of that time. A block is used only for
exactly the versions from which it was made, and it ends where the next one begins, so a change costs one block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from kedge.api.codec import splice
from kedge.keys import Key
from kedge.limits import Limits
from kedge.metrics import Metrics
from kedge.store import Entry

BLOCK_BYTES: Final = 16 * 1024
"""The size of a new block. A change may leave it at half of that, or at twice, before it is cut differently."""
UNUSED_LISTS: Final = 8
"""Lists after which a block that none of them used may be replaced. Within these, a new block is not kept: lists longer
than all that is kept would otherwise replace each block before it is used."""


class ListBlock(NamedTuple):
    """Some consecutive objects of a kind."""

    entries: Sequence[Entry]
    json: bytes
    """The objects, separated by commas."""


class ListBlocks:
    """The blocks that one server keeps."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self._bytes_max = limits.http_list_blocks_bytes_max
        self._blocks: dict[Key, tuple[ListBlock, int]] = {}
        """By the first object, with the number of the last list that used it, the oldest use first."""
        self._bytes = 0
        self._lists = 0
        metrics.gauge("kedge_http_list_blocks_bytes", "Bytes of lists that are kept as JSON", ()).set_function(
            lambda: self._bytes
        )
        copied = metrics.counter(
            "kedge_http_listed_objects_total",
            "Objects of lists, by whether a kept block had them or they were read one by one",
            ("source",),
        )
        self._kept = copied.labels("block")
        self._read = copied.labels("object")

    def blocks(self, entries: list[Entry]) -> Iterator[bytes]:
        """The objects of a list as JSON, several at a time, those of each block separated by commas."""
        self._lists += 1
        number, at, kept = self._lists, 0, 0
        while at < len(entries):
            key = entries[at].key
            found = self._blocks.pop(key, None)
            if found is not None and entries[at : at + len(found[0].entries)] == found[0].entries:
                block = found[0]
                self._blocks[key] = block, number
                kept += len(block.entries)
            else:
                if found is not None:
                    self._bytes -= len(found[0].json)
                versions = entries[at : self._end(entries, at)]
                block = ListBlock(versions, b",".join([splice(each.value, each.modified) for each in versions]))
                self._keep(key, block, number)
            yield block.json
            at += len(block.entries)
        self._kept.inc(kept)
        self._read.inc(len(entries) - kept)

    def _end(self, entries: list[Entry], at: int) -> int:
        """Where a block that begins at `at` ends: at the next block, unless this one were too small or too large."""
        size, cut = 0, at
        for end in range(at, len(entries)):
            if size >= BLOCK_BYTES // 2 and entries[end].key in self._blocks:
                return end
            if size < BLOCK_BYTES:
                cut = end + 1
            size += len(entries[end].value)
            if size >= 2 * BLOCK_BYTES:
                return cut
        return len(entries)

    def _keep(self, key: Key, block: ListBlock, number: int) -> None:
        size = len(block.json)
        while self._bytes + size > self._bytes_max:
            oldest = next(iter(self._blocks), None)
            if oldest is None or number - self._blocks[oldest][1] <= UNUSED_LISTS:
                return
            self._bytes -= len(self._blocks.pop(oldest)[0].json)
        self._blocks[key] = block, number
        self._bytes += size
