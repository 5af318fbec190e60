"""Checks of compaction and of restored backups: the past ends with an error, never with a gap."""

from __future__ import annotations

import asyncio

from kedge.errors import BadRequest, Compacted, Conflict, Fenced
from kedge.expectations import expect, fail, raises, same, within
from kedge.keys import Fence, Key, Revision
from kedge.store.conformance.subject import (
    KIND,
    OTHER_KIND,
    WAIT_S,
    Subject,
    entry_of,
    key,
    open_log,
    put_one,
    small_limits,
    state_of,
)
from kedge.store.conformance.watches import churn
from kedge.store.contract import Absent, AtRevision, DeleteKey, Entry, Put


async def check_compacted_past_is_refused(subject: Subject) -> None:
    """Reads and watches before the compacted revision get `Compacted`; those from it on still work."""
    store = await subject.open()
    a, b = key("a"), key("b")
    made = [await store.commit([], [Put(a, b"%d" % n)]) for n in range(6)]
    gone = await store.commit([], [Put(b, b"1")])
    await store.commit([], [DeleteKey(b)])
    last = await store.commit([], [Put(a, b"last")])
    await store.compact(made[3])
    for old in made[:3]:
        after = f"at {old}, after compaction to {made[3]}"
        for error in (
            await raises(Compacted, store.get([a], at=old), f"a get {after}"),
            await raises(Compacted, store.list(KIND, at=old), f"a list {after}"),
            await raises(Compacted, store.watch(KIND, after=old), f"a watch {after}"),
        ):
            expect(old < error.oldest <= last, f"the oldest revision named by {error!r} is {error.oldest}")
    for n in (3, 4, 5):
        same(
            (await store.get([a], at=made[n])).entries[0], Entry(a, b"%d" % n, made[0], made[n]), f"a get at {made[n]}"
        )
    same([e.key for e in (await store.list(KIND, at=gone)).entries], [a, b], "a list at a revision kept")
    log = await open_log(store, after=made[3])
    changes = await log.until(last)
    same([c.revision for c in changes][:2], made[4:], "changes after the compacted revision")
    same(changes[0].previous, Entry(a, b"3", made[0], made[3]), "the version replaced just after compaction")
    same(len(changes), 5, "changes after the compacted revision")
    same(await entry_of(store, a), Entry(a, b"last", made[0], last), "the newest version after compaction")


async def check_compaction_keeps_the_newest(subject: Subject) -> None:
    """Compaction to the newest revision keeps every object and drops every delete, and history continues."""
    store = await subject.open()
    await asyncio.gather(*(churn(store, subject, writer, 20) for writer in range(3)))
    before = await store.list(KIND)
    await store.compact(before.revision)
    after = await store.list(KIND)
    same(after.entries, before.entries, "objects after compaction to the newest revision")
    same((await store.list(KIND, at=before.revision)).entries, before.entries, "objects at the compacted revision")
    log = await open_log(store, after=before.revision)
    last = await put_one(store, "next")
    same([c.revision for c in await log.until(last)], [last], "changes after compaction to the newest")
    expect(last > before.revision, f"revision {last} came after {before.revision}")


async def check_compact_repeats_and_bounds(subject: Subject) -> None:
    """Compacting again, or to an older revision, is no error; past the newest it is a `BadRequest`."""
    store = await subject.open()
    made = [await put_one(store, "a", b"%d" % n) for n in range(5)]
    await raises(BadRequest, store.compact(made[4] + 1_000_000), "compaction past the newest revision")
    same((await store.get([key("a")], at=made[0])).revision, made[0], "the past after a refused compaction")
    await store.compact(made[2])
    await store.compact(made[2])
    await store.compact(made[0])
    same((await store.get([key("a")], at=made[2])).revision, made[2], "the past after repeated compactions")
    await raises(Compacted, store.get([key("a")], at=made[1]), "a get before the compacted revision")
    statistics = store.statistics()
    expect(made[2] <= statistics.compacted <= made[4], f"statistics have compacted {statistics.compacted}")


