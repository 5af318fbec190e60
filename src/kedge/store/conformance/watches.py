"""Checks of watches: every change once and in order, no gap after a list, progress, and slow watches disconnected."""

from __future__ import annotations

import asyncio

from kedge.errors import Lagged, Unavailable
from kedge.expectations import expect, fail, same, within
from kedge.keys import Key, Revision
from kedge.store.conformance.subject import (
    KIND,
    OTHER_KIND,
    WAIT_S,
    Subject,
    WatchLog,
    key,
    open_log,
    put_one,
    small_limits,
    state_of,
)
from kedge.store.contract import DeleteKey, Entry, Put, Store, Write


async def churn(store: Store, subject: Subject, writer: int, commits: int) -> list[tuple[Revision, int]]:
    """Commit random puts and deletes on the writer's own keys; return each revision with its size."""
    rng = subject.random
    rng.seed(f"{rng.random()}/{writer}")
    mine: set[Key] = set()
    done: list[tuple[Revision, int]] = []
    for n in range(commits):
        names = rng.sample(range(8), rng.randrange(1, 4))
        chosen = [key(f"{writer}-{name}", namespace=rng.choice(("a", "b"))) for name in names]
        writes: list[Write] = []
        for each in chosen:
            if each in mine and rng.random() < 0.4:
                mine.discard(each)
                writes.append(DeleteKey(each))
            else:
                mine.add(each)
                writes.append(Put(each, b"%d" % n))
        done.append((await store.commit([], writes), len(writes)))
        await asyncio.sleep(rng.choice((0, 0, 0, 0.001)))
    return done


async def check_each_change_once_in_order(subject: Subject) -> None:
    """Watches of one kind, of all kinds and of one namespace agree with the commits, whenever they began."""
    store = await subject.open()
    start = await store.revision()
    early = [await open_log(store, after=start), await open_log(store, after=start, kind="")]
    narrow = [
        await open_log(store, after=start, namespace="a"),
        await open_log(store, after=start, kind="", namespace="a"),
    ]
    readers = [asyncio.ensure_future(_read_on(each)) for each in (*early, *narrow)]
    done = await asyncio.gather(*(churn(store, subject, writer, 30) for writer in range(5)))
    last = await put_one(store, "last", kind=OTHER_KIND)
    for task in readers:
        task.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    for log in (*early, *narrow):
        await log.until(last)
    late = await open_log(store, after=start)
    await late.until(last)
    sizes = dict(sorted(pair for commits in done for pair in commits))
    received: dict[Revision, int] = {}
    for change in late.changes:
        received[change.revision] = received.get(change.revision, 0) + 1
    same(received, sizes, "changes per revision, received by a watch that began late")
    expect(list(received) == sorted(received), "changes are out of order")
    same(early[0].changes, late.changes, "a watch that began early beside one that began late")
    of_kind = [change for change in early[1].changes if change.key.kind == KIND]
    same(of_kind, late.changes, "a watch of all kinds, beside one of this kind")
    same([c.revision for c in early[1].changes if c.key.kind == OTHER_KIND], [last], "the other kind's changes")
    in_a = [change for change in late.changes if change.key.namespace == "a"]
    for log in narrow:
        same(log.changes, in_a, "a watch of one namespace")
    listing = await store.list(KIND)
    same(sorted(state_of(late.changes)), [e.key for e in listing.entries], "keys after all changes")


async def _read_on(log: WatchLog) -> None:
    while True:
        await log.next()


