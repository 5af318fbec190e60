"""Records the history of a running cluster over its API: the state at one revision, then every commit after it.

One watch for each kind; a commit is complete when every watch has passed its revision. A broken watch resumes where it
broke, so a history has no gaps: if the server no longer has what is missing, recording fails.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple

from kedge.api.kinds import KINDS, Kind
from kedge.api.objects import Object
from kedge.api.requests import EventType, ListOptions, WatchOptions
from kedge.api.wellknown import EVENT_KIND
from kedge.client.contract import Client
from kedge.env import Env
from kedge.errors import Compacted, OperatingError, Unavailable
from kedge.keys import Key, Revision
from kedge.observe.records import CommitRecord, StoreState

_RETRY_S = 0.2
RECORDED = tuple(kind for kind in KINDS if kind.key_kind != EVENT_KIND)


class PastRevision(NamedTuple):
    """The store was at this revision at this time."""

    at: datetime
    revision: Revision


class PastRevisions:
    """When the store was at which revision, for the last minutes: a history that begins in the past needs the times of
    its commits. `run` it."""

    def __init__(self, client: Client, env: Env, kind: Kind = RECORDED[0]) -> None:
        self._client, self._env, self._kind = client, env, kind
        self._marks: deque[PastRevision] = deque()

    async def run(self) -> None:
        """Look every `Limits.history_mark_s`."""
        while True:
            await self.look()
            await asyncio.sleep(self._env.limits.history_mark_s)

    async def look(self) -> None:
        """Add a mark. A server that does not answer gives none."""
        limits, now = self._env.limits, self._env.now()
        with suppress(OperatingError):
            found = await self._client.list(self._kind, ListOptions(limit=1))
            if found.revision:  # a store without a commit has no past
                self._marks.append(PastRevision(self._env.now(), found.revision))
        while (
            self._marks and (now - self._marks[0].at).total_seconds() > limits.decision_ring_s + limits.history_mark_s
        ):
            self._marks.popleft()

    def from_time(self, since: datetime) -> list[PastRevision]:
        """The last mark before `since`, if there is one, and all later ones."""
        before = sum(1 for each in self._marks if each.at <= since)
        return list(self._marks)[max(0, before - 1) :]

    def time_of(self, revision: Revision) -> datetime | None:
        """When the commit was made, at most `Limits.history_mark_s` too late; None if it is newer than every mark."""
        return next((each.at for each in self._marks if each.revision >= revision), None)


class HistoryRecorder:
    """Start it before the first commit that matters; `stop` returns everything up to then."""

    def __init__(
        self, client: Client, env: Env, kinds: Sequence[Kind] = RECORDED, *, past: PastRevisions | None = None
    ) -> None:
        """`past` has the times of commits that were made before it starts."""
        self._client = client
        self._env = env
        self._kinds = kinds
        self._past = past
        self._reached: dict[str, Revision] = {}
        """By kind: its watch has delivered every event up to there, and resumes there."""
        self._pending: dict[Revision, tuple[datetime, dict[Key, Object | None]]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.commits: list[CommitRecord] = []

    async def start(self, since: datetime | None = None) -> StoreState:
        """List everything at one revision, and begin to follow: from now on, or from `since`, as far back as `past` and
        the history of the store reach."""
        marks = [] if self._past is None or since is None else self._past.from_time(since)
        for mark in marks:
            with suppress(Compacted):
                return await self._start_at(mark.revision, mark.at)
        now = await self._client.list(self._kinds[0], ListOptions(limit=1))
        return await self._start_at(now.revision, self._env.now())

    async def _start_at(self, revision: Revision, at: datetime) -> StoreState:
        at_once = ListOptions(resource_version=str(revision), resource_version_match="Exact")
        objects: list[Object] = []
        for kind in self._kinds:
            objects.extend((await self._client.list(kind, at_once)).objects)
        self._reached = dict.fromkeys((kind.key_kind for kind in self._kinds), revision)
        self._tasks = [self._env.spawn(self._follow(kind), name=f"record {kind.kind}") for kind in self._kinds]
        return StoreState(revision, at, tuple(objects))

    async def stop(self, *, within_s: float = 30.0) -> list[CommitRecord]:
        """Wait until every commit made so far is recorded.

        Raises:
            Unavailable: that took too long.
            Compacted: the server had dropped history that was not received yet.
        """
        try:
            await self.catch_up(within_s=within_s)
        finally:
            await self.abandon()
        return self.commits

    async def abandon(self) -> None:
        """End without waiting for commits that are on the way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def catch_up(self, *, within_s: float = 30.0) -> None:
        """Wait until every commit made before this call is received; `stop` raises the same errors."""
        newest: Revision | None = None
        try:
            async with asyncio.timeout(within_s):
                while newest is None or min(self._reached.values()) < newest:
                    for task in self._tasks:
                        if task.done():
                            task.result()
                    if newest is None:
                        with suppress(OperatingError):  # the server may just start again
                            newest = (await self._client.list(self._kinds[0], ListOptions(limit=1))).revision
                    await asyncio.sleep(0.05)
        except TimeoutError:
            late = min(self._reached, key=lambda kind: self._reached[kind])
            wanted = f"not {newest}" if newest is not None else "and the server does not answer"
            raise Unavailable(f"{late} is recorded up to {self._reached[late]}, {wanted}: try again") from None

    def so_far(self) -> list[CommitRecord]:
        """Every commit received so far. The newest may lack objects whose watches are behind."""
        return [*self.commits, *(_commit(revision, *self._pending[revision]) for revision in sorted(self._pending))]

    def failed(self) -> bool:
        """Whether a watch has ended: the history has a gap from there on."""
        return any(task.done() for task in self._tasks)

    async def _follow(self, kind: Kind) -> None:
        while True:
            options = WatchOptions(resource_version=str(self._reached[kind.key_kind]), allow_bookmarks=True)
            try:
                events = await self._client.watch(kind, options)
                try:
                    async for event in events:
                        passed = event.revision
                        if event.object is not None:
                            deleted = event.type is EventType.DELETED
                            self._take(event.revision, event.object.key, None if deleted else event.object)
                            passed -= 1  # more events of this commit may follow, until a bookmark
                        self._reached[kind.key_kind] = max(self._reached[kind.key_kind], passed)
                        self._flush()
                finally:
                    with suppress(OperatingError):
                        await events.aclose()
            except Compacted:
                raise
            except (OperatingError, TimeoutError):
                pass
            await asyncio.sleep(_RETRY_S)

    def _take(self, revision: Revision, key: Key, version: Object | None) -> None:
        if revision not in self._pending:
            past = None if self._past is None else self._past.time_of(revision)
            self._pending[revision] = (past or self._env.now(), {})
        self._pending[revision][1][key] = version

    def _flush(self) -> None:
        """Append the commits that every watch has passed."""
        passed = min(self._reached.values())
        for revision in sorted(each for each in self._pending if each <= passed):
            self.commits.append(_commit(revision, *self._pending.pop(revision)))


def _commit(revision: Revision, at: datetime, changes: Mapping[Key, Object | None]) -> CommitRecord:
    written = tuple(each for each in changes.values() if each is not None)
    deleted = tuple(key for key, each in changes.items() if each is None)
    return CommitRecord(revision, at, written, deleted)
