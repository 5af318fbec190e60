"""A local copy of one kind: fast to read, indexed, with a known revision and age.

One writer, the watcher, through `begin_relist`, `apply`, `progress` and `proof`; many readers, which get frozen objects
and cannot write. A cache is for finding objects; before a claim or a deletion, read the API server.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from kedge.api.kinds import Kind
from kedge.api.objects import Object
from kedge.api.requests import EventType, ListOptions, WatchEvent
from kedge.api.selectors import LabelSelector
from kedge.client.contract import Client
from kedge.env import Env
from kedge.errors import check
from kedge.keys import NO_REVISION, Key, Revision
from kedge.runtime.cache.indexes import Index, IndexState, in_key_order
from kedge.runtime.cache.reads import Behind, CacheStatistics, Freshness, NotSynced, Read, Stale, Tombstone
from kedge.runtime.cache.received import CacheChange, ChangeType, ReceivedLog, Source
from kedge.runtime.cache.relist import CacheRelist, PreparedList, diff_objects
from kedge.runtime.cache.revision_waiters import RevisionWaiters
from kedge.runtime.cache.subscribers import Handler, Subscribers, Subscription
from kedge.runtime.cache.tombstones import Tombstones
from kedge.runtime.watch_states import StoppedState, StreamingState, WatchReason, WatchScope, WatchState, state_name

_UNKNOWN: tuple[Revision, float] = (2**63, -math.inf)
"""The target before the store's revision was read."""


