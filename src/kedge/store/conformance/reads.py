"""Checks of reads: one revision a reading, key order, consistent pages, and past revisions."""

from __future__ import annotations

import asyncio

from kedge.errors import Unavailable
from kedge.expectations import expect, fail, raises, same, within
from kedge.keys import Key, Revision
from kedge.store.conformance.subject import KIND, OTHER_KIND, WAIT_S, Subject, key, open_log, put_one, small_limits
from kedge.store.contract import DeleteKey, Entry, Put, Store


async def check_get_answers_in_order(subject: Subject) -> None:
    """`get` returns one entry for each key, in order, duplicates and unknown kinds included."""
    store = await subject.open()
    revision = await store.commit([], [Put(key("a"), b"a"), Put(key("b", kind=OTHER_KIND), b"b")])
    wanted = [key("b", kind=OTHER_KIND), key("b"), key("a"), key("a"), key("x", kind="Unheard.of")]
    reading = await store.get(wanted)
    same([e and e.value for e in reading.entries], [b"b", None, b"a", b"a", None], "values in the order of the keys")
    expect(reading.revision >= revision, f"a reading at {reading.revision} after a commit at {revision}")
    empty = await store.get([])
    same(empty.entries, (), "a get of nothing")
    expect(empty.revision >= revision, "a get of nothing is not at a current revision")


async def check_get_without_waiting(subject: Subject) -> None:
    """`get_nowait` is the newest state, as `get` answers it at that moment, or None; never an older one."""
    store = await subject.open()
    wanted = [key("a"), key("b"), key("never")]
    for number in range(20):
        value = str(number).encode()
        revision = await store.commit(
            [], [Put(key("a"), value), DeleteKey(key("b")) if number % 2 else Put(key("b"), b"b")]
        )
        found = store.get_nowait(wanted)
        if found is None:
            continue  # allowed: this store must ask another process
        same(found.entries, (await store.get(wanted)).entries, "the entries of a get without waiting")
        expect(found.entries[0] is not None and found.entries[0].value == value, "the newest value is missing")
        expect(found.revision >= revision, f"a reading at {found.revision} after a commit at {revision}")


async def check_namespaces_do_not_leak(subject: Subject) -> None:
    """Namespaces and kinds with a common prefix stay separate, and lists are in the order of key tuples."""
    store = await subject.open()
    kinds = ["Pod", "Pod.x", "Pods", "PodA", "P"]
    namespaces = ["", "a", "a-b", "a.b", "ab", "a0", "A", "b", "a b", "aü"]
    names = ["a", "a-b", "a.b", "ab", "b", "A"]
    everything = [Key(kind, namespace, name) for kind in kinds for namespace in namespaces for name in names]
    subject.random.shuffle(everything)
    for start in range(0, len(everything), 100):
        await store.commit([], [Put(each, str(each).encode()) for each in everything[start : start + 100]])
    everything.sort()
    for kind in [*kinds, "Po", "Pod."]:
        listed = [e.key for e in (await store.list(kind)).entries]
        same(listed, [k for k in everything if k.kind == kind], f"the list of kind {kind!r}")
        for namespace in [*namespaces[1:], "a-", "zz"]:
            want = [k for k in everything if k.kind == kind and k.namespace == namespace]
            listing = await store.list(kind, namespace=namespace)
            same([e.key for e in listing.entries], want, f"the list of {kind!r} in {namespace!r}")
            same(listing.remaining, 0, "what remains after a whole list")
            page = await store.list(kind, namespace=namespace, limit=2, start_after=Key(kind, namespace, "a"))
            rest = [k for k in want if k.name > "a"]
            same([e.key for e in page.entries], rest[:2], f"a page of {kind!r} in {namespace!r}")
            same(page.remaining, max(0, len(rest) - 2), f"what remains of {kind!r} in {namespace!r}")
    before = await store.list("Pod", namespace="b", start_after=Key("Pod", "a", "zz"))
    same([e.key.namespace for e in before.entries], ["b"] * len(names), "a list that starts before its namespace")
    after = await store.list("Pod", namespace="a", start_after=Key("Pod", "b", "a"))
    same((after.entries, after.remaining), ([], 0), "a list that starts after its namespace")


