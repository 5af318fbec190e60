"""Watch: the store's changes as Kubernetes events, filtered by selectors.

For a watch with a selector, an object that starts to match was added, and one that stops matching was deleted. The
stream ends by its timeout, or with an error that names where to resume.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

from kedge.api.kinds import Kind
from kedge.api.objects import Object
from kedge.api.requests import EventType, OpenWatch, WatchEvent, WatchOptions
from kedge.keys import NO_REVISION, Revision
from kedge.server.service.core import Core, name_only
from kedge.server.service.initial_events import InitialEvents
from kedge.server.service.reads import Matches, compile_selectors, invalid_option, parse_resource_version
from kedge.store import Batch, Change, StoreWatch


async def watch(core: Core, request: OpenWatch) -> AsyncGenerator[WatchEvent, None]:
    """Stream events. Close the generator to stop.

    Raises:
        Compacted: the requested version, or the position of the stream, is compacted. List again.
        Lagged: the reader was too slow. Resume after the last revision received.
    """
    events = _one_by_one(await watch_batches(core, request))
    await anext(events)  # started, so that it closes its stream even if it is never read
    return events


async def watch_batches(core: Core, request: OpenWatch) -> EventStream:
    """As `watch`, with the events of one moment in one batch. Close it: nothing else does."""
    kind, options = request.kind, request.options
    initial = _wants_initial_events(options)
    matches = compile_selectors(kind, options.label_selector, options.field_selector)
    after = parse_resource_version(options.resource_version)
    if not initial:
        if options.send_initial_events is False and not after:
            after = await core.store.revision()
        stream = await core.store.watch(kind.key_kind, after=after, namespace=options.namespace)
        return EventStream(core, kind, options, matches, stream, after)
    existing = InitialEvents(core, request)
    try:
        await existing.read_first()
        after = existing.revision
        stream = await core.store.watch(kind.key_kind, after=after, namespace=options.namespace)
    except BaseException:
        existing.close()
        raise
    return EventStream(core, kind, options, matches, stream, after, existing)


async def _one_by_one(batches: EventStream) -> AsyncGenerator[WatchEvent, None]:
    try:
        yield WatchEvent(EventType.BOOKMARK, None, NO_REVISION)  # consumed by `watch`
        async for batch in batches:
            for event in batch:
                yield event
    finally:
        batches.close()


class EventStream:
    """The batches of events of one watch, until its deadline if it has one. Read it as a `StoreWatch` is read."""

    def __init__(
        self,
        core: Core,
        kind: Kind,
        options: WatchOptions,
        matches: Matches | None,
        stream: StoreWatch,
        after: Revision,
        initial: InitialEvents | None = None,
    ) -> None:
        self._core = core
        self._kind = kind
        self._matches = matches
        self._bookmarks = options.allow_bookmarks
        self._stream = stream
        self._initial = initial
        self._after = after
        self._more = False
        """Whether the last batch left changes behind."""
        self.drained = False
        """Whether nothing was left to take after the last `take_nowait`. False means that it is not known."""
        self._last_sent_s = core.env.monotonic()
        self._deadline_s = None if options.timeout_s is None else self._last_sent_s + options.timeout_s

    @property
    def pushes(self) -> bool:
        """Whether draining saves a task. A stream with a deadline must be iterated."""
        return self._deadline_s is None and self._stream.pushes

    @property
    def deadline_s(self) -> float | None:
        """When it ends, on the monotonic clock. A reader that drains it keeps this time itself."""
        return self._deadline_s

    @property
    def revision(self) -> Revision:
        """Every change up to it is in the batches that were taken, or selected away; none while objects are listed."""
        return NO_REVISION if self._initial is not None and not self._initial.ended else self._after

    @property
    def on_ready(self) -> Callable[[], None] | None:
        return self._stream.on_ready

    @on_ready.setter
    def on_ready(self, notify: Callable[[], None] | None) -> None:
        self._stream.on_ready = notify

    def take_nowait(self) -> Sequence[WatchEvent] | None:
        """The next batch, or None if none is ready. Raises as `__anext__` does."""
        if self._initial is not None:
            listed = self._initial.take_nowait(self._notify)
            if listed or not self._initial.ended:
                return listed or None
            self._end_initial()
        while (batch := self._stream.take_nowait()) is not None:
            self.drained = batch.last
            events = self._events(batch)
            if events:
                return events
            if batch.last:
                return None
        return None

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> Sequence[WatchEvent]:
        if self._initial is not None:
            if listed := await self._take_initial(self._initial):
                return listed
            self._end_initial()
        while True:
            try:
                if self._more:
                    await asyncio.sleep(0)  # the next batch is there: without this no other task runs before the last
                batch = await self._next()
            except BaseException:
                self.close()
                raise
            self._more = not batch.last
            events = self._events(batch)
            if events:
                return events

    async def _next(self) -> Batch:
        """The next batch of the store; the end of iteration at the end of its time."""
        if self._deadline_s is None:
            return await self._stream.__anext__()
        try:
            async with asyncio.timeout(max(0.0, self._deadline_s - self._core.env.monotonic())):
                return await self._stream.__anext__()
        except TimeoutError:
            raise StopAsyncIteration from None

    async def _take_initial(self, initial: InitialEvents) -> Sequence[WatchEvent]:
        try:
            return await initial.take()
        except BaseException:
            self.close()
            raise

    def _end_initial(self) -> None:
        if self._initial is not None:
            self._initial.close()
            self._initial = None

    def _notify(self) -> None:
        if self.on_ready is not None:
            self.on_ready()

    def _events(self, batch: Batch) -> Sequence[WatchEvent]:
        """The events of a store batch for this watch; none if no event and no bookmark is due. Watches that select
        everything share the result."""
        core, kind, matches = self._core, self._kind, self._matches
        self._after = batch.revision
        if matches is None:
            return _every_event(core, kind, batch, bookmarks=self._bookmarks)
        events = [seen for change in batch.changes if (seen := _event(core, kind, change, matches)) is not None]
        # A watch whose selector matches nothing needs progress, or compaction overtakes it.
        due = not batch.changes or core.env.monotonic() - self._last_sent_s >= core.env.limits.watch_progress_s
        if not events and not due:
            return events
        # A batch never splits a commit: the bookmark after it marks its last commit as complete.
        if self._bookmarks:
            events.append(WatchEvent(EventType.BOOKMARK, None, batch.revision))
        self._last_sent_s = core.env.monotonic()
        return events

    def close(self) -> None:
        self._end_initial()
        self._stream.close()

    async def aclose(self) -> None:
        """As generators call it."""
        self.close()


def _every_event(core: Core, kind: Kind, batch: Batch, *, bookmarks: bool) -> Sequence[WatchEvent]:
    """The events of a batch for a watch without selectors: the same sequence for all watches that share the batch."""
    known = core.shared_events.get(bookmarks)
    if known is not None and known[0] is batch:
        return known[1]
    events = [seen for change in batch.changes if (seen := _event(core, kind, change, None)) is not None]
    if bookmarks:
        events.append(WatchEvent(EventType.BOOKMARK, None, batch.revision))
    found = tuple(events)
    core.shared_events[bookmarks] = (batch, found)
    return found


def _event(core: Core, kind: Kind, change: Change, matches: Matches | None) -> WatchEvent | None:
    entry, revision = change.entry, change.revision
    found = None if entry is None else core.object_of(entry)
    if matches is None:
        if entry is None:
            return _deleted(core, change)
        return WatchEvent(EventType.ADDED if entry.created == revision else EventType.MODIFIED, found, revision)
    matched_before = change.previous is not None and matches(core.object_of(change.previous))
    if kind.latest_only and not change.created:
        matched_before = True  # the watch may have delivered a version that the store no longer has
    if found is not None and matches(found):
        return WatchEvent(EventType.MODIFIED if matched_before else EventType.ADDED, found, revision)
    return _deleted(core, change) if matched_before else None


def _deleted(core: Core, change: Change) -> WatchEvent:
    """A deletion carries the object's last state, at the revision of the delete."""
    kind = core.kind_of(change.key)
    shown = change.previous or change.entry  # neither, if the store no longer has its last state
    gone = Object(
        kind,
        change.key,
        shown.value if shown is not None else name_only(kind, change.key),
        revision=change.revision,
        created=shown.created if shown is not None else NO_REVISION,
        origin=change.origin,
    )
    return WatchEvent(EventType.DELETED, gone, change.revision)


def _wants_initial_events(options: WatchOptions) -> bool:
    """Whether to begin with the existing objects: requested outright, or in the legacy way, by naming no version."""
    if options.send_initial_events is not None:
        if options.resource_version_match != "NotOlderThan":
            raise invalid_option("resourceVersionMatch", "sendInitialEvents requires NotOlderThan")
        return options.send_initial_events
    if options.resource_version_match:
        raise invalid_option("resourceVersionMatch", "forbidden for watch unless sendInitialEvents is given")
    return options.resource_version in ("", "0")
