"""Checks of `on_ready` and `take_nowait`: a watch that is drained by its callback sees what an iterated one sees."""

from __future__ import annotations

import asyncio
from typing import Any

from kedge.errors import Unavailable
from kedge.expectations import expect, fail, same, within
from kedge.keys import Revision
from kedge.store.conformance.subject import KIND, OTHER_KIND, WAIT_S, Subject, open_log, put_one
from kedge.store.conformance.watches import churn
from kedge.store.contract import Change, StoreWatch


class _Drained:
    """A watch that is read by its callback alone."""

    def __init__(self, watch: StoreWatch) -> None:
        self.watch = watch
        self.changes: list[Change] = []
        self.end: Exception | None = None
        self.ended = asyncio.Event()
        self.calls = 0
        watch.on_ready = self.drain
        self.drain()

    def drain(self) -> None:
        self.calls += 1
        try:
            while (batch := self.watch.take_nowait()) is not None:
                self.changes.extend(batch.changes)
                same(self.watch.revision, batch.revision, "the watch's own position after a batch")
                if batch.last:
                    same(self.watch.take_nowait(), None, "a batch after the last one")
                    return
        except (Unavailable, StopAsyncIteration) as error:
            self.watch.on_ready = None
            self.end = error
            self.ended.set()

    async def until(self, revision: Revision) -> None:
        async with within(WAIT_S, f"a callback to see revision {revision} (it is at {self.watch.revision})"):
            while self.watch.revision < revision:
                self.watch.request_progress()
                await asyncio.sleep(0.001)


async def check_callback_sees_every_change(subject: Subject) -> None:
    """A watch drained by its callback sees what an iterated one sees, whenever it began."""
    store = await subject.open()
    start = await store.revision()
    early = _Drained(await store.watch(KIND, after=start))
    await asyncio.gather(*(churn(store, subject, writer, 20) for writer in range(3)))
    last = await put_one(store, "last")
    late = _Drained(await store.watch(KIND, after=start))
    for drained in (early, late):
        await drained.until(last)
    iterated = await open_log(store, after=start)
    await iterated.until(last)
    same(early.changes, iterated.changes, "a watch drained by its callback from the start, beside an iterated one")
    same(late.changes, iterated.changes, "a watch drained by its callback that began late")


async def check_callback_runs_until_it_is_removed(subject: Subject) -> None:
    """The callback runs for changes, progress and the end; once it is removed, no more."""
    store = await subject.open()
    drained = _Drained(await store.watch(KIND, after=await store.revision()))
    await drained.until(await put_one(store, "a"))
    same([change.key.name for change in drained.changes], ["a"], "changes taken by the callback")
    moved = await put_one(store, "elsewhere", kind=OTHER_KIND)
    await drained.until(moved)
    drained.watch.on_ready = None
    calls = drained.calls
    last = await put_one(store, "b")
    await asyncio.sleep(0.01)
    same(drained.calls, calls, "calls of a callback that was removed")
    rest = await open_log(store, after=drained.watch.revision)
    same([change.key.name for change in await rest.until(last)], ["b"], "changes after the callback's revision")
    again = _Drained(await store.watch(KIND, after=last))
    again.watch.close()
    async with within(WAIT_S, "a callback to see the end of a closed watch"):
        await again.ended.wait()
    expect(isinstance(again.end, StopAsyncIteration), f"a closed watch ended with {again.end!r}")


async def check_callback_that_raises(subject: Subject) -> None:
    """A callback that raises is reported and ends its own watch; the commit and other watches are not affected."""
    store = await subject.open()
    start = await store.revision()
    reported: asyncio.Queue[Any] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    handler = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: reported.put_nowait(context.get("exception")))
    try:
        broken, sound = await store.watch(KIND, after=start), _Drained(await store.watch(KIND, after=start))

        def take_and_raise() -> None:
            if broken.take_nowait() is not None:
                raise ZeroDivisionError("a fault of the callback")

        broken.on_ready = take_and_raise
        last = await put_one(store, "a")
        async with within(WAIT_S, "the error of a callback to be reported"):
            error = await reported.get()
        await sound.until(await put_one(store, "b"))
    finally:
        loop.set_exception_handler(handler)
    expect(isinstance(error, ZeroDivisionError) and reported.empty(), f"reported first: {error!r}")
    expect(last > start, "a commit was lost with the callback")
    same([change.key.name for change in sound.changes], ["a", "b"], "changes that the other watch took")
    try:
        found = broken.take_nowait()
    except Unavailable:
        return
    fail(f"a watch whose callback raised returned {found} instead of Unavailable")