class Cache:
    """The objects of one kind in one scope. Made by `CacheSet`, which also runs its watcher."""

    def __init__(self, client: Client, env: Env, kind: Kind, *, scope: WatchScope | None = None) -> None:
        self.kind = kind
        self.scope = scope or WatchScope()
        self.name = f"{kind.key_kind}{self.scope}"
        self.relist_requested = asyncio.Event()
        self._client = client
        self._env = env
        self._objects: dict[Key, Object] = {}
        self._ordered: tuple[Object, ...] | None = None
        """The objects in key order, made at a list and dropped at the next change."""
        self._indexes: dict[str, IndexState] = {}
        self._tombstones = Tombstones(env)
        self._subscribers = Subscribers(self._report, env, self.name)
        self._waits = RevisionWaiters()
        self.received = ReceivedLog(env.limits)
        self._revision: Revision = NO_REVISION
        self._revision_seen: Revision = NO_REVISION
        """At least `_revision`. Above it while more events of the same commit may follow."""
        self._revision_listed: Revision = NO_REVISION
        self._listed = False
        self._proved_s = -math.inf
        self._target: tuple[Revision, float] | None = _UNKNOWN
        """The store's revision at the last probe and the time of that probe, until the cache has reached it."""
        self._state: WatchState = StoppedState()
        self._reason = WatchReason.STOPPED
        self._relists = 0
        self._stale_events = 0
        self._count(env)

    def _count(self, env: Env) -> None:
        gauge, labels, name = env.metrics.gauge, ("cache",), self.name
        gauges: tuple[tuple[str, str, Callable[[], float]], ...] = (
            ("kedge_cache_objects", "Objects held", lambda: len(self._objects)),
            ("kedge_cache_revision", "Everything up to this revision is held", lambda: self._revision),
            ("kedge_cache_age_seconds", "Time since it was proved current", lambda: self.age_s),
            ("kedge_cache_tombstones", "Deletions remembered", lambda: len(self._tombstones)),
            ("kedge_cache_received_log", "Entries kept in the received log", lambda: len(self.received)),
            ("kedge_cache_waiting", "Readers that wait for a revision", lambda: self._waits.waiting),
            ("kedge_watch_lag_revisions", "Revisions behind the store at its last probe", lambda: self.lag_revisions),
        )
        for series, help_text, value in gauges:
            gauge(series, help_text, labels).labels(name).set_function(value)
        counter = env.metrics.counter
        self._stale = counter(
            "kedge_cache_stale_events_total", "Events older than the state of the cache", labels
        ).labels(name)
        counter("kedge_cache_relists_total", "Lists that replaced the content", labels).labels(name).set_function(
            lambda: self._relists
        )
        self._missed = counter("kedge_cache_missed_changes_total", "Changes found only by a list", labels).labels(name)
        self._handler_failures = counter(
            "kedge_cache_handler_failures_total", "Handlers and index functions that raised", labels
        ).labels(name)

    # -- reads -------------------------------------------------------------------------------------

    def get(self, key: Key) -> Read[Object | None]:
        """One object, or None if the cache knows that it does not exist."""
        self._check_listed()
        return self._read(self._objects.get(key))

    def list(self, *, namespace: str = "", selector: LabelSelector | None = None) -> Read[tuple[Object, ...]]:
        """All objects, in key order; or those of one namespace, or with some labels."""
        self._check_listed()
        found = self._ordered
        if found is None:
            found = self._ordered = in_key_order(self._objects.values())
        if namespace:
            found = tuple(each for each in found if each.key.namespace == namespace)
        if selector is not None:
            found = tuple(each for each in found if selector.matches(each.metadata.labels))
        return self._read(found)

    def by_index(self, index: Index, value: str) -> Read[tuple[Object, ...]]:
        """The objects that have `value` in an index that was added, in key order."""
        self._check_listed()
        return self._read(self._index(index).get(value))

    def index_values(self, index: Index) -> Read[tuple[str, ...]]:
        """Every value that some object has."""
        self._check_listed()
        return self._read(self._index(index).values())

    def tombstone(self, key: Key) -> Tombstone | None:
        """The deletion of a key, if it is remembered and nothing of that name came since."""
        return self._tombstones.get(key)

    async def fresh_read(self, key: Key) -> Read[Object | None]:
        """Read the API server, past this cache. The answer held at the returned revision, which is safe as a floor."""
        asked_s = self._env.monotonic()
        found, revision = await self._client.find(key), NO_REVISION
        if found is None:
            # An absence has no revision of its own: get the revision of the store, then read once more.
            asked_s = self._env.monotonic()
            revision = await self.fresh_revision()
            found = await self._client.find(key)
        if found is not None:
            revision = max(revision, found.revision)
        return Read(found, revision, self._env.monotonic() - asked_s, -1)

    async def fresh_revision(self) -> Revision:
        """The revision of the store: every commit before the call is at or below it."""
        return (await self._client.list(self.kind, ListOptions(limit=1, namespace=self.scope.namespace))).revision

    def _read(self, value: Any) -> Read[Any]:
        return Read(value, self._revision, self._env.monotonic() - self._proved_s, self.received.place)

    def _check_listed(self) -> None:
        if not self._listed:
            raise NotSynced(f"the cache of {self.name} has not listed yet: wait for it before reading")

    # -- freshness ---------------------------------------------------------------------------------

    @property
    def revision(self) -> Revision:
        """Everything at or below it is in the cache."""
        return self._revision

    @property
    def revision_seen(self) -> Revision:
        """The highest revision of any event or list."""
        return self._revision_seen

    @property
    def age_s(self) -> float:
        """Time since it was last proved complete; infinite before the first list.

        Proof is a list, a probe of the store's revision that the cache has reached, and, once it has reached it, any
        event of the stream. The delay of an event is not known here: the next probe finds a stream that is behind by
        more than `Limits.watch_probe_s`, and its events prove nothing until it has caught up.
        """
        return self._env.monotonic() - self._proved_s

    @property
    def lag_revisions(self) -> int:
        """How far the last probe found the store ahead; 0 once the cache has reached it, and before the first probe."""
        target = self._target
        return max(0, target[0] - self._revision) if target is not None and target is not _UNKNOWN else 0

    def wall_clock(self) -> Callable[[float], datetime]:
        """A function from readings of the monotonic clock to the wall clock as it is set now: a step of that moves the
        times of a whole log, and none inside it."""
        now, now_s = self._env.now(), self._env.monotonic()
        return lambda at_s: now - timedelta(seconds=now_s - at_s)

    @property
    def place(self) -> int:
        """The place of the cache in its received log; a decision records it with each read."""
        return self.received.place

    @property
    def synced(self) -> bool:
        """Whether it has listed and a stream is open. Never latches."""
        return self._listed and isinstance(self._state, StreamingState)

    def freshness(self) -> Freshness:
        return Freshness(
            cache=self.name,
            synced=self.synced,
            phase=state_name(self._state),
            reason=self._reason,
            revision=self._revision,
            age_s=self.age_s,
        )

    def check_fresh(self, *, max_age_s: float) -> Freshness:
        """Check the cache against a staleness bound.

        Raises:
            NotSynced: it has never listed.
            Stale: it was last proved current too long ago.
        """
        self._check_listed()
        freshness = self.freshness()
        if freshness.age_s > max_age_s:
            raise Stale(
                f"the cache of {self.name} is {freshness.age_s:.1f} s old, and the decision allows {max_age_s:.1f} s"
                f" (its watcher is {freshness.phase}: {freshness.reason})",
                age_s=freshness.age_s,
                budget_s=max_age_s,
                freshness=freshness,
            )
        return freshness

    async def at_least(self, revision: Revision, *, within_s: float | None = None) -> Revision:
        """Wait until everything up to `revision` is in the cache.

        Raises:
            Behind: it is not, in time. The error names the revision that was reached.
        """
        await self.wait_floor(revision, within_s=within_s)
        return self._revision

    async def wait_synced(self, *, within_s: float | None = None) -> Freshness:
        """Wait for the first list. Raises `Behind` if it does not come in time."""
        limit_s = self._env.limits.cache_wait_s if within_s is None else within_s
        if not await self._waits.until(lambda: self._listed, revision=NO_REVISION, key=None, within_s=limit_s):
            raise self._behind(NO_REVISION, limit_s)
        return self.freshness()

    def reached(self, revision: Revision, wrote: Key | None = None) -> bool:
        """Whether the writes up to `revision` are in the cache; with `wrote`, that object's version for certain."""
        if not self._listed:
            return False
        if wrote is None or self.scope != WatchScope():
            return self._revision >= revision
        return self._revision_listed >= revision or self._known(wrote) >= revision

    def lost(self, revision: Revision, wrote: Key | None = None) -> bool:
        """Whether the stream has passed `revision` without an event for `wrote`: it lost one."""
        return self._listed and self._revision >= revision and not self.reached(revision, wrote)

    async def wait_floor(
        self, revision: Revision, *, wrote: Key | None = None, within_s: float | None = None, or_lost: bool = False
    ) -> None:
        """Wait until `reached`, or with `or_lost` until that or `lost`. Raises `Behind` if neither comes in time."""

        def holds() -> bool:
            return self.reached(revision, wrote) or (or_lost and self.lost(revision, wrote))

        limit_s = self._env.limits.cache_wait_s if within_s is None else within_s
        if not await self._waits.until(holds, revision=revision, key=wrote, within_s=limit_s):
            raise self._behind(revision, limit_s)

    def _behind(self, wanted: Revision, within_s: float) -> Behind:
        freshness = self.freshness()
        return Behind(
            f"the cache of {self.name} did not reach revision {wanted} within {within_s:.1f} s: it is at"
            f" {freshness.revision}, {freshness.age_s:.1f} s old"
            f" (its watcher is {freshness.phase}: {freshness.reason})",
            wanted=wanted,
            freshness=freshness,
        )

    def _known(self, key: Key) -> Revision:
        """The newest revision of `key` that is known, its deletion included."""
        found = self._objects.get(key)
        if found is not None:
            return found.revision
        return self._tombstones.revision_of(key)

    def statistics(self) -> CacheStatistics:
        return CacheStatistics(
            cache=self.name,
            objects=len(self._objects),
            revision=self._revision,
            age_s=self.age_s,
            place=self.place,
            tombstones=len(self._tombstones),
            indexes={name: len(state.values()) for name, state in sorted(self._indexes.items())},
            subscribers=len(self._subscribers),
            waiting=self._waits.waiting,
            relists=self._relists,
            stale_events=self._stale_events,
        )

    def request_relist(self) -> None:
        """Have the watcher list again soon, because the stream may have lost something. Many requests get one list."""
        self.relist_requested.set()

    # -- declared by controllers -------------------------------------------------------------------

    def add_index(self, index: Index) -> None:
        """Add an index; the objects in the cache are indexed at once. Safe to repeat."""
        known = self._indexes.get(index.name)
        if known is not None:
            check(known.index == index, f"{self.name} has another index called {index.name!r}: choose another name")
            return
        self._indexes[index.name] = IndexState(index, self._objects.values())

    def subscribe(self, handler: Handler, *, name: str) -> Subscription:
        """Call `handler` for every object in the cache, as added, and then for every change.

        Handlers are plain functions, called one after another in the step that changes the cache, so they must be
        quick; those of a long list take several steps (`notifying`). A handler that raises is reported and kept.
        """
        return self._subscribers.add(handler, name, tuple(self._objects.values()))

    def _index(self, index: Index) -> IndexState:
        state = self._indexes.get(index.name)
        check(state is not None and state.index == index, f"{self.name} has no index {index.name!r}: add it first")
        assert state is not None
        return state

    @property
    def notifying(self) -> bool:
        """Whether handlers have not yet been called for all that the cache holds: state that they derive lags."""
        return self._subscribers.notifying

    async def wait_notified(self) -> None:
        await self._subscribers.wait_notified()

    # -- written by the watcher only ---------------------------------------------------------------

    def begin_relist(self) -> CacheRelist:
        return CacheRelist(self)

    def empty_indexes(self) -> dict[str, IndexState]:
        return {name: IndexState(state.index, ()) for name, state in self._indexes.items()}

    def decode(self, found: Object) -> None:
        """Run the index functions on an object that is about to be added: the views they decode stay decoded.

        The step that applies a list then decodes nothing, however long the list is.
        """
        for state in self._indexes.values():
            with suppress(Exception):  # it fails again, and is reported, when the object is added
                state.index.values_of(found)

    def apply(self, event: WatchEvent) -> None:
        """Apply one event. An event older than the state here changes nothing."""
        found = event.object
        assert found is not None
        if event.revision <= self._revision:
            self._count_stale()
            return
        if event.revision > self._revision_seen:
            # An event of a later commit: the commit before it has arrived in full. This one may not have:
            # 1. a commit writes a and b; 2. the event of a arrives; 3. the stream breaks; 4. to resume after this
            # revision would lose b. A resumed stream repeats some events; they are older and change nothing.
            self._reach(self._revision_seen)
            self._revision_seen = event.revision
        key = found.key
        old = self._objects.get(key)
        if event.revision <= (old.revision if old is not None else self._tombstones.revision_of(key)):
            self._count_stale()
            return
        now_s = self._env.monotonic()
        if self._target is None:
            self._proved_s = now_s  # the stream is alive, and no probe was ahead of it
        if event.type is not EventType.DELETED:
            if old is None:
                change = CacheChange(ChangeType.ADDED, key, None, found, event.revision)
                self._tombstones.remove(key)
            else:
                change = CacheChange(ChangeType.CHANGED, key, old, found, event.revision)
            self._objects[key] = found
        else:
            self._tombstones.add(found, event.revision, missed=False)
            if old is None:
                self._waits.changed(key)
                return
            change = CacheChange(ChangeType.DELETED, key, old, None, event.revision)
            del self._objects[key]
        self.received.append(Source.EVENT, self._revision, (change,), now_s)
        if self._indexes:
            self._put(change)
        self._ordered = None
        if self._waits.by_key:
            self._waits.changed(key)
        self._subscribers.notify((change,))

    def progress(self, revision: Revision) -> None:
        """A bookmark: every event at or below `revision` has arrived."""
        if revision < self._revision:
            self._count_stale()
            return
        self._revision_seen = max(revision, self._revision_seen)
        now_s = self._env.monotonic()
        self.received.append(Source.MARK, revision, (), now_s)
        self._reach(revision)
        if self._target is None:
            self._proved_s = now_s

    def proof(self, revision: Revision, *, asked_s: float) -> None:
        """The store was at `revision` or past it at `asked_s`."""
        self._target = (revision, asked_s)
        self._prove()

    def watcher_moved(self, state: WatchState, reason: WatchReason) -> None:
        if not isinstance(state, StreamingState):
            # The next stream begins in the past: it proves nothing before the next probe.
            self._target = _UNKNOWN
        self._state, self._reason = state, reason

    def replace(
        self,
        objects: dict[Key, Object],
        revision: Revision,
        *,
        asked_s: float,
        prepared: PreparedList | None = None,
    ) -> None:
        """Apply a list in one step, so that a reader sees the old state or the new. Used by `CacheRelist`."""
        check(revision >= self._revision_seen, f"a list of {self.name} at {revision} would go back in time")
        old = self._objects
        if prepared is None:
            changes = tuple(diff_objects(old, objects, revision, missed=self._listed))
        else:
            changes = tuple(prepared.changes)
        self.received.append(Source.LIST, revision, changes, self._env.monotonic())
        indexed = prepared.indexes if prepared is not None else {}
        for state in self._indexes.values():
            made = indexed.get(state.index.name)  # none for an index that was added during the list
            for error in state.put_all(changes) if made is None else state.adopt(made):
                self._report(error, f"index {state.index.name}")
        if old or len(self._tombstones):
            self._bury(changes, revision)
        self._objects, self._ordered = objects, None
        if self._listed:
            self._missed.inc(len(changes))
        self._listed = True
        self._relists += 1
        self._revision_seen = self._revision_listed = revision
        self._proved_s = max(self._proved_s, asked_s)
        self._reach(revision)
        self._waits.wake_all()
        self._subscribers.notify(changes)

    # -- private -----------------------------------------------------------------------------------

    def _reach(self, revision: Revision) -> None:
        if revision > self._revision:
            self._revision = revision
            if self._waits.by_revision:
                self._waits.reached(revision)
            if self._target is not None:
                self._prove()

    def _prove(self) -> None:
        if self._target is not None and self._revision >= self._target[0]:
            self._proved_s = max(self._proved_s, self._target[1])
            self._target = None

    def _put(self, change: CacheChange) -> None:
        for state in self._indexes.values():
            error = state.put(change.old, change.new)
            if error is not None:
                self._report(error, f"index {state.index.name}")

    def _bury(self, changes: Sequence[CacheChange], revision: Revision) -> None:
        for change in changes:
            if change.new is None:
                assert change.old is not None
                self._tombstones.add(change.old, revision, missed=True)
            else:
                self._tombstones.remove(change.key)

    def _report(self, error: Exception, name: str) -> None:
        self._handler_failures.inc()
        self._env.spawn(_raise(error), name=f"{name} of {self.name}")

    def _count_stale(self) -> None:
        self._stale_events += 1
        self._stale.inc()


async def _raise(error: Exception) -> Coroutine[Any, Any, None]:
    raise error