async def check_no_gap_between_list_and_watch(subject: Subject) -> None:
    """A cache that lists and then watches from the list's revision always ends equal to a fresh list."""
    store = await subject.open()
    rng = subject.random
    caches: list[tuple[dict[Key, Entry], WatchLog]] = []

    async def begin() -> None:
        await asyncio.sleep(rng.random() * 0.03)
        listing = await store.list(KIND)
        await asyncio.sleep(rng.choice((0, 0.003)))
        start = {entry.key: entry for entry in listing.entries}
        caches.append((start, await open_log(store, after=listing.revision)))

    await asyncio.gather(*(churn(store, subject, writer, 25) for writer in range(4)), *(begin() for _ in range(8)))
    final = await store.list(KIND)
    want = {entry.key: entry for entry in final.entries}
    for start, log in caches:
        await log.until(final.revision)
        changes = [change for change in log.changes if change.revision <= final.revision]
        same(state_of(changes, start), want, "a cache filled by a list and a watch")
        for change in changes:
            if change.previous is not None:
                before = [c for c in changes if c.key == change.key and c.revision < change.revision]
                known = before[-1].entry if before else start.get(change.key)
                same(change.previous, known, f"the version replaced at {change.revision}")


async def check_watch_resumes_where_it_stopped(subject: Subject) -> None:
    """A watch closed at any batch and reopened after its revision receives the rest, and nothing twice."""
    store = await subject.open(limits=small_limits(watch_batch_max=3))
    rng = subject.random
    start = await store.revision()
    writers = asyncio.gather(*(churn(store, subject, writer, 25) for writer in range(3)))
    log = await open_log(store, after=start)
    received = []
    while not writers.done() or log.revision < await store.revision():
        log.watch.request_progress()
        await log.next()
        if rng.random() < 0.3:
            log.watch.close()
            received.extend(log.changes)
            log = await open_log(store, after=log.watch.revision)
    received.extend(log.changes)
    await writers
    whole = await open_log(store, after=start)
    same(received, await whole.until(await store.revision()), "changes received by a watch with interruptions")


async def check_batch_never_splits_a_commit(subject: Subject) -> None:
    """A commit larger than `watch_batch_max` is still in one batch."""
    store = await subject.open(limits=small_limits(watch_batch_max=2))
    start = await store.revision()
    sizes = {}
    for n in range(6):
        size = (1, 5, 2, 3, 1, 7)[n]
        revision = await store.commit([], [Put(key(f"{n}-{each}"), b"") for each in range(size)])
        sizes[revision] = size
    log = await open_log(store, after=start)
    await log.until(await store.revision())
    for batch in log.batches:
        got: dict[Revision, int] = {}
        for change in batch.changes:
            got[change.revision] = got.get(change.revision, 0) + 1
        for revision, count in got.items():
            same(count, sizes[revision], f"changes of revision {revision} in one batch")
    same(len(log.changes), sum(sizes.values()), "changes in all batches")


async def check_idle_watch_gets_progress(subject: Subject) -> None:
    """A watch of an idle kind still gets progress marks, also if it began at an old revision."""
    store = await subject.open(limits=small_limits(watch_progress_s=0.05))
    start = await store.revision()
    moved = await put_one(store, "a", kind=OTHER_KIND)
    late = await open_log(store, after=start)  # with no further commit
    async with within(WAIT_S, "progress marks on a watch that began behind"):
        while late.revision < moved:
            await late.next()
    elsewhere = await open_log(store, after=start, kind=OTHER_KIND, namespace="elsewhere")
    moved = await put_one(store, "b", kind=OTHER_KIND)
    for log in (late, elsewhere):
        async with within(WAIT_S, "progress marks on idle watches"):
            while log.revision < moved:
                await log.next()
        same(log.changes, [], "changes on an idle watch")


async def check_progress_on_request(subject: Subject) -> None:
    """`request_progress` produces a batch soon, for a waiting reader and for a later one."""
    store = await subject.open(limits=small_limits(watch_progress_s=3600))
    start = await put_one(store, "a", kind=OTHER_KIND)
    log = await open_log(store, after=start)
    log.watch.request_progress()
    await log.next()
    same(log.changes, [], "changes on an idle watch")
    waiting = asyncio.ensure_future(log.next())
    await asyncio.sleep(0.01)
    moved = await put_one(store, "b", kind=OTHER_KIND)
    log.watch.request_progress()
    async with within(WAIT_S, "an answer to request_progress"):
        await waiting
    await log.until(moved)
    same(log.changes, [], "changes on an idle watch")