async def check_compaction_behind_a_watch(subject: Subject) -> None:
    """A watch that compaction overtakes gets `Compacted` or every change, never a gap."""
    store = await subject.open(limits=small_limits(watch_batch_max=3))
    rng = subject.random
    start = await store.revision()
    first = await put_one(store, "first")
    watches = [await open_log(store, after=start) for _ in range(6)]
    others = [await open_log(store, after=start, kind=OTHER_KIND) for _ in range(2)]
    made: list[Revision] = [first]
    cut = 0
    for n in range(60):
        made.append(await put_one(store, f"{n % 7}", b"%d" % n))
        if n % 10 == 9:
            await store.compact(made[rng.randrange(len(made) // 2, len(made))])
        for log in tuple(watches):
            if rng.random() < 0.3:
                try:
                    log.watch.request_progress()
                    await log.next()
                except Compacted as error:
                    cut += 1
                    expect(
                        error.oldest > log.revision,
                        f"Compacted named {error.oldest}, the watch was at {log.revision}",
                    )
                    watches.remove(log)
                    listing = await store.list(KIND)
                    watches.append(await open_log(store, after=listing.revision))
        for log in watches:
            received = [change.revision for change in log.changes]
            if received:
                owed = [revision for revision in made if received[0] <= revision <= log.revision]
                same(received, owed, "changes received by a watch beside compactions")
    for log in others:
        # No change of their kind was dropped, so they may continue; if they end, it must be with Compacted.
        try:
            last = await put_one(store, "other", kind=OTHER_KIND)
            await log.until(last)
            received = [change.revision for change in log.changes]
            same(received[-1], last, "the newest change of a kind that compaction did not affect")
        except Compacted:
            cut += 1


async def check_compaction_far_behind_a_watch(subject: Subject) -> None:
    """A watch that never read and whose first changes were compacted gets `Compacted`."""
    store = await subject.open()
    start = await store.revision()
    log = await open_log(store, after=start)
    made = [await put_one(store, "a", b"%d" % n) for n in range(30)]
    await store.compact(made[-2])
    received: list[Revision] = []
    try:
        await log.until(made[-1])
        received = [change.revision for change in log.changes]
    except Compacted:
        await raises(Compacted, log.watch.__anext__(), "a watch that got Compacted, read again")
        await raises(Compacted, store.watch(KIND, after=start), "a new watch from the same revision")
        return
    # A backend that had buffered them may still return them, but then all of them.
    same(received, made, "changes received by a watch behind compaction")


async def check_compaction_under_load(subject: Subject) -> None:
    """List-then-watch caches stay correct under writes and frequent compaction."""
    store = await subject.open()
    rng = subject.random
    writers = asyncio.gather(*(churn(store, subject, writer, 30) for writer in range(3)))
    cuts = 0

    async def compactor() -> None:
        while not writers.done():
            await store.compact(await store.revision())
            await asyncio.sleep(0.004)

    async def cache() -> dict[Key, Entry]:
        nonlocal cuts
        while True:
            listing = await store.list(KIND)
            start = {entry.key: entry for entry in listing.entries}
            try:
                log = await open_log(store, after=listing.revision)
                while True:
                    finished = writers.done()
                    await asyncio.sleep(rng.choice((0, 0.002, 0.008)))
                    await log.until(await store.revision())
                    if finished:
                        return state_of(log.changes, start)
            except Compacted:
                cuts += 1  # list again, the only way to continue

    async with within(2 * WAIT_S, "caches to settle under compaction"):
        caches = asyncio.gather(*(cache() for _ in range(4)))
        await compactor()
        states = await caches
    await writers
    want = {entry.key: entry for entry in (await store.list(KIND)).entries}
    for state in states:
        same(state, want, f"a cache under compaction ({cuts} relists)")


async def check_restored_backup(subject: Subject) -> None:
    """A restored backup is a new incarnation, not a continuation.

    Its revision is past any that the original can have reached, its history is compacted, its incarnation is new.
    Objects keep their revisions, so a check or fence token from before the backup stays valid, and one from after it
    never matches again: no revision is used twice.
    """
    backup = subject.backup or fail("this check needs a backup hook")
    store = await subject.open()
    fence_key, work, dropped = key("fence"), key("work"), key("dropped")
    token = await store.commit([], [Put(fence_key, b"a")])
    old_work = await store.commit([], [Put(work, b"1"), Put(dropped, b"1")])
    await store.commit([], [DeleteKey(dropped)])
    kept = (await store.list(KIND)).entries
    make_restored = await backup(store)
    saved = await store.revision()
    # The original continues after the backup; these writes are lost with it.
    lost = [await put_one(store, "lost", b"%d" % n) for n in range(5)]
    new_work = await store.commit([AtRevision(work, old_work)], [Put(work, b"2")])
    new_token = await store.commit([AtRevision(fence_key, token)], [Put(fence_key, b"b")])
    former = store.incarnation
    await store.close()

    restored = await subject.open_with(make_restored, "restored")
    expect(restored.incarnation != former, "a restored store has the original's incarnation")
    now = await restored.revision()
    expect(now > new_token + 1_000_000, f"a restored store is at {now}; the original had reached {new_token}")
    same((await restored.list(KIND)).entries, kept, "objects of a restored store")
    for old in (saved, lost[0], new_work, new_token):
        await raises(Compacted, restored.watch(KIND, after=old), f"a watch of a restored store after {old}")
        await raises(Compacted, restored.get([work], at=old), f"a read of a restored store at {old}")
    log = await open_log(restored, after=now)
    error = await raises(
        Fenced, restored.commit([], [Put(work, b"x")], fence=Fence(fence_key, new_token)), "a token lost with the crash"
    )
    same((error.key, error.revision), (fence_key, token), "the error of a lost token")
    stale = await raises(
        Conflict, restored.commit([AtRevision(work, new_work)], [Put(work, b"x")]), "a check on a lost revision"
    )
    same((stale.key, stale.revision), (work, old_work), "the error of a check on a lost revision")
    first = await restored.commit([AtRevision(work, old_work)], [Put(work, b"3")], fence=Fence(fence_key, token))
    expect(first > now, f"the first commit of a restored store is {first}, not past {now}")
    taken = await restored.commit([AtRevision(fence_key, token)], [Put(fence_key, b"c")])
    await raises(Fenced, restored.commit([], [Put(work, b"x")], fence=Fence(fence_key, token)), "a token taken over")
    await restored.commit([Absent(dropped)], [Put(dropped, b"2")], fence=Fence(fence_key, taken))
    received = await log.until(await restored.revision())
    same([c.key for c in received], [work, fence_key, dropped], "changes received by a watch of a restored store")
    again = restored.incarnation
    await restored.close()
    if subject.durable:
        reopened = await subject.open_with(subject.make_store, "restored")
        same(reopened.incarnation, again, "the incarnation of a restored store, opened again")
        newest = await reopened.revision()
        expect(taken < newest < now + 1_000_000, f"a restored store opened again is at {newest}: it advanced twice")
        same((await entry_of(reopened, work) or fail("gone")).modified, first, "an object of a restored store")
