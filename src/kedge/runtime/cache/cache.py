"""A local copy of one kind: fast to read, indexed, and honest about how far and how old it is.

One writer, the watcher, through `begin_relist`, `apply`, `progress` and `proof`; many readers, who get frozen objects
and can write nothing back. The cache finds; whoever claims or destroys proves it again at the authority.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kedge.api.kinds import Kind
from kedge.api.objects import Object
from kedge.api.requests import EventType, ListOptions, WatchEvent
from kedge.api.selectors import LabelSelector
from kedge.client.contract import Client
from kedge.env import Env
from kedge.errors import check
from kedge.keys import NO_REVISION, Key, Revision
from kedge.runtime.cache.indexes import Index, IndexState
from kedge.runtime.cache.reads import Behind, Freshness, NotSynced, Read, Stale, Tombstone
from kedge.runtime.cache.received import CacheChange, ChangeType, ReceivedLog, Source
from kedge.runtime.cache.relist import CacheRelist, diff_objects
from kedge.runtime.cache.revision_waiters import RevisionWaiters
from kedge.runtime.cache.subscribers import Handler, Subscribers, Subscription
from kedge.runtime.cache.tombstones import Tombstones
from kedge.runtime.watch_states import StoppedState, StreamingState, WatchReason, WatchScope, WatchState, state_name

_UNKNOWN: tuple[Revision, float] = (2**63, -math.inf)
"""How far the authority is, before it is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStatistics:
    """A cache's own account of itself."""

    cache: str
    objects: int
    revision: Revision
    age_s: float
    place: int
    tombstones: int
    indexes: dict[str, int]
    """How many values each index has."""
    subscribers: int
    waiting: int
    relists: int
    stale_events: int
    """Events that were older than what was known: delivered twice, or by a server that lags."""


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
        """The objects in key order, made when somebody lists and dropped at the next change."""
        self._indexes: dict[str, IndexState] = {}
        self._tombstones = Tombstones(env)
        self._subscribers = Subscribers(self._report)
        self._waits = RevisionWaiters()
        self.received = ReceivedLog(env.limits)
        self._revision: Revision = NO_REVISION
        self._revision_seen: Revision = NO_REVISION
        """At least `_revision`. Above it, while a commit may still have more to tell."""
        self._revision_listed: Revision = NO_REVISION
        self._listed = False
        self._proved_s = -math.inf
        self._target: tuple[Revision, float] | None = _UNKNOWN
        """What the authority last said of itself and when it was asked, until the cache has come so far."""
        self._state: WatchState = StoppedState()
        self._reason = WatchReason.STOPPED
        self._relists = 0
        self._stale_events = 0
        self._count(env)

    def _count(self, env: Env) -> None:
        gauge, labels, name = env.metrics.gauge, ("cache",), self.name
        gauges: tuple[tuple[str, str, Callable[[], float]], ...] = (
            ("kedge_cache_objects", "Objects held", lambda: len(self._objects)),
            ("kedge_cache_revision", "Everything up to it is held", lambda: self._revision),
            ("kedge_cache_age_seconds", "Since it was proved current", lambda: self.age_s),
            ("kedge_cache_tombstones", "Deletions remembered", lambda: len(self._tombstones)),
            ("kedge_cache_received_log", "Things received and kept", lambda: len(self.received)),
            ("kedge_cache_waiting", "Readers that wait for a revision", lambda: self._waits.waiting),
        )
        for series, words, value in gauges:
            gauge(series, words, labels).labels(name).set_function(value)
        counter = env.metrics.counter
        self._stale = counter("kedge_cache_stale_events_total", "Events older than what was known", labels).labels(name)
        self._missed = counter("kedge_cache_missed_changes_total", "Changes that only a list showed", labels).labels(
            name
        )
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
            objects = self._objects
            found = self._ordered = tuple(objects[key] for key in sorted(objects))
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
        """Read the authority, past this cache. The revision is one at which the answer was true, and a sound floor."""
        asked_s = self._env.monotonic()
        found, revision = await self._client.find(key), NO_REVISION
        if found is None:
            # An absence has no revision of its own: ask how far the authority is, then look once more.
            asked_s = self._env.monotonic()
            revision = await self.fresh_revision()
            found = await self._client.find(key)
        if found is not None:
            revision = max(revision, found.revision)
        return Read(found, revision, self._env.monotonic() - asked_s, -1)

    async def fresh_revision(self) -> Revision:
        """How far the authority is: whatever was committed before the call is at or below it."""
        return (await self._client.list(self.kind, ListOptions(limit=1, namespace=self.scope.namespace))).revision

    def _read(self, value: Any) -> Read[Any]:
        return Read(value, self._revision, self._env.monotonic() - self._proved_s, self.received.place)

    def _check_listed(self) -> None:
        if not self._listed:
            raise NotSynced(f"the cache of {self.name} has not listed yet: wait for it before reading")

    # -- how good it is ----------------------------------------------------------------------------

    @property
    def revision(self) -> Revision:
        """Everything at or below it is here."""
        return self._revision

    @property
    def revision_seen(self) -> Revision:
        """The highest revision anything was seen at."""
        return self._revision_seen

    @property
    def age_s(self) -> float:
        """Since it was last proved to hold everything there was; infinite before the first list.

        Proof is a list, an answer of the authority that the cache has caught up with, and, once it has caught up,
        whatever the stream brings. How long that was under way is not known here: a stream that falls behind by more
        than `Limits.watch_probe_s` is noticed by the next answer, and proves nothing until it has caught up.
        """
        return self._env.monotonic() - self._proved_s

    @property
    def place(self) -> int:
        """Where in the received log the cache stands: what a decision records with each read."""
        return self.received.place

    @property
    def synced(self) -> bool:
        """Whether it has listed and a stream brings what follows. Never latches."""
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
        """Hold the cache to a staleness budget.

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
        """Wait until everything up to `revision` is here.

        Raises:
            Behind: it is not, in time; says what there is.
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
        """Whether what was written at `revision` is here; if `wrote` is given, that object's version for certain."""
        if not self._listed:
            return False
        if wrote is None or self.scope != WatchScope():
            return self._revision >= revision
        return self._revision_listed >= revision or self._known(wrote) >= revision

    def lost(self, revision: Revision, wrote: Key | None = None) -> bool:
        """Whether the stream has gone past `revision` without bringing `wrote`: it lost an event."""
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
        """The newest revision at which something is known of `key`."""
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
        """Keep an index from now on; what is here already is indexed at once. Safe to repeat."""
        known = self._indexes.get(index.name)
        if known is not None:
            check(known.index == index, f"{self.name} has another index called {index.name!r}: choose another name")
            return
        self._indexes[index.name] = IndexState(index, self._objects.values())

    def subscribe(self, handler: Handler, *, name: str) -> Subscription:
        """Be told of every change; of what is here already, as added. A handler that raises is reported and kept.

        Handlers are plain functions, called one after another in the step that changes the cache: quick ones only.
        """
        here = [CacheChange(ChangeType.ADDED, each.key, None, each, each.revision) for each in self._objects.values()]
        return self._subscribers.add(handler, name, here)

    def _index(self, index: Index) -> IndexState:
        state = self._indexes.get(index.name)
        check(state is not None and state.index == index, f"{self.name} has no index {index.name!r}: add it first")
        assert state is not None
        return state

    # -- written by the watcher, and by nobody else ------------------------------------------------

    def begin_relist(self) -> CacheRelist:
        return CacheRelist(self)

    def decode(self, found: Object) -> None:
        """Let the indexes look at an object that is on its way: what they decode stays decoded.

        A list then becomes the cache in a step that decodes nothing, however long the list is.
        """
        for state in self._indexes.values():
            with suppress(Exception):  # it fails again, and is reported, when the object is here
                state.index.values_of(found)

    def apply(self, event: WatchEvent) -> None:
        """Take one event. What is older than what is known changes nothing."""
        found = event.object
        assert found is not None
        if event.revision <= self._revision:
            self._count_stale()
            return
        if event.revision > self._revision_seen:
            # What comes next is of a later commit, so the one before was told whole. This one may not be:
            # 1. a commit writes a and b; 2. the event of a arrives; 3. the stream breaks; 4. to resume after this
            # revision would lose b. One that resumes tells again what lies between: what is known stays as it is.
            self._reach(self._revision_seen)
            self._revision_seen = event.revision
        key = found.key
        old = self._objects.get(key)
        if event.revision <= (old.revision if old is not None else self._tombstones.revision_of(key)):
            self._count_stale()
            return
        if self._target is None:
            self._proved_s = self._env.monotonic()  # something came, and the authority is not known to be further
        if event.type is not EventType.DELETED:
            if old is None:
                change = CacheChange(ChangeType.ADDED, key, None, found, event.revision)
                self._tombstones.raise_again(key)
            else:
                change = CacheChange(ChangeType.CHANGED, key, old, found, event.revision)
            self._objects[key] = found
        else:
            self._tombstones.bury(found, event.revision, missed=False)
            if old is None:
                self._waits.changed(key)
                return
            change = CacheChange(ChangeType.DELETED, key, old, None, event.revision)
            del self._objects[key]
        self.received.append(Source.EVENT, self._revision, (change,))
        if self._indexes:
            self._put(change)
        self._ordered = None
        if self._waits.by_key:
            self._waits.changed(key)
        self._subscribers.tell((change,))

    def progress(self, revision: Revision) -> None:
        """Everything at or below `revision` has been told."""
        if revision < self._revision:
            self._count_stale()
            return
        self._revision_seen = max(revision, self._revision_seen)
        self.received.append(Source.MARK, revision, ())
        self._reach(revision)
        if self._target is None:
            self._proved_s = self._env.monotonic()

    def proof(self, revision: Revision, *, asked_s: float) -> None:
        """The authority was at `revision`, or past it, when it was asked."""
        self._target = (revision, asked_s)
        self._prove()

    def watcher_moved(self, state: WatchState, reason: WatchReason) -> None:
        if not isinstance(state, StreamingState):
            # The next stream begins in the past: until the authority is asked, it proves nothing.
            self._target = _UNKNOWN
        self._state, self._reason = state, reason

    def replace(self, objects: dict[Key, Object], revision: Revision, *, asked_s: float) -> None:
        """Become what a list says: in one step, so that a reader sees the old or the new. Used by `CacheRelist`."""
        check(revision >= self._revision_seen, f"a list of {self.name} at {revision} would go back in time")
        old = self._objects
        changes = tuple(diff_objects(old, objects, revision, missed=self._listed))
        self.received.append(Source.LIST, revision, changes)
        for change in changes:
            self._put(change)
            if change.new is None:
                assert change.old is not None
                self._tombstones.bury(change.old, revision, missed=True)
            else:
                self._tombstones.raise_again(change.key)
        self._objects, self._ordered = objects, None
        if self._listed:
            self._missed.inc(len(changes))
        self._listed = True
        self._relists += 1
        self._revision_seen = self._revision_listed = revision
        self._proved_s = max(self._proved_s, asked_s)
        self._reach(revision)
        self._waits.everybody()
        self._subscribers.tell(changes)

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

    def _report(self, error: Exception, name: str) -> None:
        self._handler_failures.inc()
        self._env.spawn(_raise(error), name=f"{name} of {self.name}")

    def _count_stale(self) -> None:
        self._stale_events += 1
        self._stale.inc()


async def _raise(error: Exception) -> Coroutine[Any, Any, None]:
    raise error