async def check_pages_hold_still(subject: Subject) -> None:
    """Pages of one listing show one revision while writers update, delete, recreate and create."""
    store = await subject.open()
    rng = subject.random
    names = [key(f"p-{n:02}") for n in range(0, 60, 2)]
    await store.commit([], [Put(each, b"0") for each in names])
    stop = False

    async def write(writer: int) -> None:
        n = 0
        while not stop:
            n += 1
            victim = key(f"p-{writer + 3 * rng.randrange(20):02}")  # writers use distinct keys, so that no delete fails
            present = (await store.get([victim])).entries[0] is not None
            if present and rng.random() < 0.5:
                await store.commit([], [DeleteKey(victim)])
            else:
                await store.commit([], [Put(victim, b"%d" % n)])
            await asyncio.sleep(0)

    writers = [asyncio.ensure_future(write(n)) for n in range(3)]
    try:
        for size in (1, 2, 7, 29):
            whole = await store.list(KIND)
            paged: list[Entry] = []
            page = await store.list(KIND, at=whole.revision, limit=size)
            while True:
                same(page.revision, whole.revision, "the revision of a page")
                expect(len(page.entries) <= size, f"a page of {len(page.entries)} when {size} were requested")
                paged.extend(page.entries)
                same(page.remaining, len(whole.entries) - len(paged), f"what remains after {len(paged)}")
                if not page.remaining:
                    break
                page = await store.list(KIND, at=whole.revision, start_after=page.entries[-1].key, limit=size)
            same(paged, whole.entries, f"pages of {size} beside the whole list at {whole.revision}")
            await asyncio.sleep(0.002)
    finally:
        stop = True
        await asyncio.gather(*writers)


async def check_past_reads_match(subject: Subject) -> None:
    """`get` and `list` at every past revision return the state of that revision, deletes and re-creations included."""
    store = await subject.open()
    rng = subject.random
    names = [key(f"p-{n}", namespace=namespace) for n in range(6) for namespace in ("a", "b")]
    state: dict[Key, Entry] = {}
    past: dict[Revision, dict[Key, Entry]] = {}
    for n in range(60):
        chosen = rng.sample(names, rng.randrange(1, 4))
        deletes = [each for each in chosen if each in state and rng.random() < 0.4]
        writes = [DeleteKey(each) if each in deletes else Put(each, b"%d" % n) for each in chosen]
        revision = await store.commit([], writes)
        for each in chosen:
            if each in deletes:
                del state[each]
            else:
                created = state[each].created if each in state else revision
                state[each] = Entry(each, b"%d" % n, created, revision)
        past[revision] = dict(state)
    # A write of an unrelated kind, so that the last of these revisions is in the past too.
    await put_one(store, "other", kind=OTHER_KIND)
    for revision, then in past.items():
        reading = await store.get(names, at=revision)
        same(reading.revision, revision, "the revision of a past reading")
        same(reading.entries, tuple(then.get(each) for each in names), f"a get at {revision}")
        listing = await store.list(KIND, at=revision)
        same(listing.revision, revision, "the revision of a past listing")
        same(listing.entries, [then[each] for each in sorted(then)], f"a list at {revision}")
        narrow = await store.list(KIND, namespace="b", at=revision, limit=2, start_after=key("p-1", namespace="b"))
        rest = [then[each] for each in sorted(then) if each.namespace == "b" and each.name > "p-1"]
        same(
            (narrow.entries, narrow.remaining),
            (rest[:2], max(0, len(rest) - 2)),
            f"a page in a namespace at {revision}",
        )


async def check_reads_past_the_newest_wait(subject: Subject) -> None:
    """A read or watch past the newest revision waits until that revision is reached."""
    store = await subject.open(limits=small_limits(watch_future_wait_s=WAIT_S))

    async def read_at(next_revision: Revision) -> None:
        reading = await store.get([key("a")], at=next_revision)
        same(reading.revision, next_revision, "the revision of a reading that waited")
        listing = await store.list(KIND, at=next_revision)
        same([e.key for e in listing.entries], [key("a")], "a listing that waited")

    async def watch_after(next_revision: Revision) -> None:
        log = await open_log(store, after=next_revision)
        last = await put_one(store, "b")
        changes = [change for change in await log.until(last) if change.key == key("b")]
        same([c.revision for c in changes], [last], "changes received by a watch after a future revision")

    for reader in (read_at, watch_after):
        newest = await _commit_next(store)
        waiting = asyncio.ensure_future(reader(newest + 1))
        await asyncio.sleep(0.02)
        expect(not waiting.done(), f"{reader.__name__} did not wait for a future revision")
        async with within(WAIT_S, f"{reader.__name__} to continue"):
            while not waiting.done():
                await _commit_next(store)
                await asyncio.sleep(0.002)
            await waiting


async def _commit_next(store: Store) -> Revision:
    return await store.commit([], [Put(key("a"), b"")])


async def check_reads_past_the_newest_fail_in_time(subject: Subject) -> None:
    """A read at a revision that is never reached fails with `Unavailable`; it neither hangs nor returns old data."""
    store = await subject.open(limits=small_limits(watch_future_wait_s=0.05))
    never = await put_one(store, "a") + 1_000_000
    async with within(WAIT_S, "reads past the newest revision to fail"):
        await raises(Unavailable, store.get([key("a")], at=never), "a get at a future revision")
        await raises(Unavailable, store.list(KIND, at=never), "a list at a future revision")
        await raises(Unavailable, store.watch(KIND, after=never), "a watch after a future revision")
    reading = await store.get([key("a")])
    same((reading.entries[0] or fail("gone")).value, b"v", "the object after reads that failed")