async def check_slow_watch_is_disconnected(subject: Subject) -> None:
    """A watch too far behind gets `Lagged`; reopened after its revision it receives everything that it missed."""
    store = await subject.open(limits=small_limits(watch_backlog_max=20, watch_batch_max=5))
    start = await store.revision()
    slow = await open_log(store, after=start)
    quick = await open_log(store, after=start)
    reader = asyncio.ensure_future(_read_on(quick))
    made: list[Revision] = []
    for n in range(200):
        made.append(await put_one(store, f"{n % 10}", b"%d" % n))
        await asyncio.sleep(0)
    async with within(WAIT_S, "a quick reader to receive everything"):
        while quick.revision < made[-1]:
            expect(not reader.done(), f"a watch that keeps up was disconnected: {reader}")
            await asyncio.sleep(0.005)
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    same([c.revision for c in quick.changes], made, "changes received by a watch that keeps up")
    received: list[Revision] = []
    cuts = 0
    for _ in range(400):
        try:
            await slow.next()
        except Lagged:
            cuts += 1
            received.extend(change.revision for change in slow.changes)
            slow = await open_log(store, after=slow.watch.revision)
        else:
            if slow.revision >= made[-1]:
                break
            slow.watch.request_progress()
    received.extend(change.revision for change in slow.changes)
    expect(cuts > 0, "a watch 200 changes behind was never disconnected, with a limit of 20")
    same(received, made, f"changes received by a watch disconnected {cuts} times")


async def check_watch_that_ended_stays_ended(subject: Subject) -> None:
    """`close` ends the iteration, also for a waiting reader; closing twice is no error."""
    store = await subject.open()
    watch = await store.watch(KIND, after=await store.revision())
    waiting = asyncio.ensure_future(_drain(watch.__anext__()))
    await asyncio.sleep(0.01)
    watch.close()
    async with within(WAIT_S, "a waiting reader to see the end of a closed watch"):
        same(await waiting, "end", "the result of a waiting reader of a closed watch")
    await put_one(store, "a")
    same(await _drain(watch.__anext__()), "end", "a closed watch, read again")
    watch.close()


async def check_closing_ends_watches(subject: Subject) -> None:
    """Closing the store ends its watches, both waiting and idle ones."""
    store = await subject.open()
    at = await put_one(store, "a")
    waiting_watch = await store.watch(KIND, after=at)
    idle_watch = await store.watch("", after=at)
    waiting = asyncio.ensure_future(_drain(waiting_watch.__anext__()))
    await asyncio.sleep(0.01)
    await store.close()
    async with within(WAIT_S, "watches of a closed store to end"):
        expect(await waiting in ("end", "unavailable"), f"a waiting watch of a closed store: {waiting}")
        ended = await _drain(idle_watch.__anext__())
        expect(ended in ("end", "unavailable"), f"a watch of a closed store gave {ended}")


async def _drain(work: object) -> str:
    try:
        return repr(await work)  # type: ignore[misc]
    except StopAsyncIteration:
        return "end"
    except Unavailable:
        return "unavailable"


async def check_cancelled_reader_loses_nothing(subject: Subject) -> None:
    """A cancelled read of a watch, by a timeout for instance, loses no batch."""
    store = await subject.open(limits=small_limits(watch_batch_max=2))
    rng = subject.random
    start = await store.revision()
    log = await open_log(store, after=start)
    writers = asyncio.gather(*(churn(store, subject, writer, 20) for writer in range(2)))
    while not writers.done():
        reader = asyncio.ensure_future(log.next())
        for _ in range(rng.randrange(5)):
            await asyncio.sleep(0)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        if not reader.cancelled() and (error := reader.exception()) is not None:
            raise error
        await asyncio.sleep(0)
    await writers
    last = await put_one(store, "last")
    await log.until(last)
    whole = await open_log(store, after=start)
    same(log.changes, await whole.until(last), "changes received by a watch read with cancellations")


