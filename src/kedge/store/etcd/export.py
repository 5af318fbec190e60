"""Reads every object under a prefix at one revision, page by page: the source of a backup."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from kedge.keys import Revision
from kedge.store.contract import Entry
from kedge.store.etcd.layout import Layout
from kedge.store.etcd.transactions import MetaEntry

Range = Callable[..., Awaitable[tuple[MetaEntry, Any]]]


async def export_pages(read: Range, layout: Layout, at: Revision, page: int) -> AsyncIterator[Sequence[Entry]]:
    """Values are as etcd has them. `read` is the store's linearizable range.

    Raises:
        Compacted: history moved on meanwhile. Begin again.
    """
    start = layout.objects
    while True:
        meta_entry, found = await read(at, key=start, range_end=layout.objects_end, limit=page)
        yield [layout.stored_entry(kv, meta_entry.meta) for kv in found.kvs]
        if not found.more:
            return
        start = found.kvs[-1].key + b"\0"
