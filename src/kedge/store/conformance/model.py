"""The main check: random operations on a store, compared with a model that is too simple to be wrong.

The model keeps every version of every object as plain dicts, one a revision. Every answer of the store must equal the
model's, for any mix of commits, reads in the past, pages, watches, compactions and reopenings.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from kedge.errors import Compacted, Conflict, Fenced, OperatingError
from kedge.expectations import expect, fail, same
from kedge.keys import NO_REVISION, Fence, Key, Origin, Revision
from kedge.store.conformance.subject import OTHER_KIND, Subject, WatchLog, key, open_log
from kedge.store.contract import (
    Absent,
    AtRevision,
    Change,
    Check,
    DeleteKey,
    Entry,
    Present,
    Put,
    Store,
    Write,
)

STEPS = 400


class Model:
    """Every past state, by revision."""

    def __init__(self, start: Revision) -> None:
        self.states: dict[Revision, dict[Key, Entry]] = {start: {}}
        self.changes: list[Change] = []
        self.newest = start
        self.compacted = start

    @property
    def now(self) -> dict[Key, Entry]:
        return self.states[self.newest]

    def refusal(
        self, checks: Sequence[Check], writes: Sequence[Write], fence: Fence | None
    ) -> tuple[type[OperatingError], set[Key]] | None:
        """The error that a commit must get, and the keys that it may name."""
        now = self.now
        if fence is not None and (fence.key not in now or now[fence.key].modified != fence.revision):
            return Fenced, {fence.key}
        failed = set()
        for each in checks:
            entry = now.get(each.key)
            match each:
                case AtRevision(_, revision):
                    holds = entry is not None and entry.modified == revision
                case Absent():
                    holds = entry is None
                case Present():
                    holds = entry is not None
            if not holds:
                failed.add(each.key)
        failed.update(write.key for write in writes if isinstance(write, DeleteKey) and write.key not in now)
        return (Conflict, failed) if failed else None

    def apply(self, writes: Sequence[Write], revision: Revision, origin: Origin) -> None:
        expect(revision > self.newest, f"a commit got revision {revision} after {self.newest}")
        state = dict(self.now)
        for write in writes:
            previous = state.pop(write.key, None)
            entry = None
            if isinstance(write, Put):
                entry = Entry(write.key, write.value, previous.created if previous else revision, revision, origin)
                state[write.key] = entry
            self.changes.append(Change(revision, write.key, entry, previous, origin))
        self.states[revision] = state
        self.newest = revision


class Walk:
    """One random walk over a store and its model."""

    def __init__(self, subject: Subject, store: Store, start: Revision) -> None:
        self.subject = subject
        self.store = store
        self.rng: random.Random = subject.random
        self.model = Model(start)
        self.log: WatchLog | None = None
        self.received_from = start
        self.keys = [key(f"k{n}", namespace=namespace) for n in range(4) for namespace in ("a", "ab", "b")]
        self.keys += [Key(OTHER_KIND, "", f"o{n}") for n in range(3)]

    async def run(self, steps: int) -> None:
        actions = [
            (self.commit, 12),
            (self.get, 4),
            (self.list, 4),
            (self.watch, 5),
            (self.rewatch, 1),
            (self.compact, 1),
        ]
        if self.subject.durable:
            actions.append((self.reopen, 1))
        for _ in range(steps):
            (action,) = self.rng.choices([a for a, _ in actions], [weight for _, weight in actions])
            await action()
        await self.watch_to_the_end()

    async def commit(self) -> None:
        rng, now = self.rng, self.model.now
        writes: list[Write] = []
        for each in rng.sample(self.keys, rng.choice((0, 1, 1, 1, 2, 5))):
            wants_delete = rng.random() < (0.35 if each in now else 0.03)
            writes.append(DeleteKey(each) if wants_delete else Put(each, b"%d" % rng.randrange(10**6)))
        checks = [self.some_check(each) for each in rng.sample(self.keys, rng.choice((0, 0, 1, 2)))]
        fence = None
        if rng.random() < 0.15:
            guard = rng.choice(self.keys)
            token = now[guard].modified if guard in now and rng.random() < 0.8 else rng.choice(list(self.model.states))
            fence = Fence(guard, token)
        origin = Origin()
        if rng.random() < 0.5:
            groups = rng.choice(((), ("people",)))
            origin = Origin(f"op-{rng.randrange(10**6)}", caller=rng.choice(("", "ada")), groups=groups)
        refusal = self.model.refusal(checks, writes, fence)
        try:
            revision = await self.store.commit(checks, writes, fence=fence, origin=origin)
        except (Conflict, Fenced) as error:
            if refusal is None:
                raise AssertionError(f"{checks} {writes} {fence} must succeed, but got {error!r}") from error
            same(type(error), refusal[0], f"the error of {checks} {writes} {fence}")
            named = error.key or fail(f"{error!r} names no key")
            expect(named in refusal[1], f"{error!r} names {named}, which holds; failing are {refusal[1]}")
            found = now[named].modified if named in now else NO_REVISION
            same(error.revision, found, f"the revision of {named} in {error!r}")
            return
        expect(refusal is None, f"{checks} {writes} {fence} must fail with {refusal}, but got revision {revision}")
        if writes:
            self.model.apply(writes, revision, origin)
        else:
            expect(revision >= self.model.newest, f"an empty commit returned {revision}, before {self.model.newest}")

    def some_check(self, each: Key) -> Check:
        entry = self.model.now.get(each)
        if self.rng.random() < 0.15:  # a check that may fail
            doubtful: list[Check] = [Absent(each), Present(each), AtRevision(each, self.model.newest)]
            return self.rng.choice(doubtful)
        if entry is None:
            return Absent(each)
        return Present(each) if self.rng.random() < 0.5 else AtRevision(each, entry.modified)

    def some_revision(self) -> Revision:
        return self.rng.choice([NO_REVISION, self.model.newest, *self.rng.choices(list(self.model.states), k=4)])

    async def get(self) -> None:
        at = self.some_revision()
        keys = self.rng.choices(self.keys, k=self.rng.randrange(1, 6))
        then = self.model.states[at or self.model.newest]
        try:
            reading = await self.store.get(keys, at=at)
        except Compacted:
            expect(0 < at < self.model.compacted, f"a get at {at} was refused; compacted is {self.model.compacted}")
            return
        expect(not at or at >= self.model.compacted, f"a get at {at} went through; compacted is {self.model.compacted}")
        same(reading.entries, tuple(map(then.get, keys)), f"a get of {keys} at {at}")

    async def list(self) -> None:
        at, limit = self.some_revision(), self.rng.choice((0, 0, 1, 3, 50))
        sample = self.rng.choice(self.keys)
        namespace = self.rng.choice(("", sample.namespace, "zz"))
        start_after = self.rng.choice((None, None, sample))
        then = self.model.states[at or self.model.newest]
        try:
            listing = await self.store.list(
                sample.kind, namespace=namespace, at=at, start_after=start_after, limit=limit
            )
        except Compacted:
            expect(0 < at < self.model.compacted, f"a list at {at} was refused; compacted is {self.model.compacted}")
            return
        expect(not at or at >= self.model.compacted, f"a list at {at} went through; compacted {self.model.compacted}")
        want = [
            then[each]
            for each in sorted(then)
            if each.kind == sample.kind
            and (not namespace or each.namespace == namespace)
            and (start_after is None or each > start_after)
        ]
        count = limit or len(want)
        what = f"a list of {sample.kind} in {namespace!r} at {at} after {start_after} limit {limit}"
        same((listing.entries, listing.remaining), (want[:count], max(0, len(want) - count)), what)

    async def watch(self) -> None:
        """Read a few batches from the watch of the whole walk."""
        try:
            if self.log is None:
                self.log = await open_log(self.store, after=self.received_from, kind="")
            self.log.watch.request_progress()
            await self.log.next()
        except Compacted:
            position = self.received_from if self.log is None else self.log.revision
            expect(position < self.model.compacted, "a watch got Compacted although its history exists")
            self.log, self.received_from = None, self.model.newest
            return
        self.check_received()

    async def rewatch(self) -> None:
        """Close the watch and resume it where it stopped."""
        if self.log is None:
            return
        self.log.watch.close()
        self.received_from = self.log.revision
        self.log = None
        try:
            self.log = await open_log(self.store, after=self.received_from, kind="")
            expect(
                self.received_from >= self.model.compacted, f"a watch after {self.received_from}, before the compacted"
            )
        except Compacted:
            expect(self.received_from < self.model.compacted, f"a watch after {self.received_from} was refused")
            self.received_from = self.model.newest

    def check_received(self) -> None:
        log = self.log or fail("no watch")
        want = [change for change in self.model.changes if self.received_from < change.revision <= log.revision]
        received = sorted(log.changes, key=lambda change: (change.revision, change.key))
        same(
            received,
            sorted(want, key=lambda change: (change.revision, change.key)),
            "the changes that a watch has received",
        )

    async def compact(self) -> None:
        chosen = self.rng.choice([revision for revision in self.model.states if revision >= self.model.compacted])
        if self.rng.random() < 0.5:  # in small steps, so that there is usually history to read
            chosen = min(revision for revision in self.model.states if revision >= self.model.compacted)
        await self.store.compact(chosen)
        self.model.compacted = max(self.model.compacted, chosen)

    async def reopen(self) -> None:
        if self.log is not None:
            self.received_from = self.log.revision
        self.log = None
        await self.store.close()
        self.store = await self.subject.open()
        # A store may drop history when it is closed, but must then answer `Compacted`.
        self.model.compacted = max(self.model.compacted, self.store.statistics().compacted)
        if self.received_from < self.model.compacted:
            self.received_from = self.model.newest

    async def watch_to_the_end(self) -> None:
        if self.log is None:
            self.received_from = max(self.received_from, self.model.compacted)
            self.log = await open_log(self.store, after=self.received_from, kind="")
        try:
            await self.log.until(self.model.newest)
        except Compacted:
            expect(self.log.revision < self.model.compacted, "a watch got Compacted although its history exists")
            return
        self.check_received()


async def check_random_walk(subject: Subject) -> None:
    """Hundreds of random operations, every answer compared with a model of dicts."""
    store = await subject.open()
    start = await store.revision()
    await Walk(subject, store, start).run(STEPS)