async def check_latest_only_objects(subject: Subject) -> None:
    """`latest_only` versions may be skipped, but not the newest and no delete; other objects lose nothing."""
    store = await subject.open()
    rng = subject.random
    beats = [key(f"lease-{n}") for n in range(3)]
    plain = key("plain")
    start = await store.revision()
    live = await open_log(store, after=start)
    reader = asyncio.ensure_future(_read_on(live))
    versions: dict[Key, list[Entry | None]] = {each: [] for each in (*beats, plain)}
    marks: list[tuple[Revision, dict[Key, Entry | None]]] = []
    for n in range(120):
        chosen = rng.choice(beats)
        current = versions[chosen][-1] if versions[chosen] else None
        writes: list[Write] = [
            DeleteKey(chosen) if current and rng.random() < 0.15 else Put(chosen, b"%d" % n, latest_only=True)
        ]
        if rng.random() < 0.3:
            writes.append(Put(plain, b"%d" % n))
        revision = await store.commit([], writes)
        for write in writes:
            held = versions[write.key]
            before = held[-1] if held else None
            if isinstance(write, Put):
                created = before.created if before else revision
                held.append(Entry(write.key, write.value, created, revision))
            else:
                held.append(None)
        marks.append((revision, {each: held[-1] if held else None for each, held in versions.items()}))
    last = marks[-1][0]
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    await live.until(last)
    late = await open_log(store, after=start)
    await late.until(last)
    for log in (live, late):
        for each, held in versions.items():
            mine = [change.entry for change in log.changes if change.key == each]
            rest = iter(held)
            expect(
                all(entry in rest for entry in mine), f"{each}: received {mine}, which is not in the order of {held}"
            )
            if each == plain:
                same(mine, held, "versions of an ordinary object")
            elif held:
                same(mine[-1], held[-1], f"the newest version of {each}")
                same(mine.count(None), held.count(None), f"deletes of {each}")
    for revision, then in marks:
        listing = await store.list(KIND, at=revision)
        found = {entry.key: entry for entry in listing.entries}
        for each, entry in then.items():
            got = found.get(each)
            if entry is None or each == plain:
                same(got, entry, f"{each} at {revision}")
                continue
            got = got or fail(f"{each} existed at {revision} but is not in a list at it")
            older = got.created != entry.created or got.modified < entry.modified
            expect(not older, f"{each} at {revision}: got {got}, want {entry} or a newer version of the same object")


async def check_two_openers_agree(subject: Subject) -> None:
    """Two stores open on one name: writers on both, and watches on both receive the same changes, once, in order."""
    stores = [await subject.open(), await subject.open()]
    start = await stores[0].revision()
    watches = [await open_log(store, after=start) for store in stores]
    done = await asyncio.gather(*(churn(stores[writer % 2], subject, writer, 25) for writer in range(4)))
    revisions = sorted(revision for commits in done for revision, _ in commits)
    same(len(set(revisions)), 100, "different revisions of 100 commits by two openers")
    last = revisions[-1]
    received = [await log.until(last) for log in watches]
    same(
        list(dict.fromkeys(change.revision for change in received[0])),
        revisions,
        "revisions received by the first opener",
    )
    same(received[1], received[0], "changes received by the second opener, compared with the first")
    listings = [await store.list(KIND, at=last) for store in stores]
    same(listings[1].entries, listings[0].entries, "lists by two openers")
    same(stores[1].incarnation, stores[0].incarnation, "the incarnation in two openers")
    mine = await put_one(stores[0], "mine")
    entry = (await stores[1].get([key("mine")])).entries[0] or fail("the other opener's write is not seen")
    same(entry.modified, mine, "an acknowledged write, read through the other opener")
