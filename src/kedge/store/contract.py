"""The contract of a store: one integer revision, atomic commits, and watches without gaps.

Backends (`memory`, `sqlite`, `etcd`) implement `Store` and pass `conformance.check_store` unchanged. A store
keeps bytes under keys and does not decode them; `api` defines their meaning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import msgspec

from kedge.errors import BadRequest, TooLarge
from kedge.keys import NO_ORIGIN, NO_REVISION, Fence, Key, Origin, Revision
from kedge.limits import Limits

RESTORE_BUMP = 1_000_000_000
"""How far a restored backup advances its revision: past any revision that the original can have reached since."""

# -- versions and changes --------------------------------------------------------------------------


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One version of one object. Shared by every reader, so frozen."""

    key: Key
    value: bytes
    created: Revision
    modified: Revision
    origin: Origin = NO_ORIGIN


class Change(msgspec.Struct, frozen=True, gc=False):
    """One object in one commit: created if `entry.created == revision`, deleted if `entry` is None."""

    revision: Revision
    key: Key
    entry: Entry | None
    previous: Entry | None
    """The version that this one replaced. None for a creation; for a `latest_only` object it may always be None,
    or a version that the watcher never got."""
    origin: Origin = NO_ORIGIN

    @property
    def created(self) -> bool:
        return self.entry is not None and self.entry.created == self.revision

    @property
    def deleted(self) -> bool:
        return self.entry is None


# -- commits ---------------------------------------------------------------------------------------


class AtRevision(msgspec.Struct, frozen=True, gc=False):
    """The key exists and was last modified at this revision."""

    key: Key
    revision: Revision


class Absent(msgspec.Struct, frozen=True, gc=False):
    """The key does not exist."""

    key: Key


class Present(msgspec.Struct, frozen=True, gc=False):
    """The key exists, at any revision."""

    key: Key


Check: TypeAlias = AtRevision | Absent | Present


class Put(msgspec.Struct, frozen=True, gc=False):
    """Create the key, or replace its value."""

    key: Key
    value: bytes
    latest_only: bool = False
    """For leases and heartbeats: the replaced version need not be kept, and watchers may skip it."""


class DeleteKey(msgspec.Struct, frozen=True, gc=False):
    """Remove the key. Implies `Present`: a delete that finds nothing is a conflict."""

    key: Key

    @property
    def latest_only(self) -> bool:
        return False


Write: TypeAlias = Put | DeleteKey


# -- reads -----------------------------------------------------------------------------------------


class Reading(msgspec.Struct, frozen=True, gc=False):
    """The result of `get`: one entry for each key, in order, all at one revision."""

    entries: tuple[Entry | None, ...]
    revision: Revision


class Listing(NamedTuple):
    """One page, in key order, all at one revision. Read the next with `at=revision, start_after=last key`."""

    entries: list[Entry]
    revision: Revision
    remaining: int
    """How many objects follow; 0 on the last page."""


class Batch(NamedTuple):
    """One item of a watch: changes in revision order, and the revision that the watch has reached.

    Every batch is a progress mark: no change at or below `revision` will follow. An idle watch sends batches
    with no changes. A batch never splits a commit.
    """

    changes: tuple[Change, ...]
    revision: Revision
    last: bool = False
    """No other batch was ready when it was taken: a reader that drains need not try again before the next wake-up.
    False means that it is not known."""


class StoreWatch(Protocol):
    """A stream of batches. Ends only by an error or by `close`.

    There are two ways to read it, one at a time: iterate it, or set `on_ready` and drain it with `take_nowait`.
    """

    on_ready: Callable[[], None] | None
    """Called when `take_nowait` may have something to return or to raise, in the step that makes it so; spurious calls
    are allowed. Drain once after setting it: a batch that is ready already is not announced. If the callback raises,
    the error is reported and the watch ends with `Unavailable`, because a batch that it took may be lost; the commit
    that caused the call is not affected."""

    @property
    def pushes(self) -> bool:
        """Whether draining saves a task, because batches are in memory. Otherwise `on_ready` costs a task."""

    @property
    def revision(self) -> Revision:
        """Everything at or below it has been returned. Resume with `after=revision`."""

    def __aiter__(self) -> StoreWatch: ...

    async def __anext__(self) -> Batch:
        """
        Raises:
            Compacted: history this watch still needed is gone. List again.
            Lagged: it fell behind `Limits.watch_backlog_max`. Watch again after `revision`.
            Unavailable: the store cannot be reached. Watch again after `revision`.
        """

    def take_nowait(self) -> Batch | None:
        """The next batch, or None if none is ready. Raises as `__anext__` does, `StopAsyncIteration` after `close`."""

    def request_progress(self) -> None:
        """Request a batch soon, even an empty one."""

    def close(self) -> None:
        """End the stream. A waiting reader sees the end of iteration."""


class StoreStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counters and state of a store."""

    backend: str
    incarnation: str
    revision: Revision
    compacted: Revision
    objects: int
    history_changes: int
    watchers: int
    commits: int
    conflicts: int
    sync_s_max: float = 0.0
    alarms: tuple[str, ...] = ()
    """Conditions that need an operator, as messages; empty when there is none."""


class Store(Protocol):
    """A revisioned object store. Every backend passes `kedge.store.conformance.check_store` unchanged."""

    @property
    def incarnation(self) -> str:
        """Changes when the store is created or restored from a backup, or has lost commits; never otherwise."""

    async def commit(
        self,
        checks: Sequence[Check],
        writes: Sequence[Write],
        *,
        fence: Fence | None = None,
        origin: Origin = NO_ORIGIN,
    ) -> Revision:
        """Apply every write or none, at one new revision. With no writes, prove the checks at the revision returned.

        Raises:
            Conflict: a check failed; `key` is its key, `revision` the key's revision. Nothing was written.
            Fenced: the lease behind `fence` has a new holder. Nothing was written. Stop acting as its holder.
            BadRequest, TooLarge: over `Limits.commit_ops_max` or `commit_bytes_max`, or a key written twice.
            Unavailable: nothing was written.
            OutcomeUnknown: it may have been written. Read before anything else.
        """

    async def get(self, keys: Sequence[Key], *, at: Revision = NO_REVISION) -> Reading:
        """Read keys at one revision: the newest, or `at`.

        Raises:
            Compacted: `at` is no longer in history.
            Unavailable: `at` is past the newest revision and was not reached in time, or the store is unreachable.
        """

    def get_nowait(self, keys: Sequence[Key]) -> Reading | None:
        """`get` of the newest revision, without suspending; None on a store that must ask another process."""

    async def list(
        self,
        kind: str,
        *,
        namespace: str = "",
        at: Revision = NO_REVISION,
        start_after: Key | None = None,
        limit: int = 0,
    ) -> Listing:
        """Read a kind, or one namespace of it, in key order. Raises as `get` does. `limit=0` means all.

        A `latest_only` object read `at` a past revision may be a newer version.
        """

    async def watch(self, kind: str, *, after: Revision, namespace: str = "") -> StoreWatch:
        """Stream every change past `after`; of all kinds if `kind` is empty.

        Raises:
            Compacted: `after` is no longer in history. List again.
            Unavailable: `after` is past the newest revision and was not reached in time.
        """

    async def compact(self, revision: Revision) -> None:
        """Drop versions that were replaced at or before `revision`. Reads and watches from it on still work.

        A revision already compacted is no error; one past the newest is a `BadRequest`.
        """

    async def revision(self) -> Revision:
        """The newest revision, by a linearizable read."""

    def statistics(self) -> StoreStatistics: ...

    async def close(self) -> None:
        """Release everything. Open watches end."""


def latest_only_keys(writes: Sequence[Write]) -> Collection[Key]:
    """The keys whose replaced versions need not be kept."""
    for write in writes:
        if write.latest_only:
            return {write.key for write in writes if write.latest_only}
    return ()


def check_key(key: Key) -> None:
    """Reject a key that a backend could not store, sort or read back."""
    kind, namespace, name = key
    whole = f"{kind}{namespace}{name}"
    if not kind or not name or "/" in whole or "\0" in whole:
        raise BadRequest(
            f"{key!r} is not a valid key: kind and name must not be empty, and no part may contain '/' or NUL", key=key
        )
    if not whole.isascii() and not _encodable(whole):
        raise BadRequest(f"{key!r} is not a valid key: it is not valid Unicode", key=key)


def check_commit(
    checks: Sequence[Check], writes: Sequence[Write], limits: Limits, *, origin: Origin = NO_ORIGIN
) -> int:
    """Check a commit against the limits of every backend; return its size in bytes."""
    ops = len(checks) + len(writes)
    if ops > limits.commit_ops_max:
        raise BadRequest(
            f"a commit of {ops} operations is over the limit of {limits.commit_ops_max}: split it into smaller ones"
        )
    size = 0
    for write in writes:
        check_key(write.key)
        if isinstance(write, Put):
            if type(write.value) is not bytes:
                raise BadRequest(f"the value of {write.key} is not bytes: encode it", key=write.key)
            size += len(write.value)
    if len(writes) > 1 and len({write.key for write in writes}) < len(writes):
        counts = Counter(write.key for write in writes)
        twice = next(key for key, count in counts.items() if count > 1)
        raise BadRequest(f"{twice} is written twice in one commit: merge the writes", key=twice)
    if size > limits.commit_bytes_max:
        largest = max((w for w in writes if isinstance(w, Put)), key=lambda w: len(w.value))
        raise TooLarge(
            f"a commit of {size} bytes is over the limit of {limits.commit_bytes_max}"
            f" (its largest object is {largest.key} with {len(largest.value)}): make it smaller",
            key=largest.key,
        )
    if origin is not NO_ORIGIN:
        operation, decision, caller, groups = origin
        for text in (f"{operation}{decision}{caller}", *groups):
            if not text.isascii() and not _encodable(text):
                raise BadRequest(f"the origin {origin!r} is not valid Unicode: encode it")
    return size


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
