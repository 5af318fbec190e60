"""Work on many objects in slices: other tasks run between two slices, so no request holds the event loop for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

from kedge.keys import NO_REVISION
from kedge.server.service.core import Core
from kedge.store import Entry

_T = TypeVar("_T")


async def slices(core: Core, items: Sequence[_T]) -> AsyncIterator[Sequence[_T]]:
    """All items, in slices of at most `list_slice_max`."""
    size = core.env.limits.list_slice_max
    if len(items) <= size:
        yield items
        return
    for start in range(0, len(items), size):
        yield items[start : start + size]
        await asyncio.sleep(0)


async def entries_in_slices(core: Core, kind: str, namespace: str = "") -> AsyncIterator[Sequence[Entry]]:
    """All objects of a kind at one revision, in slices."""
    at, last = NO_REVISION, None
    while True:
        page = await core.store.list(
            kind, namespace=namespace, at=at, start_after=last, limit=core.env.limits.list_page_max
        )
        async for part in slices(core, page.entries):
            core.scanned.inc(len(part))
            yield part
        if not page.remaining:
            return
        at, last = page.revision, page.entries[-1].key
