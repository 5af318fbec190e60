"""Watches: initial events, order, resumption, compaction, bookmarks, selectors and ends."""

from __future__ import annotations

from kedge.api.requests import EventType, ListOptions, OpenWatch, WatchOptions
from kedge.client.conformance.subject import CONFIG_MAP, NAMESPACE, WAIT_S, ClientSubject, by, key, next_event
from kedge.errors import BadRequest, Compacted
from kedge.expectations import expect, raises, same, within
from kedge.keys import Origin

_INITIAL = WatchOptions(
    namespace=NAMESPACE, allow_bookmarks=True, send_initial_events=True, resource_version_match="NotOlderThan"
)


async def check_initial_events_end_with_a_bookmark(subject: ClientSubject) -> None:
    """Existing objects come first, then a bookmark that marks their end, then changes with their origins."""
    first = await subject.config_map("first")
    events = await subject.client.watch(CONFIG_MAP, _INITIAL)
    async with within(WAIT_S, "the initial events"):
        added, end = await anext(events), await anext(events)
    same((added.type, added.object and added.object.key), (EventType.ADDED, first.key), "the first event")
    expect(end.initial_end and end.revision >= first.revision, "a bookmark ends the initial events")
    made = await subject.config_map("second", options=by("op", "controller:7"))
    event = await next_event(events)
    expect(event.object is not None and event.object.value == made.value, "the event has the stored bytes")
    wanted = Origin("op", "controller:7", subject.caller, subject.groups)
    same(event.object and event.object.origin, wanted, "the origin of an event's object")
    await events.aclose()


async def check_a_watch_resumes_without_gap_or_repeat(subject: ClientSubject) -> None:
    """A watch from the revision of a list, or of its last event, returns every later change once, in order."""
    client = subject.client
    listed = await client.list(CONFIG_MAP, ListOptions(namespace=NAMESPACE))
    made = [await subject.config_map(f"c{number}") for number in range(6)]
    await client.delete(key("c0"))
    seen, revision = [], listed.revision
    for _ in range(7):  # a new watch for each event
        options = WatchOptions(namespace=NAMESPACE, resource_version=str(revision))
        events = await client.watch(CONFIG_MAP, options)
        event = await next_event(events)
        await events.aclose()
        seen.append((event.type, event.object and event.object.key.name))
        expect(event.revision > revision, "revisions increase")
        revision = event.revision
    wanted = [(EventType.ADDED, each.key.name) for each in made]
    same(seen, [*wanted, (EventType.DELETED, "c0")], "the events of watches that each resume after the last")


async def check_a_compacted_start_is_compacted(subject: ClientSubject) -> None:
    """A watch from a revision whose history is gone raises Compacted, at once or with its first event."""
    made = await subject.config_map("a")
    for number in range(3):
        await subject.client.patch(key("a"), {"data": {"n": str(number)}})
    await subject.compact()
    options = WatchOptions(namespace=NAMESPACE, resource_version=str(made.revision))

    async def read() -> object:
        events = await subject.transport.open_watch(OpenWatch(CONFIG_MAP, options))
        return await next_event(events)

    await raises(Compacted, read(), "a watch of the compacted past")


async def check_bookmarks_report_progress(subject: ClientSubject) -> None:
    """A bookmark after a change has its revision, and a watch that resumes there repeats nothing."""
    client = subject.client
    listed = await client.list(CONFIG_MAP)
    options = WatchOptions(namespace=NAMESPACE, resource_version=str(listed.revision), allow_bookmarks=True)
    events = await client.watch(CONFIG_MAP, options)
    made = await subject.config_map("a")
    async with within(WAIT_S, "a bookmark"):
        while (event := await anext(events)).object is not None or event.revision < made.revision:
            pass
    await events.aclose()
    later = await subject.config_map("b")
    events = await client.watch(CONFIG_MAP, WatchOptions(namespace=NAMESPACE, resource_version=str(event.revision)))
    same((await next_event(events)).object and (later.key), later.key, "the first event after the bookmark")
    await events.aclose()


async def check_selectors_turn_changes_into_additions_and_deletions(subject: ClientSubject) -> None:
    """An object that begins to match is ADDED, one that stops matching is DELETED with its last state."""
    client = subject.client
    options = WatchOptions(namespace=NAMESPACE, label_selector="app=x", resource_version="0")
    events = await client.watch(CONFIG_MAP, options)
    await subject.config_map("a")
    await client.patch(key("a"), {"metadata": {"labels": {"app": "x"}}})
    await client.patch(key("a"), {"data": {"n": "1"}})
    left = (await client.patch(key("a"), {"metadata": {"labels": {"app": "y"}}})).object
    found = [await next_event(events) for _ in range(3)]
    same([each.type for each in found], [EventType.ADDED, EventType.MODIFIED, EventType.DELETED], "the events")
    same(found[2].revision, left.revision, "the revision of the event for an object that left the selection")
    await events.aclose()


async def check_watches_end(subject: ClientSubject) -> None:
    """A watch ends by its timeout without an error; a malformed version is refused; closing one harms no other."""
    client = subject.client
    events = await client.watch(CONFIG_MAP, WatchOptions(namespace=NAMESPACE, timeout_s=1.0, resource_version="0"))
    async with within(WAIT_S, "the end of a watch with a timeout"):
        async for _ in events:
            pass
    await raises(BadRequest, client.watch(CONFIG_MAP, WatchOptions(resource_version="yesterday")), "a bad version")
    opened = [await client.watch(CONFIG_MAP, WatchOptions(namespace=NAMESPACE)) for _ in range(5)]
    for each in opened[:4]:
        await each.aclose()
    made = await subject.config_map("a")
    same((await next_event(opened[4])).revision, made.revision, "the event of the watch that stays open")
    await opened[4].aclose()
