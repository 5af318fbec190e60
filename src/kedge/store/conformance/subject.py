"""The fixture of a check: opens stores, and has helpers that verify watches as they are read.

`suite` builds a `Subject` for each check; the checks are beside it, one file a subject. Nothing here depends on a
backend or on pytest: a check fails with an `AssertionError` that explains the failure.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from kedge.env import Env, system_env
from kedge.expectations import expect, same, within
from kedge.keys import Key, Revision
from kedge.limits import Limits
from kedge.store.contract import Batch, Change, Entry, Put, Store, StoreWatch

KIND = "Thing.conformance"
OTHER_KIND = "Other.conformance"
WAIT_S = 30.0
"""How long a check waits for an expected event. Far more than any sound store needs."""


class MakeStore(Protocol):
    """Opens the store called `name`. Opened again, after `close` or after a kill, it finds the same data."""

    def __call__(self, name: str, env: Env) -> Awaitable[Store]: ...


Backup = Callable[[Store], Awaitable[MakeStore]]
"""Copies an open store, and returns a function that opens new stores from that copy."""

MakeEnv = Callable[[Limits], Env]


def real_env(limits: Limits) -> Env:
    return system_env(limits=limits)


@dataclass(frozen=True)
class Subject:
    """The backend under test, as one check sees it."""

    check: str
    make_store: MakeStore
    make_env: MakeEnv = real_env
    durable: bool = True
    shared: bool = False
    backup: Backup | None = None
    seed: int = 1
    _open: list[Store] = field(default_factory=list)

    @property
    def random(self) -> random.Random:
        """A fresh random source for this check and seed: each access starts it again."""
        return random.Random(f"{self.check}/{self.seed}")

    def name(self, label: str = "") -> str:
        return "-".join(part for part in (self.check.replace("_", "-"), str(self.seed), label) if part)

    async def open(self, label: str = "", *, limits: Limits | None = None) -> Store:
        """Open the check's store. It is closed when the check ends, if the check has not done so."""
        return await self.open_with(self.make_store, label, limits=limits)

    async def open_with(self, make_store: MakeStore, label: str = "", *, limits: Limits | None = None) -> Store:
        store = await make_store(self.name(label), self.make_env(limits or Limits()))
        self._open.append(store)
        return store

    async def close(self) -> None:
        while self._open:
            await self._open.pop().close()


def small_limits(**changes: float) -> Limits:
    """Limits with some of them replaced: `small_limits(watch_backlog_max=10)`."""
    return replace(Limits(), **changes)  # type: ignore[arg-type]


def key(name: str, *, namespace: str = "ns", kind: str = KIND) -> Key:
    return Key(kind, namespace, name)


async def put_one(store: Store, name: str, value: bytes = b"v", *, kind: str = KIND) -> Revision:
    return await store.commit([], [Put(key(name, kind=kind), value)])


async def entry_of(store: Store, wanted: Key) -> Entry | None:
    return (await store.get([wanted])).entries[0]


class WatchLog:
    """Everything that a watch has returned, with its guarantees checked on every batch."""

    def __init__(self, watch: StoreWatch, after: Revision) -> None:
        self.watch = watch
        self.changes: list[Change] = []
        self.batches: list[Batch] = []
        self.revision = after
        self._seen: set[tuple[Revision, Key]] = set()

    async def next(self) -> Batch:
        """Take one batch. Order, each change once, and commits never split follow from disjoint revision ranges."""
        async with within(WAIT_S, f"a batch from a watch at revision {self.revision}"):
            await asyncio.sleep(0)  # a store may answer without suspending; other tasks must get their turn
            batch = await self.watch.__anext__()
        expect(
            batch.revision >= self.revision,
            f"a batch at revision {batch.revision} came after one at {self.revision}",
        )
        before = self.revision
        for change in batch.changes:
            expect(
                change.revision > self.revision,
                f"{change.key} at revision {change.revision} came after the watch had passed {self.revision}",
            )
            expect(
                change.revision <= batch.revision,
                f"{change.key} at revision {change.revision} came in a batch that only reaches {batch.revision}",
            )
            expect(change.revision >= before, f"revision {change.revision} came after {before} in one batch")
            before = change.revision
            expect((change.revision, change.key) not in self._seen, f"{change.key} appeared twice at {change.revision}")
            self._seen.add((change.revision, change.key))
            if change.entry is not None:
                same(change.entry.modified, change.revision, f"the entry's revision in a change of {change.key}")
                same(change.entry.key, change.key, "the entry's key in a change")
        same(self.watch.revision, batch.revision, "the watch's own position after a batch")
        self.changes.extend(batch.changes)
        self.batches.append(batch)
        self.revision = batch.revision
        return batch

    async def until(self, revision: Revision) -> list[Change]:
        """Read until the watch has reached `revision`."""
        async with within(WAIT_S, f"a watch to reach revision {revision} (it is at {self.revision})"):
            while self.revision < revision:
                self.watch.request_progress()
                await self.next()
        return self.changes


async def open_log(store: Store, *, after: Revision, kind: str = KIND, namespace: str = "") -> WatchLog:
    return WatchLog(await store.watch(kind, after=after, namespace=namespace), after)


def state_of(changes: Sequence[Change], start: dict[Key, Entry] | None = None) -> dict[Key, Entry]:
    """The content of a cache after these changes, each checked against the state before it."""
    state = dict(start or {})
    for change in changes:
        if change.entry is None:
            expect(change.key in state, f"{change.key} was deleted at {change.revision} but never sent before")
            del state[change.key]
        else:
            expect(
                change.created == (change.key not in state),
                f"{change.key} at {change.revision}: created={change.created} but it was"
                f" {'' if change.key in state else 'not '}there before",
            )
            state[change.key] = change.entry
    return state
