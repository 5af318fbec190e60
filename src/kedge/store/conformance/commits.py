"""Checks of commits: all or nothing, conflicts that name their key, fences, limits, one revision each."""

from __future__ import annotations

import asyncio

from kedge.errors import BadRequest, Conflict, Fenced, TooLarge, Unavailable
from kedge.expectations import expect, fail, raises, same
from kedge.keys import NO_REVISION, Fence, Key, Origin, Revision
from kedge.store.conformance.subject import KIND, OTHER_KIND, Subject, entry_of, key, open_log, put_one, small_limits
from kedge.store.contract import Absent, AtRevision, Check, DeleteKey, Entry, Present, Put, Store, Write


async def check_commit_is_all_or_nothing(subject: Subject) -> None:
    """A commit with one failing check among many writes writes none of them."""
    store = await subject.open()
    first = await put_one(store, "there")
    names = [key(f"new-{n}") for n in range(5)]
    writes = [Put(each, b"x") for each in names]
    await raises(Conflict, store.commit([Absent(key("there"))], writes), "a commit whose check fails")
    await raises(Conflict, store.commit([], [*writes, DeleteKey(key("missing"))]), "a commit whose last delete fails")
    same((await store.get(names)).entries, (None,) * 5, "the writes of two failed commits")
    log = await open_log(store, after=first)
    last = await store.commit([Present(key("there"))], [*writes, DeleteKey(key("there"))])
    reading = await store.get([*names, key("there")])
    same([e and e.modified for e in reading.entries], [last] * 5 + [None], "revisions after one commit of six writes")
    changes = await log.until(last)
    same(
        {c.key for c in changes},
        {*names, key("there")},
        "changes received by a watch of one good and two failed commits",
    )


async def check_readers_never_see_half_a_commit(subject: Subject) -> None:
    """Four keys of two kinds always change together, in gets, in lists and in watch batches."""
    store = await subject.open()
    rng = subject.random
    pods = [key(f"half-{n}") for n in range(3)]
    other = key("half-other", kind=OTHER_KIND)
    start = await store.commit([], [Put(each, b"0") for each in (*pods, other)])
    done = False

    async def write(writer: int) -> None:
        for n in range(25):
            value = f"{writer}-{n}".encode()
            await store.commit([], [Put(each, value) for each in (*pods, other)])
            await asyncio.sleep(rng.choice([0, 0, 0.001]))

    async def read() -> None:
        while not done:
            entries = (await store.get([*pods, other])).entries
            values = {e.value if e else None for e in entries}
            expect(len(values) == 1, f"one get saw {values}: half of a commit")
            listed = {e.value for e in (await store.list(KIND)).entries}
            expect(len(listed) == 1, f"one list saw {listed}: half of a commit")
            await asyncio.sleep(0)

    log = await open_log(store, after=start, kind="")
    readers = [asyncio.ensure_future(read()) for _ in range(3)]
    try:
        await asyncio.gather(*(write(n) for n in range(4)))
    finally:
        done = True
        await asyncio.gather(*readers)
    await log.until(await store.revision())
    for batch in log.batches:
        at: dict[Revision, int] = {}
        for change in batch.changes:
            at[change.revision] = at.get(change.revision, 0) + 1
        expect(set(at.values()) <= {4}, f"a batch held {at} changes per revision of commits of four")
    same(len(log.changes), 4 * 100, "changes received by a watch of 100 commits of four keys")


async def check_conflicts_name_their_key(subject: Subject) -> None:
    """Each kind of check fails with `Conflict`, the key that failed, and the revision it was found at."""
    store = await subject.open()
    a, b, missing = key("a"), key("b"), key("missing")
    at_a = await store.commit([], [Put(a, b"1")])
    at_b = await store.commit([], [Put(b, b"1")])
    cases: list[tuple[str, list[Check], list[Write], Key, Revision]] = [
        ("AtRevision of another revision", [AtRevision(a, at_b)], [], a, at_a),
        ("AtRevision of a missing key", [AtRevision(missing, at_a)], [], missing, NO_REVISION),
        ("Absent of a present key", [Absent(b)], [], b, at_b),
        ("Present of a missing key", [Present(missing)], [], missing, NO_REVISION),
        ("a delete of a missing key", [], [DeleteKey(missing)], missing, NO_REVISION),
        ("the second of three checks", [Present(a), AtRevision(b, at_a), Present(a)], [], b, at_b),
        ("a delete among good checks", [AtRevision(a, at_a)], [Put(b, b"2"), DeleteKey(missing)], missing, NO_REVISION),
    ]
    for what, checks, writes, failed, found in cases:
        error = await raises(Conflict, store.commit(checks, writes or [Put(key("w"), b"")]), what)
        same(error.key, failed, f"the key named by {what}")
        same(error.revision, found, f"the revision named by {what}")
    same(await entry_of(store, key("w")), None, "the write beside a failed check")
    same((await entry_of(store, b) or fail("b is gone")).value, b"1", "the put beside a failed delete")
    moved = await store.commit([AtRevision(a, at_a), Present(b), Absent(missing)], [Put(a, b"2")])
    error = await raises(Conflict, store.commit([AtRevision(a, at_a)], [Put(a, b"3")]), "a check made stale")
    same((error.key, error.revision), (a, moved), "the error of a stale check")


