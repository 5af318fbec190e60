"""From etcd's events to commits, with proof that none is missing. Pure.

The feed and catch-up watches read etcd's watch through a `Chain`. etcd may skip events of a slow watch when
compaction overtakes it, without an error (etcd#17529, etcd#18089); the commit records make every skip visible.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from kedge.keys import NO_ORIGIN, Revision
from kedge.store.contract import Change, Entry
from kedge.store.etcd import messages as m
from kedge.store.etcd.layout import EtcdCommit, Layout, Meta


class HistoryGap(Exception):
    """Events between the chain's position and the next event are missing. Restart from a fresh read."""


class ChainLink(NamedTuple):
    """One etcd revision under the prefix: a commit, or housekeeping (without changes)."""

    revision: Revision
    changes: tuple[Change, ...]


class Chain:
    """A position in history: everything up to `etcd_revision`, that is `commits` commits, was taken."""

    def __init__(self, layout: Layout, meta: Meta, *, etcd_revision: int, commits: int) -> None:
        self.etcd_revision = etcd_revision
        self.commits = commits
        self._layout = layout
        self._meta = meta

    @property
    def revision(self) -> Revision:
        return self._meta.kedge_revision(self.etcd_revision)

    def take(self, events: Iterable[Any]) -> Iterator[ChainLink]:
        """Group `events` into commits, in order. Raises `HistoryGap` before the first that does not follow."""
        for etcd_revision, group in groupby(events, key=attrgetter("kv.mod_revision")):
            link = self._link(etcd_revision, list(group))
            if etcd_revision > self.etcd_revision:
                self.etcd_revision = etcd_revision
                yield link

    def prove_idle(self, *, etcd_revision: int, commits: int) -> bool:
        """Advance to a revision at which a linearizable read found no commit after this position."""
        if commits != self.commits:
            return False
        self.etcd_revision = max(self.etcd_revision, etcd_revision)
        return True

    def _link(self, etcd_revision: int, events: list[Any]) -> ChainLink:
        layout = self._layout
        objects = [event for event in events if event.kv.key.startswith(layout.objects)]
        record, origin = None, NO_ORIGIN
        for event in events:
            if event.kv.key == layout.meta:
                raise HistoryGap("the store was restored from a backup")
            if event.kv.key == layout.record:
                if event.kv.version != self.commits + 1:
                    raise HistoryGap(f"commit {event.kv.version} follows commit {self.commits}")
                record = EtcdCommit.decode(event.kv.value)
                origin = record.origin
        if record is not None and etcd_revision <= self.etcd_revision:
            raise HistoryGap(f"a commit at etcd revision {etcd_revision} follows {self.etcd_revision}")
        # Without a record it is housekeeping, which a read may have proved idle before its event arrived.
        if (record.changes if record is not None else 0) != len(objects):
            raise HistoryGap(f"etcd revision {etcd_revision} does not have the changes of one whole commit")
        revision = self._meta.kedge_revision(etcd_revision)
        changes = tuple([self._change(revision, event, origin) for event in objects])
        if record is not None:
            self.commits += 1
        return ChainLink(revision, changes)

    def _change(self, revision: Revision, event: Any, origin: Any) -> Change:
        kv, key = event.kv, self._layout.parse(event.kv.key)
        deleted = event.type == m.EVENT_DELETE
        created = not deleted and kv.create_revision == kv.mod_revision
        previous: Entry | None = None
        if not created:
            if not event.HasField("prev_kv"):
                raise HistoryGap(f"etcd no longer has the version that {key} had before revision {revision}")
            previous = self._layout.entry(event.prev_kv, self._meta)
        entry = None if deleted else self._layout.entry(kv, self._meta)
        return Change(revision, key, entry, previous, origin)
