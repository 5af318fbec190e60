"""The objects of an in-process store: the newest version of each, in key order.

`memory` and `sqlite` share it. It checks a commit and computes its changes; it knows nothing of disks. With a `Feed` it
also reads past revisions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, Final

from sortedcontainers import SortedList

from kedge.errors import Compacted, Conflict, Fenced
from kedge.keys import NO_REVISION, Fence, Key, Origin, Revision
from kedge.store.contract import (
    Absent,
    AtRevision,
    Change,
    Check,
    DeleteKey,
    Entry,
    Listing,
    Reading,
    StoreStatistics,
    Write,
)
from kedge.store.feed import Feed

_UNSORTED_MAX: Final = 1_000
"""New keys of a kind before they are sorted in: the next list, which sorts the rest, is no long step of the loop."""
_KEY_OF: Final = attrgetter("key")


class Versions:
    """The newest version of every object."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._newest: dict[Key, Entry] = {}
        self._keys: dict[str, SortedList[Key]] = {}  # by kind; together with `_unsorted`, the keys of `_newest`
        self._unsorted: dict[str, list[Key]] = {}  # created since their kind was last listed
        for entry in entries:
            self._set(entry, new=True)

    def __len__(self) -> int:
        return len(self._newest)

    def newest(self, key: Key) -> Entry | None:
        return self._newest.get(key)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._newest.values())

    # -- commits -----------------------------------------------------------------------------------

    def prove(self, checks: Sequence[Check], writes: Sequence[Write], fence: Fence | None) -> None:
        """Raise if a check fails. A lost lease is reported first: its holder must stop, not retry."""
        newest = self._newest
        if fence is not None:
            entry = newest.get(fence.key)
            if entry is None or entry.modified != fence.revision:
                raise fenced(fence, entry)
        for each in checks:
            entry = newest.get(each.key)
            # No `match`: it costs several times as much as the check.
            if type(each) is AtRevision:
                if entry is None or entry.modified != each.revision:
                    raise conflict(each, entry)
            elif (entry is None) is not isinstance(each, Absent):
                raise conflict(each, entry)
        for write in writes:
            if isinstance(write, DeleteKey) and write.key not in newest:
                raise conflict(write, None)

    def apply(self, writes: Sequence[Write], revision: Revision, origin: Origin) -> list[Change]:
        """Apply the writes. The caller has called `prove`, and publishes the changes."""
        newest = self._newest
        changes = []
        for write in writes:
            key = write.key
            previous = newest.get(key)
            entry = None
            if isinstance(write, DeleteKey):
                self._remove(key)
            elif previous is None:
                entry = Entry(key, write.value, revision, revision, origin)
                self._set(entry, new=True)
            else:
                key = previous.key  # one key object for all versions
                entry = newest[key] = Entry(key, write.value, previous.created, revision, origin)
            changes.append(Change(revision, key, entry, previous, origin))
        return changes

    def undo(self, changes: Sequence[Change]) -> None:
        """Undo the changes that `apply` returned."""
        for change in reversed(changes):
            if change.previous is not None:
                self._set(change.previous, new=change.entry is None)
            else:
                self._remove(change.key)

    def redo(self, changes: Sequence[Change]) -> None:
        """Apply changes again that were undone, before anything else was applied."""
        for change in changes:
            if change.entry is not None:
                self._set(change.entry, new=change.previous is None)
            else:
                self._remove(change.key)

    # -- reads -------------------------------------------------------------------------------------

    def get(self, keys: Sequence[Key], feed: Feed, *, at: Revision) -> Reading:
        if at == NO_REVISION or at == feed.revision:
            return Reading(tuple(map(self._newest.get, keys)), feed.revision)
        feed.check_readable(at)
        firsts = {kind: feed.first_changes_after(kind, at) for kind in dict.fromkeys(key.kind for key in keys)}
        entries = []
        for key in keys:
            first = firsts[key.kind].get(key)
            entries.append(self._newest.get(key) if first is None else as_of(first, at))
        return Reading(tuple(entries), at)

    def list(
        self, kind: str, feed: Feed, *, namespace: str, at: Revision, start_after: Key | None, limit: int
    ) -> Listing:
        keys = self._sorted_keys(kind)
        low = Key(kind, namespace, "")  # no object has an empty name, so no key equals it
        if start_after is not None and start_after > low:
            low = start_after
        # No namespace sorts between "a" and "a\0", so the next namespace begins here.
        high = Key(kind, namespace + "\0", "") if namespace else None
        if at not in (NO_REVISION, feed.revision):
            feed.check_readable(at)
            return self._list_then(keys, feed.first_changes_after(kind, at), at, low, high, limit)
        start = keys.bisect_right(low)
        end = keys.bisect_left(high) if high is not None else len(keys)
        total = max(0, end - start)
        count = min(limit, total) if limit else total
        entries = [self._newest[key] for key in keys.islice(start, start + count)]
        return Listing(entries, feed.revision, total - count)

    async def list_in_slices(
        self,
        kind: str,
        feed: Feed,
        slice_max: int,
        *,
        namespace: str,
        at: Revision,
        start_after: Key | None,
        limit: int,
    ) -> Listing:
        """As `list`. After each `slice_max` entries the event loop continues; all of them are at one revision."""
        found = self.list(
            kind, feed, namespace=namespace, at=at, start_after=start_after, limit=min(limit or slice_max, slice_max)
        )
        entries, remaining = found.entries, found.remaining
        if not remaining or len(entries) == limit:
            return found
        entries = list(entries)
        while remaining and len(entries) != limit:
            await asyncio.sleep(0)
            count = min(limit - len(entries), slice_max) if limit else slice_max
            last = entries[-1].key
            try:
                part = self.list(kind, feed, namespace=namespace, at=found.revision, start_after=last, limit=count)
            except Compacted:  # in mid-list, so history is very short: a whole list in one step is at one revision too
                return self.list(kind, feed, namespace=namespace, at=at, start_after=start_after, limit=limit)
            entries += part.entries
            remaining = part.remaining
        return Listing(entries, found.revision, remaining)

    def _list_then(
        self,
        keys: SortedList[Key],
        firsts: dict[Key, Change],
        at: Revision,
        low: Key,
        high: Key | None,
        limit: int,
    ) -> Listing:
        """A page at revision `at`: unchanged objects and old versions of changed ones. Its cost grows with changes."""
        touched = {key: first for key, first in firsts.items() if key > low and (high is None or key < high)}
        then = {key: entry for key, first in touched.items() if (entry := as_of(first, at)) is not None}
        start = keys.bisect_right(low)
        end = keys.bisect_left(high) if high is not None else len(keys)
        total = max(0, end - start) - sum(key in self._newest for key in touched) + len(then)
        count = min(limit, total) if limit else total
        untouched = keys.islice(start, max(start, end))
        if not touched:
            return Listing([self._newest[key] for key in islice(untouched, count)], at, total - count)
        untouched = (key for key in untouched if key not in touched)
        page = [*[self._newest[key] for key in islice(untouched, count)], *then.values()]
        page.sort(key=_KEY_OF)  # quicker than a merge: all but `then` is in order
        return Listing(page[:count], at, total - count)

    def statistics(self, feed: Feed, **counts: Any) -> StoreStatistics:
        return StoreStatistics(
            revision=feed.revision,
            compacted=feed.compacted,
            objects=len(self),
            history_changes=feed.history_changes,
            watchers=feed.watchers,
            **counts,
        )

    # -- private -----------------------------------------------------------------------------------

    def _set(self, entry: Entry, *, new: bool) -> None:
        key = entry.key
        self._newest[key] = entry
        if new:
            # Sorted by the next list: sorting many at once is cheaper, and no commit waits for it.
            unsorted = self._unsorted.get(key.kind)
            if unsorted is None:
                unsorted = self._unsorted[key.kind] = []
            unsorted.append(key)
            if len(unsorted) >= _UNSORTED_MAX:
                self._sorted_keys(key.kind)

    def _remove(self, key: Key) -> None:
        del self._newest[key]
        self._sorted_keys(key.kind).remove(key)

    def _sorted_keys(self, kind: str) -> SortedList[Key]:
        keys = self._keys.get(kind)
        if keys is None:
            keys = self._keys[kind] = SortedList()
        if unsorted := self._unsorted.pop(kind, None):
            keys.update(unsorted)
        return keys


def as_of(first: Change, at: Revision) -> Entry | None:
    """The version of an object at revision `at`, given its first change after it."""
    previous = first.previous
    if previous is None:
        # A `latest_only` object whose replaced version is gone: return the version that replaced it.
        entry = first.entry
        return entry if entry is not None and entry.created <= at else None
    return previous if previous.created <= at else None


def conflict(failed: Check | DeleteKey, entry: Entry | None) -> Conflict:
    """The error for a check that failed."""
    key = failed.key
    found = entry.modified if entry is not None else NO_REVISION
    match failed:
        case AtRevision(_, revision) if entry is not None:
            why = f"{key} is at revision {found}, not at {revision}: read it and decide again"
        case Absent():
            why = f"{key} exists already, at revision {found}: read it and decide again"
        case _:
            why = f"{key} does not exist: read it and decide again"
    return Conflict(why, key=key, revision=found)


def fenced(fence: Fence, entry: Entry | None) -> Fenced:
    """The error for a fence whose lease has a new holder."""
    found = entry.modified if entry is not None else NO_REVISION
    return Fenced(
        f"the lease behind {fence.key} has a new holder since revision {found}; this token is {fence.revision}: stop",
        key=fence.key,
        revision=found,
    )