async def check_deleted_key_conflicts(subject: Subject) -> None:
    """A revision from before a delete never matches again, even when the key is created again."""
    store = await subject.open()
    a = key("a")
    first = await store.commit([], [Put(a, b"1")])
    await store.commit([AtRevision(a, first)], [DeleteKey(a)])
    error = await raises(Conflict, store.commit([AtRevision(a, first)], [Put(a, b"2")]), "a check on a deleted key")
    same((error.key, error.revision), (a, NO_REVISION), "the error of a check on a deleted key")
    again = await store.commit([Absent(a)], [Put(a, b"1")])
    error = await raises(Conflict, store.commit([AtRevision(a, first)], [Put(a, b"2")]), "a check on a recreated key")
    same((error.key, error.revision), (a, again), "the error of a check on a recreated key")


async def check_fence_wins_over_conflict(subject: Subject) -> None:
    """A former leader gets `Fenced` with the new token, also if its commit has other faults."""
    store = await subject.open()
    fence_key, lease, work = key("fence"), key("lease"), key("work")
    first = await store.commit([Absent(fence_key)], [Put(fence_key, b"a"), Put(lease, b"a")])
    mine = Fence(fence_key, first)
    await store.commit([], [Put(work, b"1")], fence=mine)
    for n in range(3):  # renewals never write the fence
        await store.commit([], [Put(lease, b"a%d" % n, latest_only=True)], fence=mine)
    held = await store.commit([], [Put(work, b"2")], fence=mine)
    taken = await store.commit([AtRevision(fence_key, first)], [Put(fence_key, b"b"), Put(lease, b"b")])
    cases: list[tuple[str, list[Check], list[Write]]] = [
        ("a fenced write", [], [Put(work, b"3")]),
        ("a fenced write whose check fails too", [AtRevision(work, first)], [Put(work, b"3")]),
        ("a fenced write whose check is of the fence key", [AtRevision(fence_key, first)], [Put(work, b"3")]),
        ("a fenced delete of nothing", [], [DeleteKey(key("missing"))]),
        ("a fenced proof with no writes", [Present(work)], []),
    ]
    for what, checks, writes in cases:
        error = await raises(Fenced, store.commit(checks, writes, fence=mine), what)
        same((error.key, error.revision), (fence_key, taken), f"the error of {what}")
    same((await entry_of(store, work) or fail("work is gone")).modified, held, "the object behind the fence")
    await store.commit([], [Put(work, b"3")], fence=Fence(fence_key, taken))
    lost = await raises(
        Conflict, store.commit([Absent(work)], [], fence=Fence(fence_key, taken)), "a holder's conflict"
    )
    same(lost.key, work, "the key of a holder's conflict")


async def check_fence_on_absent_key(subject: Subject) -> None:
    """A fence whose key does not exist rejects every commit; no token is revision zero."""
    store = await subject.open()
    fence_key = key("fence")
    for token in (NO_REVISION, 1):
        error = await raises(
            Fenced, store.commit([], [Put(key("w"), b"")], fence=Fence(fence_key, token)), "a fence on no key"
        )
        same((error.key, error.revision), (fence_key, NO_REVISION), "the error of a fence on no key")
    token = await store.commit([], [Put(fence_key, b"a")])
    await store.commit([], [DeleteKey(fence_key)], fence=Fence(fence_key, token))
    await raises(Fenced, store.commit([], [Put(key("w"), b"")], fence=Fence(fence_key, token)), "a fence deleted")
    same(await entry_of(store, key("w")), None, "a write behind a fence that is not there")


