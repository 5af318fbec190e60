"""The initial events of watches: the existing objects of a kind, in pages that are read as the reader takes them.

A watch holds one page at most, and all watches together a bounded number of bytes: a client that opens watches and
does not read them costs no more than that. `watches` reads them before the changes. A page that history no longer has
fails with `Compacted`, as the changes after it would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from kedge.api.objects import Object
from kedge.api.requests import EventType, List, ListOptions, OpenWatch, WatchEvent
from kedge.keys import NO_REVISION, Revision
from kedge.server.service.core import Core
from kedge.server.service.reads import continue_after, list_objects

_FIRST_OBJECTS = 64
"""Objects read for the first page; a page that has room makes the next one twice as long."""
EVENT_BYTES = 512
"""An event, its object and its key in memory, without the value."""


class InitialEvents:
    """The existing objects that one watch begins with. Take pages until it has `ended`; close it."""

    def __init__(self, core: Core, request: OpenWatch) -> None:
        options = request.options
        self._core = core
        self._list = List(
            request.kind,
            ListOptions(
                namespace=options.namespace,
                label_selector=options.label_selector,
                field_selector=options.field_selector,
                resource_version=options.resource_version,
                resource_version_match="NotOlderThan" if options.resource_version else "",
                limit=_FIRST_OBJECTS,
            ),
        )
        self._ends_with_bookmark = bool(options.send_initial_events and options.allow_bookmarks)
        self._reserved = core.initial_bytes.reserve_page()
        self._page: Sequence[WatchEvent] = ()
        self._more = True
        self._reading: asyncio.Task[None] | None = None
        self._error: Exception | None = None
        self.revision: Revision = NO_REVISION
        """The revision of all pages, once the first was read."""

    @property
    def ended(self) -> bool:
        """Whether every page was taken."""
        return not (self._page or self._more)

    async def read_first(self) -> None:
        await self._read_page()

    async def take(self) -> Sequence[WatchEvent]:
        """The next page; empty at the end."""
        while not self._page and self._more:
            await asyncio.sleep(0)  # a reader in this process takes page after page: others run between two
            await self._read_page()
        return self._take()

    def take_nowait(self, on_ready: Callable[[], None]) -> Sequence[WatchEvent]:
        """The next page; empty at the end, and while it is read: then `on_ready` is called once it is here."""
        if self._error is not None:
            raise self._error
        if not self._page and self._more and self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read(on_ready))
        return self._take()

    def close(self) -> None:
        """The reader has written every page, or is gone. Safe to repeat."""
        if self._reading is not None:
            self._reading.cancel()
        self._page, self._more = (), False
        self._give_back(self._reserved)

    def _take(self) -> Sequence[WatchEvent]:
        page, self._page = self._page, ()
        return page

    async def _read(self, on_ready: Callable[[], None]) -> None:
        try:
            while not self._page and self._more:
                await self._read_page()
        except Exception as error:  # noqa: BLE001  the reader of the watch raises it
            self._error = error
        self._reading = None
        on_ready()

    async def _read_page(self) -> None:
        core, wanted = self._core, self._list.options
        found = await list_objects(core, self._list)
        self.revision = found.revision
        kept, size = _fitting(found.objects, core.initial_bytes.page_bytes)
        token = found.continue_token
        if len(kept) < len(found.objects):
            token = continue_after(found.revision, kept[-1].key)
        events = [WatchEvent(EventType.ADDED, each, each.revision) for each in kept]
        self._more = bool(token)
        if token:
            rest = msgspec.structs.replace(
                wanted,
                resource_version="",
                resource_version_match="",
                limit=max(1, min(core.env.limits.list_slice_max, 2 * len(kept))),
                continue_token=token,
            )
            self._list = List(found.kind, rest)
        else:
            self._give_back(self._reserved - min(self._reserved, size))
            if self._ends_with_bookmark:
                events.append(WatchEvent(EventType.BOOKMARK, None, found.revision, initial_end=True))
        self._page = events

    def _give_back(self, size: int) -> None:
        self._reserved -= size
        self._core.initial_bytes.held -= size


def _fitting(objects: Sequence[Object], bytes_max: int) -> tuple[Sequence[Object], int]:
    """The first objects that fit into a page, at least one, and their bytes. One object may be larger than a page."""
    size = 0
    for count, each in enumerate(objects):
        own = EVENT_BYTES + len(each.value)
        if size + own > bytes_max and count:
            return objects[:count], size
        size += own
    return objects, size
