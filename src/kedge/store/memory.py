"""A store in this process's memory: for simulation and for tests. Nothing survives the process.

Every call suspends once before it acts, so that no race is hidden by an `await` that never suspends.
"""

from __future__ import annotations

import types
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

from kedge.env import Env
from kedge.errors import Conflict, Fenced, Unavailable
from kedge.keys import NO_ORIGIN, NO_REVISION, Fence, Key, Origin, Revision
from kedge.store.backup import StoreExport, sliced
from kedge.store.contract import (
    RESTORE_BUMP,
    Check,
    Entry,
    Listing,
    Reading,
    StoreStatistics,
    StoreWatch,
    Write,
    check_commit,
    latest_only_keys,
)
from kedge.store.feed import Feed
from kedge.store.versions import Versions


@dataclass(frozen=True, slots=True)
class MemoryBackup:
    """Every object of a memory store at one revision."""

    entries: tuple[Entry, ...]
    revision: Revision


class MemoryStore:
    """The plainest implementation of the contract."""

    def __init__(self, env: Env, *, backup: MemoryBackup | None = None) -> None:
        self._env = env
        self.incarnation = env.new_uid()
        start = backup.revision + RESTORE_BUMP if backup is not None else NO_REVISION
        self._versions = Versions(backup.entries if backup is not None else ())
        self._feed = Feed(env, revision=start, compacted=start)
        self._commits = 0
        self._conflicts = 0
        self._closed = False

    async def commit(
        self,
        checks: Sequence[Check],
        writes: Sequence[Write],
        *,
        fence: Fence | None = None,
        origin: Origin = NO_ORIGIN,
    ) -> Revision:
        await _turn()
        return self.commit_nowait(checks, writes, fence=fence, origin=origin)

    def commit_nowait(
        self,
        checks: Sequence[Check],
        writes: Sequence[Write],
        *,
        fence: Fence | None = None,
        origin: Origin = NO_ORIGIN,
    ) -> Revision:
        """`commit` without suspending: for a caller that has suspended already."""
        check_commit(checks, writes, self._env.limits, origin=origin)
        self._check_open()
        try:
            self._versions.prove(checks, writes, fence)
        except (Conflict, Fenced):
            self._conflicts += 1
            raise
        if not writes:
            return self._feed.revision
        revision = self._feed.revision + 1
        changes = self._versions.apply(writes, revision, origin)
        self._commits += 1
        self._feed.publish(revision, changes, latest_only_keys(writes))
        return revision

    async def get(self, keys: Sequence[Key], *, at: Revision = NO_REVISION) -> Reading:
        await _turn()
        await self._wait_reached(at)
        return self.get_nowait(keys, at=at)

    def get_nowait(self, keys: Sequence[Key], *, at: Revision = NO_REVISION) -> Reading:
        """`get` without suspending; `at` must not be a future revision."""
        self._check_open()
        return self._versions.get(keys, self._feed, at=at)

    async def list(
        self,
        kind: str,
        *,
        namespace: str = "",
        at: Revision = NO_REVISION,
        start_after: Key | None = None,
        limit: int = 0,
    ) -> Listing:
        await _turn()
        await self._wait_reached(at)
        return self.list_nowait(kind, namespace=namespace, at=at, start_after=start_after, limit=limit)

    def list_nowait(
        self,
        kind: str,
        *,
        namespace: str = "",
        at: Revision = NO_REVISION,
        start_after: Key | None = None,
        limit: int = 0,
    ) -> Listing:
        """`list` without suspending; `at` must not be a future revision."""
        self._check_open()
        return self._versions.list(kind, self._feed, namespace=namespace, at=at, start_after=start_after, limit=limit)

    async def watch(self, kind: str, *, after: Revision, namespace: str = "") -> StoreWatch:
        await _turn()
        self._check_open()
        return await self._feed.watch(kind, after=after, namespace=namespace)

    async def compact(self, revision: Revision) -> None:
        await _turn()
        self._check_open()
        self._feed.check_compactable(revision)
        self._feed.compact(revision)

    async def revision(self) -> Revision:
        await _turn()
        return self.revision_nowait()

    def revision_nowait(self) -> Revision:
        self._check_open()
        return self._feed.revision

    def entries(self) -> Iterator[Entry]:
        """Every object, in no order. For invariants, which must not read the caches that they check."""
        return iter(self._versions)

    async def export(self) -> StoreExport:
        """All of it at one revision, for a backup."""
        self._check_open()
        slices = sliced(tuple(self._versions), self._env.limits.backup_rows_max)
        return StoreExport("memory", self.incarnation, self._feed.revision, slices)

    def backup(self) -> MemoryBackup:
        return MemoryBackup(tuple(self._versions), self._feed.revision)

    def statistics(self) -> StoreStatistics:
        return self._versions.statistics(
            self._feed, backend="memory", incarnation=self.incarnation, commits=self._commits, conflicts=self._conflicts
        )

    async def close(self) -> None:
        self._closed = True
        self._feed.close()

    async def _wait_reached(self, at: Revision) -> None:
        self._check_open()
        if at > self._feed.revision:
            await self._feed.wait_reached(at)

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the store is closed: open it again")


@types.coroutine
def _turn() -> Generator[None, None, None]:
    """Suspend once, as `asyncio.sleep(0)` but cheaper: a simulation spends much of its time here."""
    yield