async def check_one_revision_a_commit(subject: Subject) -> None:
    """Each commit has one revision of its own; under concurrent writers they still strictly increase."""
    store = await subject.open()
    start = await store.revision()
    got: list[Revision] = []

    async def write(writer: int) -> None:
        last = NO_REVISION
        for n in range(10):
            revision = await store.commit([], [Put(key(f"{writer}-{n}"), b""), Put(key(f"{writer}"), b"%d" % n)])
            expect(revision > last, f"writer {writer} got revision {revision} after {last}")
            last = revision
            got.append(revision)

    log = await open_log(store, after=start)
    await asyncio.gather(*(write(n) for n in range(8)))
    same(len(set(got)), 80, "different revisions of 80 commits")
    newest = await store.revision()
    expect(newest >= max(got), f"the newest revision is {newest}, but a commit got {max(got)}")
    await log.until(newest)
    received = list(dict.fromkeys(change.revision for change in log.changes))
    same(received, sorted(got), "the revisions received by a watch of 80 commits")
    for revision in got:
        expect(sum(c.revision == revision for c in log.changes) == 2, f"revision {revision} is not one commit of two")


async def check_entries_keep_created_modified_origin(subject: Subject) -> None:
    """Entries and changes have the revisions of creation and last change, and the origin."""
    store = await subject.open()
    a = key("a")
    one, two = Origin("op-1", "dec-1"), Origin("op-2", "", "ada", ("people", "a, b"))
    three = Origin("", "dec-3", "élan", ("é",))
    start = await store.revision()
    created = await store.commit([], [Put(a, b"1")], origin=one)
    same(await entry_of(store, a), Entry(a, b"1", created, created, one), "the entry as created")
    moved = await store.commit([], [Put(a, b"2")], origin=two)
    same(await entry_of(store, a), Entry(a, b"2", created, moved, two), "the entry as updated")
    equal = await store.commit([], [Put(a, b"2")])
    expect(equal > moved, "a put of equal bytes is a commit as any other")
    same(await entry_of(store, a), Entry(a, b"2", created, equal), "the entry put again without an origin")
    gone = await store.commit([], [DeleteKey(a)], origin=three)
    back = await store.commit([], [Put(a, b"")], origin=one)
    same(await entry_of(store, a), Entry(a, b"", back, back, one), "the entry created again, empty")
    log = await open_log(store, after=start)
    changes = await log.until(back)
    same([c.origin for c in changes], [one, two, Origin(), three, one], "the origins received by a watch")
    same([c.created for c in changes], [True, False, False, False, True], "the creations received by a watch")
    same([c.deleted for c in changes], [False, False, False, True, False], "the deletions received by a watch")
    same([c.revision for c in changes], [created, moved, equal, gone, back], "the revisions received by a watch")
    previous = [c.previous and c.previous.modified for c in changes]
    same(previous, [None, created, moved, equal, None], "the versions that were replaced")


async def check_bytes_come_back_as_they_went(subject: Subject) -> None:
    """A store does not interpret values: any bytes, and any valid name of a key."""
    store = await subject.open()
    values = [b"", b"\0", bytes(range(256)), b"\xff\xfe", b'{"a": 1}', b"x" * 200_000]
    names = ["a", "a.b", "a-b", "A", "system:node", "ü", "日本", "a b", "%2F", "𝛂"]
    writes = [Put(key(name), values[n % len(values)]) for n, name in enumerate(names)]
    cluster = Put(Key(KIND, "", "no-namespace"), b"c")
    revision = await store.commit([], [*writes, cluster])
    for write in (*writes, cluster):
        same(
            await entry_of(store, write.key),
            Entry(write.key, write.value, revision, revision),
            "the entry that was read",
        )
    listed = [entry.key for entry in (await store.list(KIND)).entries]
    same(listed, sorted(w.key for w in (*writes, cluster)), "the order of keys, by code point")


async def check_operations_limit(subject: Subject) -> None:
    """120 operations are accepted; 121 are rejected with nothing written, on every backend."""
    store = await subject.open()
    puts = [Put(key(f"p-{n:03}"), b"") for n in range(120)]
    revision = await store.commit([], puts)
    same(len((await store.list(KIND)).entries), 120, "objects after a commit of 120 writes")
    checks = [AtRevision(put.key, revision) for put in puts[:60]]
    second = await store.commit(checks, [Put(put.key, b"2") for put in puts[:60]])
    fence = Fence(puts[0].key, second)
    third = await store.commit(
        [Present(put.key) for put in puts[:60]], [DeleteKey(p.key) for p in puts[60:]], fence=fence
    )
    same(len((await store.list(KIND)).entries), 60, "objects after 60 deletes behind 60 checks and a fence")
    too_many = [Put(key(f"q-{n:03}"), b"") for n in range(121)]
    await raises(BadRequest, store.commit([], too_many), "a commit of 121 writes")
    await raises(BadRequest, store.commit([Present(puts[0].key)], too_many[:120]), "120 writes and a check")
    same(len((await store.list(KIND)).entries), 60, "objects after two refused commits")
    same((await entry_of(store, puts[0].key) or fail("gone")).modified, second, "an object beside refused commits")
    expect(third <= await store.revision(), "the newest revision went back")


async def check_size_limit(subject: Subject) -> None:
    """A commit just under the size limit is accepted; one over it is rejected with the name of its largest object."""
    store = await subject.open()
    most = small_limits().commit_bytes_max
    half = b"h" * (most // 2)
    await store.commit([], [Put(key("a"), half), Put(key("b"), half)])
    error = await raises(
        TooLarge, store.commit([], [Put(key("c"), half), Put(key("d"), half + b"1234")]), "a commit over the size limit"
    )
    same(error.key, key("d"), "the object named by a refusal for size")
    reading = await store.get([key("a"), key("b"), key("c"), key("d")])
    same([e and len(e.value) for e in reading.entries], [most // 2, most // 2, None, None], "what was written")


async def check_key_written_twice(subject: Subject) -> None:
    """A commit that writes a key twice is rejected, and nothing is written."""
    store = await subject.open()
    a = key("a")
    doubled: list[list[Write]] = [[Put(a, b"1"), Put(a, b"2")], [Put(a, b"1"), Put(key("b"), b""), DeleteKey(a)]]
    for writes in doubled:
        error = await raises(BadRequest, store.commit([], writes), "a key written twice")
        same(error.key, a, "the key named")
    same((await store.get([a, key("b")])).entries, (None, None), "what a refused commit wrote")


async def check_unusable_keys_are_refused(subject: Subject) -> None:
    """A key that cannot be stored, sorted or read back is a `BadRequest`, and does not affect other commits."""
    store = await subject.open()
    bad = [
        Key("", "ns", "a"), Key(KIND, "ns", ""), Key(KIND, "n/s", "a"), Key(KIND, "ns", "a/b"), Key("K/I", "", "a"),
        Key(KIND, "ns", "a\0b"), Key(KIND, "\0", "a"), Key(KIND, "ns", "\ud800"),
    ]  # fmt: skip
    for n, each in enumerate(bad):
        both = await asyncio.gather(
            store.commit([], [Put(each, b"")]), put_one(store, f"good-{n}"), return_exceptions=True
        )
        expect(isinstance(both[0], BadRequest), f"a put of {each!r} gave {both[0]!r}, want BadRequest")
        expect(isinstance(both[1], int), f"a good commit beside a bad one gave {both[1]!r}")
    same(len((await store.list(KIND)).entries), len(bad), "objects after as many good commits as bad ones")


async def check_empty_commit_proves_its_checks(subject: Subject) -> None:
    """With no writes, a commit proves its checks at the revision it returns, and changes nothing."""
    store = await subject.open()
    a = key("a")
    at_a = await store.commit([], [Put(a, b"1")])
    log = await open_log(store, after=at_a, kind="")
    still = 0
    for _ in range(20):
        before = await store.revision()
        proved = await store.commit([AtRevision(a, at_a), Absent(key("b"))], [])
        expect(before <= proved <= await store.revision(), f"an empty commit at {before} returned {proved}")
        still += proved == before
    # Other users of a shared backend may advance it, but not each time.
    expect(still > 0, "an empty commit moves the revision")
    error = await raises(Conflict, store.commit([Absent(a)], []), "an empty commit whose check fails")
    same((error.key, error.revision), (a, at_a), "the error of a failed proof")
    last = await store.commit([], [Put(a, b"2")])
    same([c.revision for c in await log.until(last)], [last], "changes received by a watch of empty commits")


async def check_racing_writers_lose_no_update(subject: Subject) -> None:
    """Counters raised by read, check and write under contention end at exactly the number of successes."""
    store = await subject.open()
    rng = subject.random
    counters = [key("left"), key("right")]
    await store.commit([], [Put(each, b"0") for each in counters])
    conflicts = 0

    async def raise_both(times: int) -> None:
        nonlocal conflicts
        while times:
            reading = await store.get(counters)
            entries = [e or fail("a counter is gone") for e in reading.entries]
            await asyncio.sleep(rng.choice([0, 0.001]))
            try:
                await store.commit(
                    [AtRevision(e.key, e.modified) for e in entries],
                    [Put(e.key, b"%d" % (int(e.value) + 1)) for e in entries],
                )
            except Conflict as error:
                expect(error.key in counters, f"a conflict named {error.key}")
                conflicts += 1
                continue
            times -= 1

    await asyncio.gather(*(raise_both(8) for _ in range(6)))
    values = [e and e.value for e in (await store.get(counters)).entries]
    same(values, [b"48", b"48"], f"two counters raised 48 times ({conflicts} conflicts)")
    expect(conflicts > 0, "six racing writers never conflicted: the check is void")


async def check_cancelled_commits_are_whole(subject: Subject) -> None:
    """A commit cancelled in flight is applied wholly or not at all, and a guarded repeat is safe.

    A version has its origin, so a repeat that gets a conflict can recognise its own first attempt.
    """
    store = await subject.open()
    rng = subject.random
    start = await store.revision()
    cancelled = 0

    async def attempt(n: int) -> None:
        nonlocal cancelled
        pair = [key(f"{n}-a"), key(f"{n}-b", kind=OTHER_KIND)]
        mine = Origin(f"op-{n}")

        async def commit() -> Revision:
            return await store.commit(
                [Absent(each) for each in pair], [Put(each, b"%d" % n) for each in pair], origin=mine
            )

        task = asyncio.ensure_future(commit())
        for _ in range(rng.randrange(4)):
            await asyncio.sleep(0)
        if rng.random() < 0.3:
            await asyncio.sleep(rng.random() * 0.005)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            cancelled += 1
        try:
            await commit()
        except Conflict as error:
            expect(error.key in pair, f"a repeat's conflict named {error.key}")
        for entry in (await store.get(pair)).entries:
            expect(entry is not None and entry.origin == mine, f"after a guarded repeat of op-{n}: {entry!r}")

    for first in range(0, 80, 20):
        await asyncio.gather(*(attempt(n) for n in range(first, first + 20)))
    expect(cancelled > 0, "no commit was cancelled in flight: the check is void")
    log = await open_log(store, after=start, kind="")
    await log.until(await put_one(store, "last"))
    received: dict[str, set[Revision]] = {}
    for change in log.changes:
        if change.origin.operation:
            expect(change.created, f"{change.key} was written twice by {change.origin.operation}")
            received.setdefault(change.origin.operation, set()).add(change.revision)
    same(
        {op: len(revisions) for op, revisions in received.items()},
        {f"op-{n}": 1 for n in range(80)},
        "commits by origin",
    )
    same(len(log.changes), 161, "changes of 80 pairs and one more")


async def check_closed_store_refuses(subject: Subject) -> None:
    """After `close` every call fails with `Unavailable`, and closing again is no error."""
    store: Store = await subject.open()
    await put_one(store, "a")
    await store.close()
    await raises(Unavailable, store.commit([], [Put(key("b"), b"")]), "a commit on a closed store")
    await raises(Unavailable, store.get([key("a")]), "a get on a closed store")
    await raises(Unavailable, store.list(KIND), "a list on a closed store")
    await raises(Unavailable, store.watch(KIND, after=0), "a watch on a closed store")
    await raises(Unavailable, store.revision(), "the revision of a closed store")
    await store.close()


async def check_statistics_are_coherent(subject: Subject) -> None:
    """`statistics()` agrees with what was done to the store."""
    store = await subject.open()
    before = store.statistics()
    same(before.incarnation, store.incarnation, "the incarnation in the statistics")
    expect(before.backend, "the statistics do not name the backend")
    same((before.objects, before.watchers), (0, 0), "objects and watchers of a new store")
    await store.commit([], [Put(key("a"), b""), Put(key("b"), b"")])
    last = await store.commit([], [DeleteKey(key("a"))])
    await raises(Conflict, store.commit([Absent(key("b"))], []), "a commit that must conflict")
    watch = await store.watch(KIND, after=await store.revision())
    after = store.statistics()
    same((after.objects, after.watchers), (1, 1), "objects and watchers")
    same(after.commits - before.commits, 2, "commits counted")
    same(after.conflicts - before.conflicts, 1, "conflicts counted")
    expect(last <= after.revision <= await store.revision(), f"the revision in the statistics is {after.revision}")
    expect(after.compacted <= after.revision, f"compacted {after.compacted} is past {after.revision}")
    expect(all(after.alarms), "an alarm without a message")
    watch.close()
    same(store.statistics().watchers, 0, "watchers after the watch was closed")
